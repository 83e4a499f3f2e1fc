"""Server-sent events: contents, replay, and isolation of slow readers."""

from __future__ import annotations

import json
import tracemalloc
from collections.abc import Iterator
from typing import Any
from unittest.mock import Mock

from twisted.internet.testing import StringTransport
from twisted.web.test.requesthelper import DummyRequest

from txrdma.monitor.web import events
from txrdma.monitor.web.events import EventHub, MOST_BYTES, MOST_READERS, MOST_WAITING, STALLED_SECONDS
from txrdma.test.support.monitor.fetching import Connection
from txrdma.test.unit.monitor.test_rest import SiteTestCase

Logged = tuple[int, str, dict[str, Any]]


def reportedNow(connection: Connection) -> list[Logged]:
    """Return the events that a reader has received, each with its number and its kind."""
    found = []
    for part in connection.answer.text.split("\n\n"):
        fields = dict(line.split(": ", 1) for line in part.split("\n") if not line.startswith(":") and line)
        if "data" in fields:
            found.append((int(fields["id"]), fields["event"], json.loads(fields["data"])))
    return found


class EventTests(SiteTestCase):
    def reader(self, **heads: str) -> Connection:
        connection = Connection(self.site.factory)
        connection.ask("/api/v1/events", **heads)
        self.clock.advance(0.0)
        return connection

    def pause(self, connection: Connection) -> None:
        producer = connection.transport.producer
        assert producer is not None  # HTTP's producer, which controls that of the request
        producer.pauseProducing()

    def kinds(self, connection: Connection) -> list[str]:
        return [kind for _number, kind, _content in reportedNow(connection)]

    def test_events(self) -> None:
        """Each round is reported with the links whose load has changed; so are findings."""
        self.fabric.growCounters("left", 3, portXmitData=1e9)
        reader = self.reader()
        self.assertEqual(reader.answer.heads["content-type"], "text/event-stream")
        self.started()
        self.assertEqual(self.kinds(reader), ["fabric", "round", "round", "round", "round"])
        rounds = [content for _number, kind, content in reportedNow(reader) if kind == "round"]
        self.assertEqual([len(content["edges"]) for content in rounds], [0, 1, 0, 0])
        self.assertGreater(rounds[1]["edges"][0]["load"], 0.1)
        self.assertTrue(rounds[-1]["isWell"])
        self.fabric.cut("c")
        self.pump(20.0)
        (found,) = [content for _number, kind, content in reportedNow(reader) if kind == "finding"]
        self.assertEqual((found["kind"], found["isOpen"]), ("node-gone", True))
        self.assertFalse(reportedNow(reader)[-1][2]["isWell"])

    def test_manyLinks(self) -> None:
        """Of the links that have changed, those beyond a limit follow in the next round."""
        self.fabric.growCounters("left", 3, portXmitData=1e9)
        self.patch(events, "MOST_EDGES", 0)
        reader = self.reader()
        self.started()
        self.patch(events, "MOST_EDGES", 1)
        self.pump(self.settings.intervalSeconds)
        rounds = [content for _number, kind, content in reportedNow(reader) if kind == "round"]
        self.assertEqual([len(content["edges"]) for content in rounds], [0, 0, 0, 0, 1])

    def test_alone(self) -> None:
        """A reader that returns after a time without readers must reload, and gets later changes."""
        first = self.reader()
        self.started()
        last = reportedNow(first)[-1][0]
        first.close()
        self.assertEqual(self.kinds(self.reader(Last_Event_ID=str(last))), [])
        for reader in list(self.site.hub.readers):
            self.site.hub.remove(reader)
        self.pump(self.settings.intervalSeconds)
        back = self.reader(Last_Event_ID=str(last))
        self.fabric.growCounters("left", 3, portXmitData=1e9)
        self.pump(2 * self.settings.intervalSeconds)
        self.assertEqual(self.kinds(back), ["resync", "round", "round"])
        self.assertEqual(len(reportedNow(back)[-1][2]["edges"]), 1)

    def test_again(self) -> None:
        """A reader that reconnects gets the events that it missed, or, if too many, a request to reload."""
        first = self.reader()
        self.started(55.0)
        numbers = [number for number, _kind, _content in reportedNow(first)]
        self.assertEqual(reportedNow(self.reader(Last_Event_ID=str(numbers[-3]))), reportedNow(first)[-2:])
        self.assertEqual(reportedNow(self.reader(Last_Event_ID=str(numbers[-1]))), [])
        self.assertEqual(reportedNow(self.reader()), [])
        self.assertEqual(self.kinds(self.reader(Last_Event_ID="999999")), ["resync"])
        for _ in range(300):
            self.site.hub.publish("round", {})
        self.assertEqual(self.kinds(self.reader(Last_Event_ID="1")), ["resync"])

    def test_otherProcess(self) -> None:
        """A reader that reconnects to a new process is requested to reload."""
        former = EventHub(self.clock, self.site.hub._watch)
        former.publish("round", {})
        last = former.resync().split(b"\n")[0].removeprefix(b"id: ").decode()
        self.clock.advance(10.0)
        hub = EventHub(self.clock, self.site.hub._watch)
        for _ in range(5):
            hub.publish("round", {})
        request: Any = DummyRequest([])
        request.registerProducer = lambda producer, isStreaming: None
        hub.add(request, int(last))
        self.assertIn(b"event: resync", b"".join(request.written))

    def test_paused(self) -> None:
        """A paused reader gets its events later, in order; bytes, and the time of pauses, are limited."""
        request: Any = DummyRequest([])
        request.registerProducer = lambda producer, isStreaming: None
        request.transport = StringTransport()
        hub = self.site.hub
        reader = hub.add(request, None)
        for _ in range(3):
            reader.pauseProducing()
            written = len(request.written)
            hub.alive()
            events = [bytes([number]) * (MOST_BYTES // 2) for number in range(2)]
            for event in events:
                reader.send(event, hub.seconds())
            self.assertEqual(len(request.written), written)
            reader.resumeProducing()
            self.assertEqual(request.written[written:], events)
        reader.pauseProducing()
        for event in (*events, b"more"):
            reader.send(event, hub.seconds())
        self.assertEqual(reader.dropped, 3)
        begun = hub.seconds()
        self.clock.advance(STALLED_SECONDS / 2)
        reader.pauseProducing()
        reader.send(b"later", begun + STALLED_SECONDS)
        self.assertTrue(request.transport.disconnecting)
        self.assertNotIn(reader, hub.readers)

    def test_long(self) -> None:
        """Few events that are long are dropped for a reader that does not read, too."""
        slow = self.reader()
        self.pause(slow)
        self.started()
        for _ in range(6):
            self.site.hub.publish("round", {"filling": "x" * (MOST_BYTES // 4)})
        (reader,) = self.site.hub.readers
        self.assertLessEqual(reader._bytes, MOST_BYTES)
        self.assertGreater(reader.dropped, 0)

    def test_crowd(self) -> None:
        """If a fifth of 200 readers does not read, the others miss nothing, and memory remains bounded."""
        readers = [self.reader() for _ in range(200)]
        slow, fast = readers[::5], [reader for at, reader in enumerate(readers) if at % 5]
        for reader in slow:
            self.pause(reader)
        self.started()
        tracemalloc.start()
        self.addCleanup(tracemalloc.stop)
        before = tracemalloc.get_traced_memory()[0]
        content = {"filling": "x" * 50_000}
        for _ in range(50):
            self.site.hub.publish("round", content)
            self.clock.pump([0.0] * 10)
            for reader in fast:
                reader.transport.clear()
        grown = tracemalloc.get_traced_memory()[0] - before
        self.assertLess(grown, 8 << 20)  # less than 40 readers times 2 MB
        self.assertEqual({reader.dropped > 0 for reader in self.site.hub.readers}, {True, False})
        self.site.hub.publish("round", {"last": True})
        self.clock.pump([0.0] * 10)
        for reader in fast:
            self.assertIn(b'"last": true', reader.transport.value())
        for reader in slow:
            producer = reader.transport.producer
            assert producer is not None
            producer.resumeProducing()
            kinds = self.kinds(reader)
            self.assertIn("resync", kinds)
            self.assertLessEqual(len(kinds), MOST_WAITING + 1)
            self.assertLess(len(reader.transport.value()), 2 * MOST_BYTES)
            self.assertEqual(reportedNow(reader)[-1][2], {"last": True})

    def test_large(self) -> None:
        """A large event is sent in several reactor iterations, and a small one after it."""
        readers = [self.reader() for _ in range(4)]
        self.site.hub.publish("round", {"filling": "x" * (1 << 18)})
        self.site.hub.publish("finding", {})
        self.assertEqual([self.kinds(reader) for reader in readers], [["round"], [], [], []])
        lost = readers.pop()
        lost.close()
        self.clock.pump([0.0] * 10)
        self.assertEqual([self.kinds(reader) for reader in readers], 3 * [["round", "finding"]])
        self.assertEqual(self.kinds(lost), [])

    def test_manyReaders(self) -> None:
        """An event for 300 readers is sent in several reactor iterations: to each is a system call."""
        readers = [self.reader() for _ in range(300)]
        self.site.hub.publish("finding", {})
        self.assertIn(self.receivers(readers), range(100, 150))
        self.clock.pump([0.0] * 10)
        self.assertEqual(self.receivers(readers), 300)

    def receivers(self, readers: list[Connection]) -> int:
        """Return the number of readers that have received a finding."""
        return sum("finding" in self.kinds(reader) for reader in readers)

    def test_manyFindings(self) -> None:
        """Findings of a fault that 200 readers cannot get at once are joined, and later readers get none."""
        readers = [self.reader() for _ in range(200)]
        for number in range(400):
            self.site.hub.publish("finding", {"number": number})
        later = self.reader()
        self.site.hub.publish("round", {})
        self.clock.pump([0.0] * 20)
        for reader in readers:
            events = reportedNow(reader)
            self.assertEqual([one[2].get("number") for one in events], [*range(400), None])
        self.assertEqual(self.kinds(later), ["round"])

    def test_burst(self) -> None:
        """Readers reload everything if too many events wait until a large one has been sent."""
        readers = [self.reader() for _ in range(3)]
        self.site.hub.publish("round", {"filling": "x" * (1 << 18)})
        for _ in range(events._REPEATED + 44):
            self.site.hub.publish("finding", {"filling": "x" * (1 << 14)})
        self.clock.pump([0.0] * 200)
        for reader, first in zip(readers, (["round"], [], []), strict=True):
            self.assertEqual(self.kinds(reader), [*first, "resync", *["finding"] * 44])

    def test_stalled(self) -> None:
        """A reader that reads nothing for a minute is disconnected."""
        reader = self.reader()
        self.pause(reader)
        self.started(STALLED_SECONDS + 20.0)
        self.assertTrue(reader.transport.disconnecting)

    def test_most(self) -> None:
        """A reader above the limit is refused, and accepted when another one has disconnected."""
        readers = [self.reader() for _ in range(MOST_READERS)]
        self.assertEqual(self.reader().answer.code, 503)
        readers[7].close()
        self.assertEqual(self.reader().answer.code, 200)

    def test_failingReader(self) -> None:
        """A reader that raises does not keep others from keepalive comments, nor from the end of answers."""
        readers = [self.reader() for _ in range(2)]
        failing: Any = next(iter(self.site.hub.readers)).request
        for name in ("write", "finish"):
            self.patch(failing, name, Mock(side_effect=RuntimeError("simulated")))
        self.site.start()
        self.pump(16.0)
        self.assertIn(": alive", readers[1].answer.text)
        self.site.stop()
        self.assertEqual(self.site.hub.readers, {})
        self.assertTrue(readers[1].transport.disconnecting)
        self.assertEqual(len(self.flushLoggedErrors(RuntimeError)), 2)

    def test_interrupted(self) -> None:
        """Readers reload everything if an exception interrupts events, without waiting for another one."""
        hub, reader = self.site.hub, self.reader()
        usual, failing = hub._send, [ZeroDivisionError("simulated")]

        def send() -> Iterator[None]:
            if failing:
                raise failing.pop()
            yield from usual()

        self.patch(hub, "_send", send)
        hub.publish("finding", {})
        self.pump(1.0)
        self.assertEqual(self.kinds(reader)[-1], "resync")
        self.assertEqual(len(self.flushLoggedErrors(ZeroDivisionError)), 1)
