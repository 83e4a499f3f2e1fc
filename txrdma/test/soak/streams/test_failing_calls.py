"""
A verb or system call that fails, at any step of a connection, leaves nothing and affects no other connection.
"""

from __future__ import annotations

from twisted.trial.unittest import TestCase

from txrdma.testing.failingcalls import FailingCallContract


class RDMATests(FailingCallContract, TestCase):
    LISTEN, CONNECT = r"rdma:0:device=soft\:{there}", r"rdma:{there}:{port}:device=soft\:{here}"


class IBTests(FailingCallContract, TestCase):
    LISTEN = r"ib:service=7:device=soft\:{there}"
    CONNECT = r"ib:7:dgid \:\:ffff\:{there}:device=soft\:{here}"


class RSocketTests(FailingCallContract, TestCase):
    """C{rsocket:}, by shared memory."""

    LISTEN, CONNECT = r"rsocket:0:device=soft\:{there}", r"rsocket:{there}:{port}:device=soft\:{here}"


class SharedMemoryTests(FailingCallContract, TestCase):
    """C{smc:}, by shared memory, at the first contact of a link group."""

    LISTEN = r"smc:{there}:0:device=soft\:{there}"
    CONNECT = r"smc:{there}:{port}:bindAddress={here}:device=soft\:{here}"


class RoCETests(FailingCallContract, TestCase):
    """C{smc:}, by RoCE, at the first contact of a link group."""

    LISTEN = r"smc:{there}:0:device=soft\:{there}\:route\=rocev2"
    CONNECT = r"smc:{there}:{port}:bindAddress={here}:device=soft\:{here}\:route\=rocev2"


class RoCERDMATests(FailingCallContract, TestCase):
    LISTEN = r"rdma:0:device=soft\:{there}\:route=rocev2"
    CONNECT = r"rdma:{there}:{port}:device=soft\:{here}\:route=rocev2"


class BTLTests(FailingCallContract, TestCase):
    """C{btl:}, by shared memory."""

    LISTEN = r"btl:{there}:0:device=soft\:{there}"
    CONNECT = r"btl:{there}:{port}:device=soft\:{here}"


class RoCEBTLTests(FailingCallContract, TestCase):
    LISTEN = r"btl:{there}:0:device=soft\:{there}\:route=rocev2"
    CONNECT = r"btl:{there}:{port}:device=soft\:{here}\:route=rocev2"


class TwoInterfacesTests(FailingCallContract, TestCase):
    """C{btl:} with two interfaces at each end."""

    LISTEN = "btl:{there}:0:interfaces={there},{there}1"
    CONNECT = "btl:{there}:{port}:interfaces={here},{here}1"


class RoCERSocketTests(FailingCallContract, TestCase):
    LISTEN = r"rsocket:0:device=soft\:{there}\:route=rocev2"
    CONNECT = r"rsocket:{there}:{port}:device=soft\:{here}\:route=rocev2"


class RoCEIBTests(FailingCallContract, TestCase):
    LISTEN = r"ib:service=7:device=soft\:{there}\:route=rocev2"
    CONNECT = r"ib:7:dgid \:\:ffff\:{there}:device=soft\:{here}\:route=rocev2"
