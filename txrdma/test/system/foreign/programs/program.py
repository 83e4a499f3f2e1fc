"""
The interface of programs: a server that listens to a string, and a client that connects to it.
"""

from __future__ import annotations

import hashlib
import random
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

from zope.interface import implementer

from twisted.internet.defer import Deferred
from twisted.internet.endpoints import clientFromString, serverFromString
from twisted.internet.interfaces import IProtocolFactory, IStreamClientEndpoint
from twisted.web.client import Agent, HTTPConnectionPool
from twisted.web.iweb import IAgentEndpointFactory

BIG: Final = random.Random(5).randbytes(3_000_000)
"""More bytes than all buffers between the two ends, which do not compress."""


def digest(data: bytes) -> str:
    """Return length and hash of received data."""
    return f"{len(data)} bytes {hashlib.sha256(data).hexdigest()[:12]}"


class Ends:
    """
    The environment of a program: where it listens, or what it connects to.

    @ivar reactor: the reactor of this process.
    @ivar string: the endpoint string.
    @ivar folder: a private folder; C{server.pem} in it is a certificate for C{localhost}, with its key.
    @ivar ports: the ports that it listens at.
    """

    def __init__(self, reactor: Any, string: str, folder: Path) -> None:
        self.reactor = reactor
        self.string = string
        self.folder = folder
        self.ports: list[Any] = []

    async def listen(self, factory: Any) -> Any:
        port = await serverFromString(self.reactor, self.string).listen(factory)
        self.ports.append(port)
        return port

    @property
    def endpoint(self) -> Any:
        return clientFromString(self.reactor, self.string)

    def connect(self, factory: Any) -> Deferred[Any]:
        connecting: Deferred[Any] = self.endpoint.connect(factory)
        return connecting

    def agent(self, pool: HTTPConnectionPool | None = None) -> Agent:
        """Return an HTTP agent that connects to the string, whatever the URI."""
        made: Agent = Agent.usingEndpointFactory(self.reactor, _Same(self), pool)
        return made

    def certificate(self) -> Any:
        """Load the certificate of C{localhost}, and its key."""
        from twisted.internet.ssl import PrivateCertificate

        return PrivateCertificate.loadPEM((self.folder / "server.pem").read_bytes())


@implementer(IAgentEndpointFactory)
class _Same:
    """Returns the same endpoint for each address."""

    def __init__(self, ends: Ends) -> None:
        self._ends = ends

    def endpointForURI(self, uri: Any) -> IStreamClientEndpoint:
        return self._ends.endpoint  # type: ignore[no-any-return]  # whichever the string says


class Program:
    """
    A server and its client.

    @cvar needs: names of the packages that it uses, beside Twisted; their versions are reported. @cvar
        imports: names of the modules that must be installed.
    """

    needs: Sequence[str] = ()
    imports: Sequence[str] = ()

    async def serve(self, ends: Ends) -> None:
        """Listen; the process is ended by SIGTERM when its client has ended."""
        raise NotImplementedError

    async def use(self, ends: Ends) -> object:
        """Connect, use the server, and return the results, which must be representable as JSON."""
        raise NotImplementedError


def factoryOf(protocol: Any) -> IProtocolFactory:
    """Return a factory of protocols without arguments."""
    from twisted.internet.protocol import Factory

    return Factory.forProtocol(protocol)  # type: ignore[no-any-return,unused-ignore]  # untyped in some releases
