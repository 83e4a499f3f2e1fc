"""A management port that prints all its datagrams."""

from __future__ import annotations

import sys

from twisted.python.components import proxyForInterface

from txrdma.iba.path import IBPath
from txrdma.iba.verbs import Buffer
from txrdma.interfaces import IMADPort, IMADReceiver
from txrdma.mad.layouts.dump import dumped


def _show(what: str, datagram: bytes, level: int) -> None:
    for number, line in enumerate(dumped(datagram, level).splitlines()):
        print(f"{what} {line}" if not number else f"    {line}", file=sys.stderr)


class ShowingPort(proxyForInterface(IMADPort, "_port")):  # type: ignore[misc]  # it is a class
    """Wraps a management port, and prints its datagrams on standard error."""

    def __init__(self, port: IMADPort, level: int) -> None:
        super().__init__(port)
        self._level = level

    def start(self, receiver: IMADReceiver) -> None:
        self._port.start(_ShowingReceiver(receiver, self._level))

    def send(self, datagram: Buffer, path: IBPath, answerWithin: float = 0.0) -> None:
        _show(f"-> {path}:", bytes(datagram), self._level)
        self._port.send(datagram, path, answerWithin)


class _ShowingReceiver(proxyForInterface(IMADReceiver, "_receiver")):  # type: ignore[misc]  # likewise
    """Wraps the receiver of a management port, and prints its datagrams on standard error."""

    def __init__(self, receiver: IMADReceiver, level: int) -> None:
        super().__init__(receiver)
        self._level = level

    def received(self, datagram: bytes, envelope: object) -> None:
        _show("<-", datagram, self._level)
        self._receiver.received(datagram, envelope)

    def undeliverable(self, datagram: bytes, reason: str) -> None:
        _show(f"undeliverable ({reason}):", datagram, self._level)
        self._receiver.undeliverable(datagram, reason)
