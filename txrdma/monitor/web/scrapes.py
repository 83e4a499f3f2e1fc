"""
C{/metrics}: the metrics of one or several fabrics, made in pieces between which the reactor serves others.

A scrape of a large fabric has hundreds of megabytes. It is compressed while it is made, once for all scrapers
that request the same within L{SHARED_SECONDS} and a round of readings, and each scraper receives the pieces
at its own speed. If one has not read a piece after a minute, its connection is closed.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, Final
from zlib import compressobj, decompressobj

from zope.interface import implementer

from twisted.internet.interfaces import IPushProducer, IReactorTime
from twisted.internet.task import CooperativeTask, Cooperator, SchedulerStopped, TaskStopped
from twisted.logger import Logger
from twisted.python.failure import Failure
from twisted.web.server import NOT_DONE_YET, Request

from txrdma.kit.delayedcalls import Timer
from txrdma.monitor.series.exposition import CONTENT_TYPE, exposed, Family
from txrdma.monitor.web.metrics import COLLECTORS, Metrics
from txrdma.monitor.web.rest import ReadOnly, sendText

_log = Logger()

MOST_SCRAPES: Final = 4
"""Maximum number of retained scrapes; for another one the oldest is dropped, with its connections."""

SHARED_SECONDS: Final = 10.0
"""Seconds for which a scrape is sent to further scrapers, unless there are newer readings."""

STALLED_SECONDS: Final = 60.0
"""Seconds after which the connection of a scraper ends that has not read what was sent."""

_STEP: Final = 1 << 18
"""Characters of text that are made at a time, which takes some milliseconds."""

_REFUSED: Final = re.compile(rb"\s*[qQ]=0(\.0*)?\s*")
"""The weight of a content coding that a client does not accept."""

_GZIP: Final = 31
"""Window bits of zlib for the format of gzip."""


class _Scrape:
    """A scrape, complete or in progress: compressed pieces, and the scrapers that receive them."""

    def __init__(self, request: object, state: object, at: float) -> None:
        self.request, self.state, self.at = request, state, at
        self.pieces: list[bytes] = []
        self.scrapers: dict[_Scraper, None] = {}
        self.isComplete = False
        self.task: CooperativeTask[Iterator[None]] | None = None

    def make(self, families: Iterator[Family | None]) -> Iterator[None]:
        """Make all pieces, with a pause after each step."""
        compressor = compressobj(1, wbits=_GZIP)
        made = 0
        for text in exposed(families):
            self._add(compressor.compress(text.encode("utf-8", "replace")))
            made += len(text)
            if made >= _STEP or not text:
                made = 0
                self._send()
                yield
        self._add(compressor.flush())
        self.isComplete = True
        self._send()

    def _add(self, piece: bytes) -> None:
        if piece:
            self.pieces.append(piece)

    def _send(self) -> None:
        for scraper in list(self.scrapers):
            with _log.failuresHandled("while metrics were sent to a scraper"):
                scraper.send()

    def abort(self) -> None:
        """End the making, and close the connections of all scrapers."""
        if self.task is not None and not self.isComplete:
            self.task.stop()
        for scraper in list(self.scrapers):
            scraper.abort()


@implementer(IPushProducer)
class _Scraper:
    """A request for metrics, which is sent a scrape at its own speed."""

    def __init__(self, reactor: IReactorTime, scrape: _Scrape, request: Request, isCompressed: bool) -> None:
        self._stalled = Timer(reactor)
        self._scrape = scrape
        self._request = request
        self._decompressor = None if isCompressed else decompressobj(wbits=_GZIP)
        self._sent = 0
        self._isPaused = False
        scrape.scrapers[self] = None
        request.notifyFinish().addBoth(lambda _: self.stopProducing())
        request.registerProducer(self, True)

    def send(self) -> None:
        """Send the pieces that are made, as far as the connection accepts them."""
        pieces = self._scrape.pieces
        while not self._isPaused and self._sent < len(pieces):
            piece = pieces[self._sent]
            self._sent += 1
            self._request.write(piece if self._decompressor is None else self._decompressor.decompress(piece))
        if self._scrape.isComplete and self._sent == len(pieces) and self in self._scrape.scrapers:
            self.stopProducing()
            self._request.unregisterProducer()
            self._request.finish()

    def abort(self) -> None:
        """Close the connection before the end, so that the scraper does not mistake it for a whole scrape."""
        self.stopProducing()
        transport: Any = self._request.transport
        transport.abortConnection()

    def pauseProducing(self) -> None:
        self._isPaused = True
        self._stalled.start(STALLED_SECONDS, self.abort)

    def resumeProducing(self) -> None:
        self._isPaused = False
        self._stalled.stop()
        self.send()

    def stopProducing(self) -> None:
        """Remove the scraper: it has received everything, or its connection is lost."""
        self._stalled.stop()
        self._scrape.scrapers.pop(self, None)


def _acceptsGzip(accepted: bytes) -> bool:
    """Return whether a header Accept-Encoding has gzip, and not with the weight 0 (RFC 9110, 12.5.3)."""
    return any(
        coding.strip().lower() == b"gzip" and not _REFUSED.fullmatch(weight)
        for coding, _, weight in (one.partition(b";") for one in accepted.split(b","))
    )


class Scrapes(ReadOnly):
    """C{/metrics}, with C{fabric} and C{collect[]} for a part of it."""

    def __init__(
        self,
        reactor: IReactorTime,
        several: Sequence[Metrics],
        measures: Callable[[], Iterable[Family]] | None,
    ) -> None:
        """@param measures: returns families that belong to no fabric of this process, or None."""
        super().__init__(self._answered)
        self._several = {metrics.watch.fabric: metrics for metrics in several}
        self._measures = measures
        self._reactor = reactor
        self._cooperator = Cooperator(scheduler=lambda work: reactor.callLater(0.0, work))
        self._scrapes: list[_Scrape] = []

    def stop(self) -> None:
        """End all scrapes."""
        for scrape in self._scrapes:
            scrape.abort()
        self._cooperator.stop()

    def _answered(self, request: Request) -> bytes | int:
        """Answer with all metrics, or those that the query selects."""
        every = {b"fabric": list(self._several), b"collect[]": list(COLLECTORS)}
        wanted = dict(every)
        for name, given in request.args.items():
            known = every.get(name, [])
            chosen = [one.decode("utf-8", "replace") for one in given]
            if not set(chosen) <= set(known):
                named = [f"{one.decode()} is one of {', '.join(of)}" for one, of in every.items() if any(of)]
                return sendText(request, 400, f"There are no parameters but these: {'; '.join(named)}.")
            wanted[name] = [one for one in known if one in chosen]
        isCompressed = _acceptsGzip(request.getHeader(b"accept-encoding") or b"")
        request.setHeader("Content-Type", CONTENT_TYPE)
        request.setHeader("Vary", "Accept-Encoding")
        if isCompressed:
            request.setHeader("Content-Encoding", "gzip")
        if request.method == b"HEAD":
            return b""
        scraper = _Scraper(self._reactor, self._scrape(*wanted.values()), request, isCompressed)
        try:
            scraper.send()
        except Exception:
            _log.failure("sending metrics failed, and the connection closes")
            scraper.abort()
        return NOT_DONE_YET

    def _families(self, fabrics: list[str], collectors: list[str]) -> Iterator[Family | None]:
        for fabric in fabrics:
            yield from self._several[fabric].families(collectors)
        if self._measures is not None and COLLECTORS[0] in collectors:
            yield from self._measures()

    def _scrape(self, fabrics: list[str], collectors: list[str]) -> _Scrape:
        """Return the scrape of a request: one that is shared, or another one, whose first step is done."""
        now = self._reactor.seconds()
        watches = [self._several[fabric].watch for fabric in fabrics]
        state = [(watch.context().state, watch.isActive) for watch in watches]
        for scrape in self._scrapes:
            isNew = scrape.state == state and now - scrape.at < SHARED_SECONDS
            if isNew and scrape.request == (fabrics, collectors):
                return scrape
        while len(self._scrapes) >= MOST_SCRAPES:
            oldest = min(self._scrapes, key=lambda one: (bool(one.scrapers), one.at))
            self._scrapes.remove(oldest)
            oldest.abort()
        made = _Scrape((fabrics, collectors), state, now)
        steps = made.make(self._families(fabrics, collectors))
        next(steps, None)
        if not made.isComplete:
            made.task = self._cooperator.cooperate(steps)
            made.task.whenDone().addErrback(self._failed, made)
        self._scrapes.append(made)
        return made

    def _failed(self, failure: Failure, scrape: _Scrape) -> None:
        if not failure.check(SchedulerStopped, TaskStopped):
            _log.failure("making metrics failed", failure)
            self._scrapes.remove(scrape)
            scrape.task = None
            scrape.abort()
