"""A management port that prints all its datagrams."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence

from zope.interface import implementer

from txrdma.iba.path import IBPath, MADEndPort
from txrdma.iba.verbs import Buffer
from txrdma.interfaces import IMADPort, IMADReceiver
from txrdma.mad.layouts.dump import dumped


@implementer(IMADPort, IMADReceiver)
class ShowingPort:
    """Wraps a management port, and prints its datagrams on standard error."""

    def __init__(self, port: IMADPort, level: int) -> None:
        self._port = port
        self._level = level
        self._receiver: IMADReceiver | None = None
        self.name = port.name
        self.endPort = port.endPort
        self.transactionIDBits = port.transactionIDBits
        self.hasSMI = port.hasSMI
        self.doesRMPP = port.doesRMPP

    def _show(self, what: str, datagram: bytes) -> None:
        for number, line in enumerate(dumped(datagram, self._level).splitlines()):
            print(f"{what} {line}" if not number else f"    {line}", file=sys.stderr)

    # IMADPort

    def start(self, receiver: IMADReceiver) -> None:
        self._receiver = receiver
        self._port.start(self)

    def serve(self, managementClass: int, methods: Sequence[int], oui: int = 0) -> Callable[[], None]:
        return self._port.serve(managementClass, methods, oui)

    def send(self, datagram: Buffer, path: IBPath, answerWithin: float = 0.0) -> None:
        self._show(f"-> {path}:", bytes(datagram))
        self._port.send(datagram, path, answerWithin)

    def pathOf(self, envelope: object) -> IBPath:
        return self._port.pathOf(envelope)

    def isFrom(self, envelope: object, path: IBPath) -> bool:
        return self._port.isFrom(envelope, path)

    def refresh(self) -> MADEndPort:
        self.endPort = self._port.refresh()
        return self.endPort

    def close(self) -> None:
        self._port.close()

    # IMADReceiver

    def received(self, datagram: bytes, envelope: object) -> None:
        self._show("<-", datagram)
        assert self._receiver is not None
        self._receiver.received(datagram, envelope)

    def undeliverable(self, datagram: bytes, reason: str) -> None:
        self._show(f"undeliverable ({reason}):", datagram)
        assert self._receiver is not None
        self._receiver.undeliverable(datagram, reason)

    def portLost(self, reason: str) -> None:
        assert self._receiver is not None
        self._receiver.portLost(reason)

    def portChanged(self, mustRegister: bool) -> None:
        """Copy the changed state of the wrapped port, and notify the receiver."""
        assert self._receiver is not None
        self.endPort = self._port.endPort
        self._receiver.portChanged(mustRegister)
