"""
A protocol that gathers what comes through the C{smc-proxy} plugin, until each direction ends.
"""

from __future__ import annotations

from typing import cast

from zope.interface import implementer

from twisted.internet import reactor as installedReactor
from twisted.internet.defer import Deferred
from twisted.internet.interfaces import (
    IHalfCloseableProtocol,
    IReactorProcess,
    IReactorTCP,
    IReactorTime,
)
from twisted.internet.protocol import connectionDone, Protocol
from twisted.python.failure import Failure

from txrdma.tap.proxy import IStreamTransport


class _Reactor(IReactorTime, IReactorTCP, IReactorProcess):
    """What these tests ask of it."""


reactor = cast(_Reactor, installedReactor)


@implementer(IHalfCloseableProtocol)
class Gathering(Protocol):
    """Gathers what comes until that direction ends."""

    transport: IStreamTransport

    def __init__(self) -> None:
        self.heard = bytearray()
        self.made: Deferred[None] = Deferred()
        self.read: Deferred[bytes] = Deferred()
        self.gone: Deferred[BaseException | None] = Deferred()

    def connectionMade(self) -> None:
        self.made.callback(None)

    def dataReceived(self, data: bytes) -> None:
        self.heard += data

    def readConnectionLost(self) -> None:
        self.read.callback(bytes(self.heard))

    def writeConnectionLost(self) -> None:
        pass

    def connectionLost(self, reason: Failure = connectionDone) -> None:
        self.gone.callback(reason.value)
