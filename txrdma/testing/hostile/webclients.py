"""Clients of the fabric monitor's site: the bystander, and connections of a hostile client."""

from __future__ import annotations

import gzip
import re
from collections import deque
from collections.abc import Callable
from typing import Any, Final

from twisted.internet.error import ConnectionDone
from twisted.internet.interfaces import IProtocol
from twisted.internet.protocol import connectionDone
from twisted.python.failure import Failure

from txrdma.testing.hostile.talkers import StreamTalker, Talker
from txrdma.testing.hostile.webacts import Act, Login, request, Then
from txrdma.testing.outcome import check
from txrdma.testing.smc.hosts import Host, MemorySocket, MemoryTCP

_AGAIN_SECONDS: Final = 1.0
_PAGES: Final = (b"/api/v1/nodes", b"/nodes", b"/static/monitor.css", b"/api/v1/links", b"/metrics", b"/")

Join = Callable[[Host, Any, "Served", Any], None]
CheckPage = Callable[[bytes, int, bytes], None]


class OwnedTCP(MemoryTCP):
    """A TCP connection whose end is reported; its buffer is small, so that answers wait for their client."""

    bufferSize = 1 << 13

    def __init__(self, socket: MemorySocket, protocol: IProtocol, ended: Callable[[Failure], None]) -> None:
        super().__init__(socket, protocol)
        self._ended = ended

    @property
    def isOpen(self) -> bool:
        """Whether the connection has not ended."""
        return bool(self.connected) and not self._aborting

    @property
    def pending(self) -> int:
        """Number of octets that wait to be sent."""
        return len(self.dataBuffer) + sum(map(len, self._tempDataBuffer))

    def connectionLost(self, reason: Failure = connectionDone) -> None:
        super().connectionLost(reason)
        self._ended(reason)


class Served(Talker):
    """The monitor's ends of the connections of a client; events count as sent bytes."""

    def __init__(self, publish: Callable[[int], None]) -> None:
        """@param publish: sends an event with a number of octets to all readers."""
        self._publish = publish
        self.transports: list[OwnedTCP] = []

    def ended(self, reason: Failure) -> None:
        if self.lost is None or isinstance(self.lost, ConnectionDone):
            self.connectionLost(reason)

    def send(self, data: bytes) -> None:
        """Send an event to all readers."""
        self._publish(len(data))

    def close(self) -> None:
        for each in self.transports:
            each.loseConnection()

    def abort(self) -> None:
        for each in self.transports:
            each.abortConnection()


def _joined(chunked: bytes) -> bytes | None:
    """Return a chunked body; None if it is not complete."""
    body = b""
    while True:
        size, separator, rest = chunked.partition(b"\r\n")
        if not separator:
            return None
        length = int(size, 16)
        if not length:
            return body
        body += rest[:length]
        chunked = rest[length + 2 :]


class Answers(StreamTalker):
    """A connection of the bystander, which awaits each answer before the next request."""

    _data = b""
    answered: Callable[[int, bytes], object]

    def ask(self, path: bytes, answered: Callable[[int, bytes], object]) -> None:
        """Send a request; C{answered} gets the status and the body of its answer."""
        self._data, self.answered = b"", answered
        self.transport.write(request(path, Login.USER, b"Host: localhost", b"Accept-Encoding: gzip"))

    def dataReceived(self, data: bytes) -> None:
        self._data += data
        head, _, body = self._data.partition(b"\r\n\r\n")
        length = re.search(rb"\r\nContent-Length: (\d+)", head, re.IGNORECASE)
        content = _joined(body) if length is None else body
        if content is None or (length is not None and len(content) < int(length[1])):
            return
        if b"\r\ncontent-encoding: gzip" in head.lower():
            content = gzip.decompress(content)
        self._data = b""
        self.answered(int(head[9:12]), content)


class Events(StreamTalker):
    """A stream of events of the bystander; it is requested again if there are too many readers."""

    isReading = False
    _data = b""

    def __init__(self, browser: Browser) -> None:
        self._browser = browser

    def connectionMade(self) -> None:
        super().connectionMade()
        self.send(request(b"/api/v1/events", Login.TOKEN))

    def dataReceived(self, data: bytes) -> None:
        self._data = (self._data + data)[-100_000:]
        if not self.isReading and b"\r\n\r\n" in self._data:
            self.isReading = self._data[9:12] == b"200"
            if not self.isReading:
                self._data = b""
                self._browser.host.callLater(_AGAIN_SECONDS, self.connectionMade)
        found = list(re.finditer(rb"event: (finding|resync)\ndata: (.*)\n\n", self._data))
        for each in found:
            check(each[1] == b"finding", "the bystander has missed events")
            self._browser.received += int(each[2][11:-1])
        if found:
            self._data = self._data[found[-1].end() :]


class Browser(Talker):
    """The bystander: one connection for pages, and one for events; correct pages count as sent bytes."""

    def __init__(
        self, host: Host, served: Served, join: Join, checkPage: CheckPage, hasEvents: bool = True
    ) -> None:
        """
        @param join: connects one of the protocols to the monitor.
        @param checkPage: gets the path, the status and the body of each answer.
        """
        self.host, self._served = host, served
        self._join, self._checkPage = join, checkPage
        self._hasEvents = hasEvents
        self._answers, self.events = Answers(), Events(self)
        self._asked: deque[tuple[bytes, int]] = deque()

    @property
    def isMade(self) -> bool:  # type: ignore[override]  # of an attribute
        return self._answers.isMade and (self.events.isReading or not self._hasEvents)

    def begin(self) -> None:
        for protocol in (self._answers, self.events)[: 1 + self._hasEvents]:
            self._join(self.host, protocol, self._served, self)
        self._served.isMade = True

    def ended(self, reason: Failure) -> None:
        if self.lost is None or isinstance(self.lost, ConnectionDone):
            self.connectionLost(reason)

    def send(self, data: bytes) -> None:
        """Request all pages, one after the other."""
        self._ask([*((path, 0) for path in _PAGES[1:]), (_PAGES[0], len(data))])

    def keep(self) -> None:
        """Request a page, before twisted.web closes the connection as idle."""
        if self.isMade and self.lost is None:
            self._ask([(b"/healthz", 0)])

    def _ask(self, pages: list[tuple[bytes, int]]) -> None:
        isFirst = not self._asked
        self._asked += pages
        if isFirst:
            self._answers.ask(self._asked[0][0], self._answered)

    def _answered(self, code: int, body: bytes) -> None:
        path, size = self._asked.popleft()
        self._checkPage(path, code, body)
        self._served.received += size
        if self._asked:
            self._answers.ask(self._asked[0][0], self._answered)

    def close(self) -> None:
        self._answers.close()
        self.events.close()

    abort = close


class Stranger(StreamTalker):
    """A connection of the hostile client, which counts the codes of its answers."""

    def __init__(
        self, host: Host, served: Served, answered: Callable[[Act | None, int], None], act: Act | None = None
    ) -> None:
        """@param answered: gets the status of each answer."""
        self._host, self.served, self.act = host, served, act
        self._answered = answered
        self._rest = b""
        self._requests = 0
        self.activeAt = 0.0
        self.content = b""

    def ended(self, reason: Failure) -> None:
        """Do nothing: the protocol is notified."""

    def connectionMade(self) -> None:
        super().connectionMade()
        self.served.isMade = True
        self._active()
        if self.act is not None:
            if self.act.then is Then.UNREAD:
                self.transport.pauseProducing()
            size = 1 + len(self.content) // self.act.pieces
            self._sendPieces(
                self.act, [self.content[at : at + size] for at in range(0, len(self.content), size)]
            )

    def _sendPieces(self, act: Act, pieces: list[bytes]) -> None:
        if not self.isOpen:
            return
        self._active()
        if pieces:
            self.transport.write(pieces.pop(0))
            self._host.callLater(act.pause, self._sendPieces, act, pieces)
        elif act.then is Then.HALF:
            self.transport.loseWriteConnection()
        elif act.then is Then.CLOSED:
            self.close()
        elif act.then is Then.ABORTED:
            self.abort()

    def _active(self) -> None:
        self.activeAt = self._host.seconds()

    def dataReceived(self, data: bytes) -> None:
        self._active()
        self.served.received += len(data)
        data = self._rest + data
        found = re.findall(rb"HTTP/1\.[01] (\d\d\d) ", data)
        self._rest = data[-12:]
        for code in map(int, found):
            self._answered(self.act, code)

    def send(self, data: bytes) -> None:
        """Send requests, of which the second one has a body of several lines."""
        self._requests += 1
        self._active()
        if self._requests % 3 != 2:
            path = _PAGES[self._requests % len(_PAGES)] + b"?limit=5" * (self._requests % 2)
            super().send(request(path, Login.TOKEN, b"Host: localhost", b"Accept-Encoding: gzip"))
            return
        body = b'{"action":\n"comment",\n"comment": "%s"}\n' % (b"x" * min(len(data), 5000))
        heads = b"Host: localhost", b"Content-Type: application/json", b"Content-Length: %d" % len(body)
        path = b"/api/v1/findings/" + b"0" * 16
        super().send(request(path, Login.TOKEN, *heads, method=b"POST", body=body))
