"""
An in-memory carrier of SMC's TCP option, in place of the kernel.
"""

from __future__ import annotations

import socket

from txrdma.smc.signalling.option.carrier import OptionCarrier


class ModelCarrier(OptionCarrier):
    """
    Models the TCP option between sockets of this process, without help of the kernel.

    @ivar clients: sockets marked before they connected; C{listeners}: sockets marked before they listened.
    @ivar forgotten: number of calls of C{forget}.
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
