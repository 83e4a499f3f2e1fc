"""
Events for browsers: rounds, findings and changes of a fabric, as server-sent events.

Follows WHATWG HTML, 9.2 (Server-sent events). An event is encoded once for all readers. A reader that is slow
has a bounded queue: when it is full, the queue is dropped, and the reader is instructed to reload everything
(C{resync}); if it reads nothing for a minute its connection is closed.
"""

from __future__ import annotations

import json
from collections import deque
from collections.abc import Iterable, Iterator
from operator import itemgetter
from typing import Any, Final

from zope.interface import implementer

from twisted.internet.interfaces import IPushProducer, IReactorTime
from twisted.internet.task import CooperativeTask, Cooperator, SchedulerStopped
from twisted.logger import Logger
from twisted.python.failure import Failure
from twisted.web.server import NOT_DONE_YET, Request

from txrdma.monitor.diagnosis.findinglog import FindingEvent
from txrdma.monitor.web.rest import sendJSON
from txrdma.monitor.web.routes import overview
from txrdma.monitor.web.tables import FINDINGS
from txrdma.monitor.web.topology import bundleName, bundles, edge
from txrdma.monitor.web.watch import PageContext, Watch

_log = Logger()

MOST_READERS: Final = 1000
"""Maximum number of readers at a time."""

MOST_WAITING: Final = 64
"""Maximum number of events that wait for a reader; C{MOST_BYTES} limits their total length in bytes."""

MOST_BYTES: Final = 1 << 20
STALLED_SECONDS: Final = 60.0
"""Seconds without room for an event after which a reader's connection ends."""

_REPEATED: Final = 256
"""Number of events stored for reconnecting readers, and maximum number of those not yet sent to all."""

MOST_EDGES: Final = 1000
"""Maximum number of links of a round: those whose state changed most; others follow in the next rounds."""

_EDGES_AT_A_TIME: Final = 20
_OCTETS_AT_A_TIME: Final = 1 << 18
"""Octets that are sent to readers between two pauses, beside C{_OVERHEAD} for the work of each."""

_OVERHEAD: Final = 1 << 11
_JOINED: Final = 1 << 14
"""Maximum length of waiting events that are sent to a reader as one: a fault may have hundreds."""

_RETRY: Final = b"retry: 3000\n\n"
_ALIVE: Final = b": alive\n\n"


def encoded(number: int, kind: str, content: object) -> bytes:
    """Return an event as sent; JSON has no line breaks."""
    return f"id: {number}\nevent: {kind}\ndata: {json.dumps(content)}\n\n".encode()


def _difference(before: dict[str, Any], state: dict[str, Any]) -> float:
    """Return how much the state of a bundle of links has changed: its load, or by more anything else."""
    if {**before, "load": None} != {**state, "load": None}:
        return 2.0
    loads: list[float] = [before["load"] or 0.0, state["load"] or 0.0]
    return max(loads) - min(loads)


@implementer(IPushProducer)
class Reader:
    """
    Reader of events: one request that does not end.

    @ivar request: that request.
    @ivar dropped: number of events that were dropped, because the reader was too slow.
    """

    def __init__(self, hub: EventHub, request: Request) -> None:
        self.dropped = 0
        self.request = request
        self._hub = hub
        self._waiting: deque[bytes] = deque()
        self._bytes = 0
        self._pausedAt: float | None = None

    def send(self, event: bytes, now: float) -> None:
        """Send an event, now or when the connection accepts it."""
        if self._pausedAt is None:
            self.request.write(event)
            return
        self._waiting.append(event)
        self._bytes += len(event)
        if len(self._waiting) > MOST_WAITING or self._bytes > MOST_BYTES:
            self.dropped += len(self._waiting)
            self._waiting.clear()
            resync = self._hub.resync()
            self._waiting.append(resync)
            self._bytes = len(resync)
        if now - self._pausedAt >= STALLED_SECONDS:
            self._hub.remove(self)
            transport: Any = self.request.transport
            transport.abortConnection()  # to lose it would wait for the reader

    def alive(self) -> None:
        """Send a comment, so that proxies and browsers notice that the connection is alive."""
        if self._pausedAt is None:
            self.request.write(_ALIVE)

    def pauseProducing(self) -> None:
        if self._pausedAt is None:
            self._pausedAt = self._hub.seconds()

    def resumeProducing(self) -> None:
        self._pausedAt = None
        while self._waiting and self._pausedAt is None:
            event = self._waiting.popleft()
            self._bytes -= len(event)
            self.request.write(event)

    def stopProducing(self) -> None:
        self._hub.remove(self)


class EventHub:
    """
    Sends the events of a watch to all readers.

    @ivar readers: current readers.
    """

    def __init__(self, reactor: IReactorTime, watch: Watch) -> None:
        self.readers: dict[Reader, None] = {}
        self.seconds = watch.seconds
        self._watch = watch
        self._number = int(watch.seconds() * 1000)  # beyond those of a former process, whose readers return
        self._last: deque[tuple[int, bytes]] = deque(maxlen=_REPEATED)
        self._edges: dict[str, dict[str, Any]] = {}
        self._version = -1
        self._cooperator = Cooperator(scheduler=lambda work: reactor.callLater(0.0, work))
        self._work: CooperativeTask[Any] | None = None
        self._unsent: deque[tuple[bytes, deque[Reader], int]] = deque()  # with the readers added so far
        self._added = 0
        self._isSending = False

    def publish(self, kind: str, content: object) -> None:
        """Send an event to all readers, after earlier events; for too many of these readers reload all."""
        self._number += 1
        event = encoded(self._number, kind, content)
        self._last.append((self._number, event))
        if len(self._unsent) > 1:  # the first one is being sent
            last, readers, added = self._unsent[-1]
            if added == self._added and len(last) + len(event) <= _JOINED:
                self._unsent[-1] = last + event, readers, added
                return
        if len(self._unsent) >= _REPEATED:
            self._unsent.clear()
            event = self.resync()
        self._unsent.append((event, deque(self.readers), self._added))
        if not self._isSending:
            sending = self._sendAll()
            next(sending, None)
            if self._isSending:
                self._cooperator.cooperate(sending).whenDone().addErrback(Failure.trap, SchedulerStopped)

    def _sendAll(self) -> Iterator[None]:
        """Send queued events, with pauses; after an exception, readers reload everything."""
        self._isSending = True
        try:
            for _ in range(2):
                try:
                    yield from self._send()
                    break
                except Exception:
                    _log.failure("sending events to browsers failed; they reload everything")
                    self._unsent.clear()
                    self._unsent.append((self.resync(), deque(self.readers), self._added))
        finally:
            self._isSending = False

    def _send(self) -> Iterator[None]:
        """Send queued events, with pauses: a round of a large fabric has megabytes."""
        sent = 0
        while self._unsent:
            event, readers, _added = self._unsent[0]  # others after a pause, if there were too many
            if not readers:
                self._unsent.popleft()
            elif sent >= _OCTETS_AT_A_TIME:
                sent = 0
                yield
            elif (reader := readers.popleft()) in self.readers:
                sent += len(event) + _OVERHEAD
                with _log.failuresHandled("while sending an event to a reader, whose connection stays open"):
                    reader.send(event, self.seconds())

    def resync(self) -> bytes:
        """The event that makes a reader reload everything."""
        return encoded(self._number, "resync", {})

    def findingChanged(self, event: FindingEvent) -> None:
        """Send readers a finding that was raised, cleared or found again, or has another state or cause."""
        self.publish("finding", FINDINGS.toDict(self._watch.context(), event.entry))

    def fabricChanged(self) -> None:
        """Send readers a round: whether there are findings, and links whose state has changed."""
        if not self.readers:
            if self._edges:  # which change unseen: a reader that comes back has missed them
                self._edges.clear()
                self._last.clear()
                self._number += 1
            return
        context = self._watch.context()
        version = context.poller.version
        if version != self._version:
            self._version = version
            self.publish("fabric", {"version": version})
        self._compare(context, isRound=True)

    def _compare(self, context: PageContext, isRound: bool) -> None:
        """Compare links with their former state; while that is being done, it waits for the next round."""
        if self._work is None:
            self._work = self._cooperator.cooperate(self._sendRound(context, isRound))
            self._work.whenDone().addErrback(self._broke)

    def _broke(self, failure: Failure) -> None:
        self._work = None
        if not failure.check(SchedulerStopped):
            _log.failure("sending a round to browsers failed", failure)

    def _sendRound(self, context: PageContext, isRound: bool) -> Iterator[None]:
        """
        Send a round to all readers, with pauses: a large fabric has twenty thousand links between switches.

        @param isRound: False to learn the states that a first reader sees in the topology, and send nothing.
        """
        edges: dict[str, dict[str, Any]] = {}
        changed: list[tuple[float, str, dict[str, Any]]] = []
        found = yield from bundles(context.fabric)
        for number, (ends, ports) in enumerate(found.items()):
            name = bundleName(ends)
            state = edge(context, ports)
            before = edges[name] = self._edges.get(name, state)  # new links are read with the topology
            if before != state:
                changed.append((_difference(before, state), name, state))
            if number % _EDGES_AT_A_TIME == 0:
                yield
        changed.sort(key=itemgetter(0), reverse=True)
        sent = {name: state for _size, name, state in changed[:MOST_EDGES]}
        yield
        self._edges = {**edges, **sent}
        self._work = None
        if isRound:
            rows = [{"id": name, **state} for name, state in sent.items()]
            self.publish("round", {**overview(context), "edges": rows})

    def alive(self) -> None:
        """Send all readers a keepalive comment."""
        for reader in list(self.readers):
            with _log.failuresHandled("while sending a comment to a reader, whose connection stays open"):
                reader.alive()

    def answer(self, request: Request) -> bytes | int:
        """Begin a response of events, from the one after C{Last-Event-ID} on, which does not end."""
        if request.postpath:
            return sendJSON(request, 404, {"error": "there is nothing below the resource of events"})
        if request.args:
            return sendJSON(request, 400, {"error": "events have no parameters"})
        if len(self.readers) >= MOST_READERS:
            request.setHeader("Retry-After", b"60")
            return sendJSON(request, 503, {"error": f"at most {MOST_READERS} readers are allowed"})
        request.setHeader("Content-Type", "text/event-stream")
        request.setHeader("X-Accel-Buffering", "no")
        if request.method == b"HEAD":
            return b""
        last = request.getHeader(b"last-event-id") or b""
        reader = self.add(request, int(last) if last.isdigit() and len(last) < 19 else None)
        request.notifyFinish().addErrback(lambda _: self.remove(reader))
        return NOT_DONE_YET

    def add(self, request: Request, lastNumber: int | None) -> Reader:
        """Add a reader of all events from now on, and of stored ones after C{lastNumber}, its last one."""
        reader = Reader(self, request)
        request.registerProducer(reader, True)
        self.readers[reader] = None
        self._added += 1
        try:
            if not self._edges:
                self._compare(self._watch.context(), isRound=False)
            request.write(_RETRY)
            for event in self._missed(lastNumber):
                reader.send(event, self.seconds())
        except BaseException:
            self.remove(reader)
            request.unregisterProducer()
            raise
        return reader

    def _missed(self, lastNumber: int | None) -> Iterable[bytes]:
        if lastNumber is None or lastNumber == self._number:
            return []
        oldest = self._last[0][0] if self._last else self._number + 1
        if not oldest - 1 <= lastNumber <= self._number:
            return [self.resync()]
        return [event for number, event in self._last if number > lastNumber]

    def remove(self, reader: Reader) -> None:
        """Remove a reader whose connection is lost."""
        self.readers.pop(reader, None)
        reader.request.producer = None  # which is a reference cycle

    def close(self) -> None:
        """End all answers: the monitor stops."""
        self._cooperator.stop()
        self.disconnect()

    def disconnect(self) -> None:
        """End all answers; readers that still have access connect again."""
        for reader in list(self.readers):
            self.remove(reader)
            with _log.failuresHandled("while ending the answer of a reader"):
                reader.request.unregisterProducer()
                reader.request.finish()
