"""The addresses of each kind of endpoint."""

from __future__ import annotations

from typing import Any

from twisted.internet import reactor
from twisted.internet.endpoints import TCP4ClientEndpoint, TCP4ServerEndpoint
from twisted.trial.unittest import TestCase

from txrdma.btl.connections import ClientEndpoint, ServerEndpoint
from txrdma.testing.addresses import AddressContract


class RDMATests(AddressContract, TestCase):
    """Messages of C{rdma:}."""

    HAS_MESSAGES = True
    LISTEN, CONNECT = "rdma:{there}:0", "rdma:{there}:{port}"


class IBTests(AddressContract, TestCase):
    """Messages of C{ib:}."""

    HAS_MESSAGES = True
    LISTEN = r"ib:service=66:device=soft\:{there}"
    CONNECT = r"ib:service=66:to={there}:device=soft\:{there}"


class BTLMessageTests(AddressContract, TestCase):
    """Messages of the byte transfer layer."""

    HAS_MESSAGES = True

    def server(self) -> ServerEndpoint:
        stream = TCP4ServerEndpoint(reactor, 0, interface=self.there)
        return ServerEndpoint(reactor, stream, f"soft:{self.there}")

    def client(self, port: int) -> Any:
        stream = TCP4ClientEndpoint(reactor, self.there, port)
        return ClientEndpoint(reactor, stream, f"soft:{self.there}")


class BTLTests(AddressContract, TestCase):
    """Streams of C{btl:}."""

    LISTEN = r"btl:{there}:0:device=soft\:{there}"
    CONNECT = r"btl:{there}:{port}:device=soft\:{there}"


class RSocketTests(AddressContract, TestCase):
    """Streams of C{rsocket:}."""

    LISTEN, CONNECT = "rsocket:{there}:0", "rsocket:{there}:{port}"


class SMCTests(AddressContract, TestCase):
    """Streams of C{smc:}."""

    LISTEN = r"smc:{there}:0:device=soft\:{there}"
    CONNECT = r"smc:{there}:{port}:device=soft\:{there}"


class TCPTests(AddressContract, TestCase):
    """Streams of C{tcp:}, with which the others are compared."""

    LISTEN, CONNECT = "tcp:0:interface={there}", "tcp:{there}:{port}"
