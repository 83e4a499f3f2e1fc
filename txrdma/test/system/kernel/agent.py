"""
A party in another kernel, which receives requests as lines of JSON over TCP.

Run as C{python -m txrdma.test.system.kernel.agent ADDRESS PORT DEVICE}, where C{DEVICE} is a device string.
"""

from __future__ import annotations

import json
import sys
from typing import Any, cast

from twisted.internet.defer import Deferred
from twisted.internet.protocol import Factory, Protocol
from twisted.protocols.basic import LineOnlyReceiver
from twisted.python.failure import Failure

from txrdma.test.system.kernel.party import Party
from txrdma.verbs.devices import openDevice


class Asked(LineOnlyReceiver):
    """The server: each connection has its own party, on the same device."""

    MAX_LENGTH = 1 << 16

    def __init__(self, party: Party) -> None:
        self.party = party
        self.gone: Deferred[None] = Deferred()

    def lineReceived(self, line: bytes) -> None:
        """Answer C{[number, name, arguments]} by C{[number, result, error]}."""
        number, name, arguments = json.loads(line)

        def answer(result: Any, error: str | None = None) -> None:
            if self.connected:
                self.sendLine(json.dumps([number, result, error]).encode())

        def failed(failure: Failure) -> None:
            answer(None, f"{type(failure.value).__name__}: {failure.getErrorMessage()}")

        self.party.call(name, **arguments).addCallbacks(answer, failed)

    def connectionLost(self, reason: Failure | None = None) -> None:
        self.party.close()
        self.gone.callback(None)


class Refused(Exception):
    """The other party reports that it failed."""


class Asking(LineOnlyReceiver):
    """The client: provides L{Party.call} of a remote party."""

    MAX_LENGTH = 1 << 16

    def __init__(self) -> None:
        self._waiting: dict[int, Deferred[Any]] = {}
        self._number = 0

    def call(self, name: str, **arguments: Any) -> Deferred[Any]:
        """Call a method of the remote party."""
        self._number += 1
        answer: Deferred[Any] = Deferred()
        self._waiting[self._number] = answer
        self.sendLine(json.dumps([self._number, name, arguments]).encode())
        return answer

    def lineReceived(self, line: bytes) -> None:
        number, result, error = json.loads(line)
        waiting = self._waiting.pop(number)
        if error is None:
            waiting.callback(result)
        else:
            waiting.errback(Refused(error))

    def connectionLost(self, reason: Failure | None = None) -> None:
        """Fail all outstanding calls."""
        waiting, self._waiting = self._waiting, {}
        for each in waiting.values():
            each.errback(reason or Refused("the connection is gone"))


class AskedFactory(Factory):
    """
    Creates parties on one device.

    @ivar gone: fires when the last connection and its party are closed.
    """

    def __init__(self, reactor: Any, device: Any) -> None:
        self.reactor, self.device = reactor, device
        self.gone: list[Deferred[None]] = []

    def buildProtocol(self, address: object) -> Protocol:
        asked = Asked(Party(self.reactor, self.device))
        self.gone.append(asked.gone)
        return cast(Protocol, asked)


def main(arguments: list[str]) -> None:
    """Serve until the process ends."""
    from twisted.internet import reactor as theReactor

    reactor: Any = theReactor  # a module, to the type checker
    address, port, device = arguments
    factory = AskedFactory(reactor, openDevice(reactor, device))
    reactor.listenTCP(int(port), factory, interface=address)
    print(f"agent: {device} at {address}:{port}", flush=True)
    reactor.run()


if __name__ == "__main__":
    main(sys.argv[1:])
