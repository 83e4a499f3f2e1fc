"""
A series of tests: which there are, in what order, and what becomes of each.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Final

from txrdma.error import InvalidRequest, RDMAError
from txrdma.iba.verbs import QPKind
from txrdma.pingpong.measurement import Measurement
from txrdma.pingpong.plan import LinkSettings, Measure, Test, Transfer
from txrdma.pingpong.session import Client

ALL_SIZES: Final = tuple(1 << power for power in range(1, 24))
"""2 bytes to 8 MiB."""

_ATOMIC_SIZE: Final = 8
_USUAL_LATENCY_SIZE: Final = 64
_USUAL_BANDWIDTH_SIZE: Final = 1 << 16
_LONGEST_DATAGRAM: Final = 4096


@dataclass(frozen=True, slots=True)
class Series:
    """
    What is to be measured.

    @ivar sizes: bytes of messages; none said is 64 for latency and 64 KiB, or a datagram, for bandwidth.
    """

    transfers: Sequence[Transfer] = (Transfer.SEND,)
    measures: Sequence[Measure] = (Measure.LATENCY, Measure.BANDWIDTH)
    sizes: Sequence[int] = ()
    iterations: int = 0
    seconds: float = 0.5
    warmup: int = 10
    depth: int = 64
    mtu: int = 0
    inline: int = 0
    check: bool = False

    def settings(self, transfer: Transfer) -> LinkSettings:
        """Of the link for all tests of that sort."""
        return LinkSettings(
            kind=transfer.kind,
            size=max(size for measure in self.measures for size in self._sizes(transfer, measure)),
            depth=self.depth,
            mtu=self.mtu,
            inline=self.inline,
            check=self.check,
            atomics=transfer is Transfer.ATOMIC,
        )

    def tests(self, transfer: Transfer, settings: LinkSettings) -> Iterator[Test]:
        """Those of that sort which fit through the link that is there."""
        most = min(settings.size, settings.mtu) if settings.kind is QPKind.UD else settings.size
        for measure in self.measures:
            for size in self._sizes(transfer, measure):
                if size > most and not self.sizes:
                    size = most  # nobody has asked for it
                if size <= most:
                    yield Test(
                        transfer,
                        measure,
                        size,
                        self.iterations,
                        0.0 if self.iterations else self.seconds,
                        self.warmup,
                        min(self.depth, settings.depth),
                        min(self.inline, settings.inline),
                        self.check,
                    )

    def _sizes(self, transfer: Transfer, measure: Measure) -> Sequence[int]:
        if transfer is Transfer.ATOMIC:
            return (_ATOMIC_SIZE,)
        if self.sizes:
            return self.sizes
        if measure is Measure.LATENCY:
            return (_USUAL_LATENCY_SIZE,)
        return (_LONGEST_DATAGRAM if transfer is Transfer.UD else _USUAL_BANDWIDTH_SIZE,)


class Running:
    """
    A series under way.

    @ivar test: what is measured at present.
    @ivar isInterrupted: nothing new is begun.
    """

    def __init__(
        self,
        client: Client,
        series: Series,
        report: Callable[[Measurement], None],
        note: Callable[[str], None] = lambda line: None,
    ) -> None:
        """
        @param report: hears of each measurement.
        @param note: hears what else is worth knowing.
        """
        self._client = client
        self._series = series
        self._report = report
        self._note = note
        self.test: Test | None = None
        self.isInterrupted = False

    async def run(self) -> None:
        """
        One after the other.

        @raise txrdma.error.RDMAError: it could not go on.
        """
        series = self._series
        for transfer in series.transfers:
            if self.isInterrupted:
                return
            settings = await self._client.open(series.settings(transfer))
            tests = list(series.tests(transfer, settings))
            self._noteMissing(transfer, tests, settings)
            for self.test in tests:
                if self.isInterrupted:
                    return
                try:
                    measurement = await self._client.run(self.test)
                except RDMAError:
                    if self._client.unfinished is not None:
                        self._report(self._client.unfinished)
                    raise
                if measurement.messages or not measurement.interrupted:
                    self._report(measurement)

    def progress(self) -> int:
        """Messages of the present test."""
        return self._client.progress()

    def interrupt(self) -> None:
        """End with what there is."""
        self.isInterrupted = True
        self._client.interrupt()

    def _noteMissing(self, transfer: Transfer, tests: Sequence[Test], settings: LinkSettings) -> None:
        done = {test.size for test in tests}
        missing = [size for size in self._series.sizes if size not in done]
        if not missing or transfer is Transfer.ATOMIC:
            return
        most = min(settings.size, settings.mtu) if settings.kind is QPKind.UD else settings.size
        if not tests:
            raise InvalidRequest(f"{transfer.value}: messages have at most {most} bytes here")
        self._note(f"{transfer.value}: sizes above {most} bytes are left out, they do not fit")
