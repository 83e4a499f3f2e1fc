"""
Streams of any kind by endpoint strings on the real reactor: a server, its clients, and what is left of them.
"""

from __future__ import annotations

from typing import Any

from twisted.internet import reactor as theReactor
from twisted.internet.endpoints import clientFromString, serverFromString
from twisted.internet.error import ConnectionDone, NoProtocol
from twisted.internet.task import deferLater
from twisted.trial.unittest import TestCase

from txrdma.testing.protocols import HalfCloseRecorder, Recorder, Recorders

reactor: Any = theReactor


def _refuse(addr: object) -> Any:
    """Make no protocol, as a factory that does not want a connection."""
    return None


_MOST_POLLS = 200
_CHECK_SECONDS = 0.01


class Halves(HalfCloseRecorder):
    """Half-closes, and answers when it has received all."""

    def __init__(self) -> None:
        super().__init__()
        self.ends: list[str] = []

    def readConnectionLost(self) -> None:
        self.ends.append("read")
        self.transport.write(b"received %d" % len(self.received))
        self.transport.loseConnection()

    def writeConnectionLost(self) -> None:
        self.ends.append("write")


class StreamCase(TestCase):
    """A server and a client; when both have ended, nothing of them is left."""

    def setUp(self) -> None:
        self.ports: list[Any] = []
        self.addCleanup(self._finish)

    async def _finish(self) -> None:
        for port in self.ports:
            await port.stopListening()
        for _ in range(_MOST_POLLS):
            if not self.left():
                break
            await deferLater(reactor, _CHECK_SECONDS)
        self.assertEqual(self.left(), [])

    # What a kind of stream says of itself.

    def left(self) -> list[object]:
        """What keeps itself open on the reactor for the test's connections."""
        raise NotImplementedError

    def serverString(self) -> str:
        """The endpoint string of a server."""
        raise NotImplementedError

    def clientString(self, port: int) -> str:
        """The endpoint string of a client of that server, at the port that it was given."""
        raise NotImplementedError

    # What tests do.

    async def listen(self, kind: Any = Recorder, keys: str = "") -> Recorders:
        """A listening factory."""
        factory = Recorders(kind)
        self.ports.append(await serverFromString(reactor, self.serverString() + keys).listen(factory))
        return factory

    async def connect(self, kind: Any = Recorder, keys: str = "") -> Any:
        """A connected protocol of a client."""
        text = self.clientString(self.ports[-1].getHost().port) + keys
        return await clientFromString(reactor, text).connect(Recorders(kind))

    async def both(self, kind: Any = Recorder, server: Any = Recorder, keys: str = "") -> tuple[Any, Any]:
        """Two connected protocols: the client's and the server's."""
        factory = await self.listen(server, keys)
        there = factory.next()
        return await self.connect(kind, keys), await there

    # What every kind of stream promises.

    async def checkNoProtocol(self) -> None:
        """A factory that makes no protocol ends a server's connection in order, and a client's attempt."""
        (await self.listen()).buildProtocol = _refuse  # type: ignore[method-assign]  # one that refuses
        client = await self.connect()
        await client.lost
        self.assertIs(client.reason.type, ConnectionDone)
        refusing = Recorders()
        refusing.buildProtocol = _refuse  # type: ignore[method-assign]  # so does this
        endpoint = clientFromString(reactor, self.clientString(self.ports[-1].getHost().port))
        await self.assertFailure(endpoint.connect(refusing), NoProtocol)
        self.assertEqual((refusing.starts, refusing.stops), (1, 1))
