"""A series of tests: their parameters, order, and execution."""

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
"""Message sizes from 2 bytes to 8 MiB."""

_ATOMIC_SIZE: Final = 8
_USUAL_LATENCY_SIZE: Final = 64
_USUAL_BANDWIDTH_SIZE: Final = 1 << 16
_LONGEST_DATAGRAM: Final = 4096


@dataclass(frozen=True, slots=True)
class Series:
    """
    Parameters of a series of tests.

    @ivar sizes: bytes per message; by default 64 for latency, and 64 KiB (datagrams: 4096) for bandwidth.
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
        """Return the settings of the link for all tests of a transfer."""
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
        """Return the tests of a transfer whose messages are not too long for the link."""
        most = min(settings.size, settings.mtu) if settings.kind is QPKind.UD else settings.size
        for measure in self.measures:
            for size in self._sizes(transfer, measure):
                if size > most and not self.sizes:
                    size = most  # a default size may be reduced
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
    Execution of a series.

    @ivar test: current test.
    @ivar isInterrupted: whether the series was interrupted.
    """

    def __init__(
        self,
        client: Client,
        series: Series,
        report: Callable[[Measurement], None],
        note: Callable[[str], None] = lambda line: None,
    ) -> None:
        """
        @param report: called with each measurement.
        @param note: called with notes for the user.
        """
        self._client = client
        self._series = series
        self._report = report
        self._note = note
        self.test: Test | None = None
        self.isInterrupted = False

    async def run(self) -> None:
        """
        Run the tests one after the other.

        @raise txrdma.error.RDMAError: a test or the connection has failed.
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
        """Return the number of completed messages of the current test."""
        return self._client.progress()

    def interrupt(self) -> None:
        """Interrupt the current test, and begin no further tests."""
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
