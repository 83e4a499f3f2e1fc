"""
A verb or system call that fails, at any step of a connection, leaves nothing and affects no other connection.
"""

from __future__ import annotations

from twisted.trial.unittest import TestCase

from txrdma.testing.failingcalls import FailingCallContract


class RDMATests(FailingCallContract, TestCase):
    """C{rdma:}, by shared memory."""

    slowBecause = "each call fails in a connection of its own on the real reactor"
    LISTEN, CONNECT = r"rdma:0:device=soft\:{there}", r"rdma:{there}:{port}:device=soft\:{here}"


class RSocketTests(FailingCallContract, TestCase):
    """C{rsocket:}, by shared memory."""

    slowBecause = "each call fails in a connection of its own on the real reactor"
    LISTEN, CONNECT = r"rsocket:0:device=soft\:{there}", r"rsocket:{there}:{port}:device=soft\:{here}"
