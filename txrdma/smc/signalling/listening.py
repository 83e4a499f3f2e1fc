"""
TCP ports whose carriers see their sockets before they listen.
"""

from __future__ import annotations

import socket
from typing import Any, cast

from twisted.internet.interfaces import IProtocolFactory
from twisted.internet.posixbase import PosixReactorBase
from twisted.internet.tcp import Port

from txrdma.smc.signalling.interfaces import IListenerSignal


class PreparedPort(Port):
    """
    A TCP port whose socket is prepared by a carrier.

    @ivar reception: the carrier's view of the listener.
    """

    reception: IListenerSignal

    def createInternetSocket(self) -> socket.socket:
        """Make a socket that is going to listen."""
        made = cast(socket.socket, super().createInternetSocket())  # type: ignore[no-untyped-call]  # Twisted's
        self.reception.prepare(made)
        return made


def listen(
    reactor: Any,
    reception: IListenerSignal,
    port: int,
    factory: IProtocolFactory,
    backlog: int,
    interface: str,
) -> Port:
    """Listen as C{listenTCP} of the reactor does, by a socket that the carrier has prepared."""
    if not isinstance(reactor, PosixReactorBase):
        return cast(Port, reactor.listenTCP(port, factory, backlog, interface))
    prepared = PreparedPort(port, factory, backlog, interface, reactor)
    prepared.reception = reception
    prepared.startListening()
    return prepared
