"""The history for an engine: rows as samples, and the findings about them."""

from __future__ import annotations

from collections.abc import Iterable

from twisted.internet.defer import fail
from twisted.internet.task import Clock
from twisted.trial.unittest import SynchronousTestCase

from txrdma.error import DeviceUnavailable
from txrdma.kit.remotesender import CROWDED, RemoteSender
from txrdma.kit.spool import Spool
from txrdma.monitor.series import remotewriter
from txrdma.monitor.series.remotewriter import MOST_ROWS, RemoteWriter
from txrdma.monitor.series.rows import CORRECTIONS, Row, TRAFFIC
from txrdma.test.support.httpagents import Prepared, PreparedAgent
from txrdma.test.support.monitor.samples import isMissing, MISSING, Sample, samplesIn
from txrdma.test.support.monitor.storecontract import correction, OTHER, PORT, reading
from txrdma.test.unit.kit.test_remotesender import AWAY, inThread, OK, URL


class RemoteWriterTests(SynchronousTestCase):
    if isMissing:
        skip = MISSING

    def setUp(self) -> None:
        self.clock = Clock()
        self.clock.advance(5000.0)
        self.agent = PreparedAgent(OK)
        self.folder = self.mktemp()
        self.writer = self.started(("zone", "a"), ("cluster", "b"), ("host", "c"), ("Fabric", "d"))

    def started(self, *labels: tuple[str, str]) -> RemoteWriter:
        spool = Spool(self.folder, 1 << 20)
        sender = RemoteSender(self.clock, self.agent, URL, {}, 10.0, spool, inThread)
        writer = RemoteWriter(self.clock, sender, labels, inThread)
        writer.start()
        self.addCleanup(writer.stop)
        return writer

    def batch(self, rows: Iterable[Row] = (), seconds: float = 5.0) -> None:
        self.writer.add(rows)
        self.clock.advance(seconds)

    def samples(self) -> list[list[Sample]]:
        """Return the samples of each request, and discard the requests."""
        found = [samplesIn(request.body) for request in self.agent.requests]
        self.agent.requests.clear()
        return found

    def test_series(self) -> None:
        """Each known value of a row is a sample; its labels, with those of the configuration, are sorted."""
        self.batch([reading(100, None, 8.0), correction(120, 5, OTHER)])
        ((*found,),) = self.samples()
        for labels, _value, _time in found:
            self.assertEqual(list(labels), sorted(labels))
            self.assertEqual(labels.pop("__name__"), "infiniband_history")
            for name, text in (("zone", "a"), ("cluster", "b"), ("host", "c"), ("Fabric", "d")):
                self.assertEqual(labels.pop(name), text)
            self.assertEqual(labels.pop("guid"), "0x0000000000000001")
        traffic = [(one["column"], value) for one, value, time in found if one["port"] == "3"]
        expected = dict.fromkeys(TRAFFIC.seriesNames, 0.0)
        expected.update(seconds=1.0, peakXmit=8.0)
        del expected["portXmitData"]
        self.assertEqual(traffic, list(expected.items()))
        corrections = [(one["column"], value, time) for one, value, time in found if one["port"] == "4"]
        columns = CORRECTIONS.seriesNames
        self.assertEqual(
            corrections, [("fec_seconds", 60.0, 120000), (columns[1], 0.0, 120000), (columns[2], 5.0, 120000)]
        )

    def test_once(self) -> None:
        """A request has one sample of each series and a limited length; times are in order."""
        self.patch(remotewriter, "_MOST_SAMPLES", 30)
        rows = [reading(at, 1, portKey=(PORT[0], port)) for at in (10, 20) for port in range(5)]
        self.batch(rows)
        several = self.samples()
        seen = []
        for samples in several:
            names = [tuple(labels.items()) for labels, _value, _time in samples]
            self.assertEqual(len(set(names)), len(names))
            self.assertLess(len(names), 30 + len(TRAFFIC.seriesNames))
            seen += [(time, labels["port"]) for labels, _value, time in samples]
        self.assertEqual(len(seen), 10 * len(TRAFFIC.seriesNames))
        self.assertEqual(list(dict.fromkeys(seen)), [(row.at * 1000, str(row.portKey[1])) for row in rows])

    def test_away(self) -> None:
        """An unreachable engine is a finding, which ends with the first request that it accepts."""
        self.agent.usual = AWAY
        self.batch([reading(4990, 1)])
        (found,) = self.writer.findings()
        self.assertEqual(found.kind, "remote-write-stopped")
        count = len(TRAFFIC.seriesNames)
        self.assertIn(f"{count} samples wait, the oldest for 15 s", found.text)
        self.agent.usual = OK
        self.batch(seconds=5.0)
        self.batch(seconds=5.0)
        self.assertEqual((self.writer.findings(), self.writer.sender.sent), ([], count))

    def test_lost(self) -> None:
        """Samples that are lost are a finding for an hour, with their number and the reason."""
        self.agent.usual = Prepared(400, b"too old")
        self.batch([reading(100, 1)])
        (found,) = self.writer.findings()
        count = len(TRAFFIC.seriesNames)
        self.assertEqual(found.kind, "remote-write-lost")
        self.assertEqual(found.text, f"{count} samples were lost: the receiver refused them (400)")
        self.clock.advance(3600.0)
        self.assertEqual(self.writer.findings(), [])

    def test_crowd(self) -> None:
        """Rows queued while an engine is slow are bounded; the oldest are dropped and counted."""
        self.assertEqual(self.writer._mostRows, MOST_ROWS)
        self.patch(self.writer, "_mostRows", 2)
        self.writer.add([reading(at, 1) for at in (10, 20, 30)])
        self.assertEqual(self.writer.sender.lost, {CROWDED: len(TRAFFIC.seriesNames)})
        self.batch()
        self.assertEqual([samples[0][2] for samples in self.samples()], [20000, 30000])

    def test_disk(self) -> None:
        """A failure to write a spill is a failure of the loop, which the supervisor reports."""
        self.agent.usual = AWAY
        spool = self.writer.sender._spool
        self.patch(spool, "append", lambda *_: (_ for _ in ()).throw(DeviceUnavailable("disk full")))
        self.batch([reading(100, 1)])
        self.assertEqual(self.writer.loop.problem, "disk full")

    def test_noThread(self) -> None:
        """Rows that could not be encoded are sent in the next run, before later ones."""
        restore = self.patch(self.writer, "_inThread", lambda *_: fail(MemoryError("no memory"))).restore
        self.batch([reading(100, 1)])
        self.assertEqual(self.samples(), [])
        self.assertEqual(len(self.flushLoggedErrors(MemoryError)), 1)
        restore()
        self.batch([reading(110, 1)])
        self.clock.advance(5.0)
        times = [sorted({at for _labels, _value, at in request}) for request in self.samples()]
        self.assertEqual(times, [[100000], [110000]])

    def test_behind(self) -> None:
        """After a pause the backlog is sent without waiting for the next batches."""
        self.patch(remotewriter, "_MOST_SAMPLES", 1)
        self.agent.usual = AWAY
        self.batch([reading(at, 1) for at in range(100)])
        self.agent.requests.clear()

        def slowly(_: object) -> Prepared:
            self.clock.rightNow += 1.0
            return OK

        self.agent.usual = slowly
        self.clock.advance(5.0)
        for _ in range(30):
            self.clock.advance(0.0)
        self.assertEqual((len(self.agent.requests), self.writer.sender.waiting), (100, 0))

    def test_stop(self) -> None:
        """At the end the remaining rows are stored, and the next process sends them."""
        self.writer.add([reading(100, 1)])
        self.successResultOf(self.writer.stop())
        self.successResultOf(self.writer.stop())
        self.assertEqual((self.agent.requests, self.clock.getDelayedCalls()), ([], []))
        self.writer = self.started()
        self.batch()
        self.assertEqual([time for _labels, _value, time in self.samples()[0]][:1], [100000])
