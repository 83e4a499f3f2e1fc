"""
A verb or system call that fails, at any step of a connection, leaves nothing and affects no other connection.
"""

from __future__ import annotations

from twisted.trial.unittest import TestCase

from txrdma.testing.failingcalls import FailingCallContract


class BTLTests(FailingCallContract, TestCase):
    """C{btl:} through shared memory: some calls. The soak tests have each call fail, here and below."""

    STEP = 3
    LISTEN = r"btl:{there}:0:device=soft\:{there}"
    CONNECT = r"btl:{there}:{port}:device=soft\:{here}"


class RSocketTests(FailingCallContract, TestCase):
    """C{rsocket:} through shared memory: some calls."""

    STEP = 11
    LISTEN, CONNECT = r"rsocket:0:device=soft\:{there}", r"rsocket:{there}:{port}:device=soft\:{here}"


class RDMATests(FailingCallContract, TestCase):
    """C{rdma:} through shared memory: some calls."""

    STEP = 7
    LISTEN, CONNECT = r"rdma:0:device=soft\:{there}", r"rdma:{there}:{port}:device=soft\:{here}"


class SharedMemoryTests(FailingCallContract, TestCase):
    """C{smc:} through shared memory: some calls, each at the first contact of a link group."""

    STEP = 5
    LISTEN = r"smc:{there}:0:device=soft\:{there}"
    CONNECT = r"smc:{there}:{port}:bindAddress={here}:device=soft\:{here}"


class RoCETests(FailingCallContract, TestCase):
    """C{smc:} through software RoCE: some calls, each at the first contact of a link group."""

    STEP = 5
    LISTEN = r"smc:{there}:0:device=soft\:{there}\:route\=rocev2"
    CONNECT = r"smc:{there}:{port}:bindAddress={here}:device=soft\:{here}\:route\=rocev2"
