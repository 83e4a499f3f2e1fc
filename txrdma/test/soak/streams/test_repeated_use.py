"""
Opening and closing connections, link groups, modules and devices a thousand times leaves nothing behind.
"""

from __future__ import annotations

from twisted.trial.unittest import TestCase

from txrdma.testing.repeating import RepeatedUseContract


class SharedMemoryTests(RepeatedUseContract, TestCase):
    LISTEN, CONNECT = "smc:{there}:0", "smc:{there}:{port}:bindAddress={here}"


class RoCETests(RepeatedUseContract, TestCase):
    LISTEN = r"smc:{there}:0:device=soft\:route\=rocev2"
    CONNECT = r"smc:{there}:{port}:device=soft\:route\=rocev2:bindAddress={here}"


class RsocketTests(RepeatedUseContract, TestCase):
    LISTEN, CONNECT = r"rsocket:0:device=soft\:{there}", r"rsocket:{there}:{port}:device=soft\:{here}"


class BTLTests(RepeatedUseContract, TestCase):
    LISTEN = r"btl:{there}:0:device=soft\:{there}"
    CONNECT = r"btl:{there}:{port}:device=soft\:{here}"


class RDMATests(RepeatedUseContract, TestCase):
    LISTEN, CONNECT = r"rdma:0:device=soft\:{there}", r"rdma:{there}:{port}:device=soft\:{here}"


class IBTests(RepeatedUseContract, TestCase):
    """C{ib:}, by shared memory."""

    LISTEN = r"ib:service=7:device=soft\:{there}"
    CONNECT = r"ib:7:dgid \:\:ffff\:{there}:device=soft\:{here}"
