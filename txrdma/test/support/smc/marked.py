"""
A carrier of the TCP option in memory, as the kernel would carry it.
"""

from __future__ import annotations

import socket

from txrdma.smc.signalling.option.carrier import OptionCarrier


class ModelCarrier(OptionCarrier):
    """
    The option of sockets on one host, without a kernel's help.

    @ivar clients: sockets that were marked before they connected, C{listeners} before they listened.
    @ivar forgotten: connections whose peer's option was asked for, and then forgotten.
    """

    def __init__(self) -> None:
        super().__init__(None)
        self.clients: list[socket.socket] = []
        self.listeners: list[socket.socket] = []
        self.forgotten = 0
        self.isOpen = True

    @property
    def isAvailable(self) -> bool:
        return self.isOpen

    def markBeforeConnect(self, client: socket.socket) -> None:
        self.clients.append(client)

    def markBeforeListen(self, listener: socket.socket) -> None:
        self.listeners.append(listener)

    def peerHasOption(self, connected: socket.socket) -> bool:
        own, peer = connected.getsockname(), connected.getpeername()
        clients, listeners = (
            {each.getsockname() for each in marked if each.fileno() >= 0}
            for marked in (self.clients, self.listeners)
        )
        return (own in clients and peer in listeners) or (peer in clients and own in listeners)

    def forget(self, connected: socket.socket) -> None:
        self.forgotten += 1

    def close(self) -> None:
        self.isOpen = False
