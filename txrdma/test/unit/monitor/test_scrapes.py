"""Scrapes: generated in pieces, for several scrapers at once, each at its own speed."""

from __future__ import annotations

import gzip
from collections.abc import Collection, Iterator

from txrdma.monitor.series.exposition import Family
from txrdma.monitor.web import scrapes
from txrdma.monitor.web.metrics import COLLECTORS, Metrics
from txrdma.monitor.web.scrapes import MOST_SCRAPES, SHARED_SECONDS, STALLED_SECONDS
from txrdma.test.support.monitor.fetching import Connection, fetch
from txrdma.test.unit.monitor.test_rest import SiteTestCase


class ScrapeTests(SiteTestCase):
    """Scrapes with a pause after each piece of text."""

    def setUp(self) -> None:
        super().setUp()
        self.started()
        self.whole = self.get("/metrics").text
        self.scraped: list[Collection[str]] = []
        families = Metrics.families

        def counted(metrics: Metrics, collectors: Collection[str] = COLLECTORS) -> Iterator[Family | None]:
            self.scraped.append(collectors)
            return families(metrics, collectors)

        self.patch(Metrics, "families", counted)
        self.patch(scrapes, "_STEP", 1)

    def ask(self, path: str = "/metrics", **heads: str) -> Connection:
        connection = Connection(self.site.factory)
        connection.ask(path, **heads)
        return connection

    def pause(self, connection: Connection, isPaused: bool = True) -> None:
        producer = connection.transport.producer
        assert producer is not None  # HTTP's producer, which controls that of the request
        if isPaused:
            producer.pauseProducing()
        else:
            producer.resumeProducing()

    def finish(self) -> None:
        self.clock.pump([0.0] * 5)

    def lines(self, text: str) -> set[str]:
        """Return the series about the fabric, without the metrics of the monitor itself."""
        return {line for line in text.splitlines() if "infiniband_" in line}

    def test_pieces(self) -> None:
        """A scrape in pieces has the same lines, compressed or not, and others are served meanwhile."""
        self.clock.advance(SHARED_SECONDS)
        plain, compressed = self.ask(), self.ask(Accept_Encoding="deflate, gzip;q=0.5")
        self.assertEqual(self.get("/api/v1/overview").code, 200)
        self.assertLess(len(compressed.transport.value()), len(self.whole) // 10)
        self.finish()
        for connection in (plain, compressed):
            self.assertEqual(self.lines(connection.answer.text), self.lines(self.whole))
        self.assertEqual(compressed.answer.heads["content-encoding"], "gzip")
        self.assertNotIn("content-encoding", plain.answer.heads)
        self.assertEqual(len(self.scraped), 1)

    def test_shared(self) -> None:
        """A scrape is generated once for all scrapers, until there are newer readings or it is too old."""
        self.pump(self.settings.intervalSeconds)
        for seconds, count in ((0.0, 1), (0.0, 1), (self.settings.intervalSeconds, 2), (0.0, 2)):
            self.pump(seconds)
            connection = self.ask()
            self.finish()
            self.assertIn("txrdma_monitor_readings_total", connection.answer.text)
            self.assertEqual(len(self.scraped), count)
        self.poller.stop()
        self.clock.advance(SHARED_SECONDS)
        self.ask()
        self.assertEqual(len(self.scraped), 3)

    def test_collect(self) -> None:
        """A query selects parts; an unknown part is refused with the names of the existing ones."""
        connection = self.ask("/metrics?collect[]=findings&collect[]=monitor")
        self.finish()
        text = connection.answer.text
        self.assertIn("txrdma_monitor_findings{", text)
        self.assertIn("txrdma_monitor_readings_total", text)
        self.assertNotIn("infiniband_", text)
        for query in ("collect[]=nothing", "fabric=north", "name=x"):
            self.assertEqual(self.get(f"/metrics?{query}").code, 400, query)
            self.assertIn("collect[] is one of monitor, ", self.get(f"/metrics?{query}").text)
            self.assertNotIn("fabric is", self.get(f"/metrics?{query}").text)  # this one has no name

    def test_method(self) -> None:
        """Metrics can only be read."""
        answer = fetch(self.site.factory, "/metrics", "OPTIONS")
        self.assertEqual((answer.code, answer.heads["allow"]), (405, "GET, HEAD"))
        answer = fetch(self.site.factory, "/metrics", "HEAD")
        self.assertEqual((answer.code, answer.body), (200, b""))

    def test_accepted(self) -> None:
        """A scrape is compressed only if the scraper accepts gzip."""
        for accepted, coding in (("gzip;q=0, br", None), ("br, GZIP; q=0.01", "gzip"), ("x-gzip", None)):
            connection = self.ask(Accept_Encoding=accepted)
            self.finish()
            self.assertEqual(connection.answer.heads.get("content-encoding"), coding, accepted)

    def test_slow(self) -> None:
        """A slow scraper gets data only when it reads; others are not delayed."""
        self.clock.advance(SHARED_SECONDS)
        slow, quick = self.ask(), self.ask()
        self.pause(slow)
        before = len(slow.transport.value())
        self.finish()
        self.assertEqual(self.lines(quick.answer.text), self.lines(self.whole))
        self.assertEqual(len(slow.transport.value()), before)
        self.pause(slow, False)
        self.assertEqual(self.lines(slow.answer.text), self.lines(self.whole))

    def test_stalled(self) -> None:
        """The connection of a scraper that reads nothing for a minute is closed; one that reads stays."""
        self.clock.advance(SHARED_SECONDS)
        stalled, slow = self.ask(), self.ask()
        for one in (stalled, slow):
            self.pause(one)
        self.finish()
        self.pump(STALLED_SECONDS - 1.0)
        self.pause(slow, False)
        self.assertFalse(stalled.isEnding)
        self.pump(1.0)
        self.assertTrue(stalled.transport.disconnected)
        self.pump(STALLED_SECONDS)
        self.assertEqual(self.lines(slow.answer.text), self.lines(self.whole))
        self.assertFalse(slow.transport.disconnected)

    def test_most(self) -> None:
        """Beyond the limit of scrapes the oldest one is cut off, and its scraper can detect that."""
        several: list[Connection] = []
        for _ in range(MOST_SCRAPES + 1):
            self.assertEqual([one.transport.disconnecting for one in several], [False] * len(several))
            self.clock.advance(SHARED_SECONDS)
            one = self.ask(Accept_Encoding="gzip")
            self.pause(one)
            several.append(one)
            self.finish()
        gone = [one.transport.disconnecting for one in several]
        self.assertEqual(gone, [True] + [False] * MOST_SCRAPES)
        body = several[0].transport.value().partition(b"\r\n\r\n")[2]
        self.assertNotIn(b"\r\n0\r\n\r\n", body)
        for one in several[1:]:
            self.pause(one, False)
            self.assertEqual(self.lines(one.answer.text), self.lines(self.whole))

    def test_left(self) -> None:
        """A scraper that disconnects does not end the scrape of another one."""
        self.clock.advance(SHARED_SECONDS)
        one, other = self.ask(), self.ask()
        one.close()
        self.finish()
        self.assertEqual(self.lines(other.answer.text), self.lines(self.whole))

    def test_stopped(self) -> None:
        """The end of the site closes the connections of scrapers."""
        self.clock.advance(SHARED_SECONDS)
        connection = self.ask()
        self.site.stop()
        self.assertTrue(connection.transport.disconnecting)

    def test_compressed(self) -> None:
        """Text retained for other scrapers is compressed."""
        self.clock.advance(SHARED_SECONDS)
        self.ask()
        self.finish()
        retained = b"".join(self.site._scrapes._scrapes[-1].pieces)
        self.assertEqual(self.lines(gzip.decompress(retained).decode()), self.lines(self.whole))
        self.assertLess(len(retained), len(self.whole) // 5)
