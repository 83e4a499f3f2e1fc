"""Opening and closing connections, modules and devices a thousand times leaves nothing behind."""

from __future__ import annotations

from twisted.trial.unittest import TestCase

from txrdma.testing.repeating import RepeatedConnectionsContract


class SharedMemoryTests(RepeatedConnectionsContract, TestCase):
    LISTEN, CONNECT = "smc:{there}:0", "smc:{there}:{port}:bindAddress={here}"


class RoCETests(RepeatedConnectionsContract, TestCase):
    LISTEN = r"smc:{there}:0:device=soft\:route\=rocev2"
    CONNECT = r"smc:{there}:{port}:device=soft\:route\=rocev2:bindAddress={here}"


class RsocketTests(RepeatedConnectionsContract, TestCase):
    LISTEN, CONNECT = r"rsocket:0:device=soft\:{there}", r"rsocket:{there}:{port}:device=soft\:{here}"


class BTLTests(RepeatedConnectionsContract, TestCase):
    LISTEN = r"btl:{there}:0:device=soft\:{there}"
    CONNECT = r"btl:{there}:{port}:device=soft\:{here}"


class RDMATests(RepeatedConnectionsContract, TestCase):
    LISTEN, CONNECT = r"rdma:0:device=soft\:{there}", r"rdma:{there}:{port}:device=soft\:{here}"


class IBTests(RepeatedConnectionsContract, TestCase):
    """C{ib:}, by shared memory."""

    LISTEN = r"ib:service=7:device=soft\:{there}"
    CONNECT = r"ib:7:dgid \:\:ffff\:{there}:device=soft\:{here}"


class RsocketRoCETests(RepeatedConnectionsContract, TestCase):
    LISTEN = r"rsocket:0:device=soft\:{there}\:route=rocev2"
    CONNECT = r"rsocket:{there}:{port}:device=soft\:{here}\:route=rocev2"


class BTLRoCETests(RepeatedConnectionsContract, TestCase):
    LISTEN = r"btl:{there}:0:device=soft\:{there}\:route=rocev2"
    CONNECT = r"btl:{there}:{port}:device=soft\:{here}\:route=rocev2"


class RDMARoCETests(RepeatedConnectionsContract, TestCase):
    LISTEN = r"rdma:0:device=soft\:{there}\:route=rocev2"
    CONNECT = r"rdma:{there}:{port}:device=soft\:{here}\:route=rocev2"


class IBRoCETests(RepeatedConnectionsContract, TestCase):
    LISTEN = r"ib:service=7:device=soft\:{there}\:route=rocev2"
    CONNECT = r"ib:7:dgid \:\:ffff\:{there}:device=soft\:{here}\:route=rocev2"
