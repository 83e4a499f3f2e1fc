"""C{txrdma pingpong}: options and output formats."""

from __future__ import annotations

import csv
import io
import json

from twisted.internet.address import IPv4Address, IPv6Address
from twisted.python.usage import UsageError
from twisted.trial.unittest import SynchronousTestCase

from txrdma.commands.formats.pingpongtables import bandwidthTable, histogramTable, latencyTable
from txrdma.commands.pingpong import CommandOptions, deviceAt
from txrdma.pingpong.measurement import Measurement
from txrdma.pingpong.plan import Measure, Test, Transfer
from txrdma.pingpong.report import asDict, COLUMNS, CSVReport, sizesFrom
from txrdma.pingpong.run import ALL_SIZES
from txrdma.pingpong.statistics import Samples
from txrdma.test.support.tables import shown


def parsed(*words: str) -> CommandOptions:
    """Return the options of a command line."""
    options = CommandOptions()
    options.parseOptions(words)
    return options


def latency() -> Measurement:
    """Return a result of 1000 messages, from 1 to 1000 microseconds."""
    samples = Samples(range(1000, 1_001_000, 1000))
    return Measurement(Test(check=True), 1000, 10**9, samples, route="rocev2", wrong=2)


def bandwidth() -> Measurement:
    """Return a result of 1000 megabytes in two seconds."""
    test = Test(Transfer.WRITE, Measure.BIDIRECTIONAL, size=1_000_000)
    return Measurement(test, 1000, 2 * 10**9, peak=6e8, lost=3, interrupted=True, route="shared-memory")


class OptionsTests(SynchronousTestCase):
    def test_usual(self) -> None:
        """Without a host, the command serves; with one it measures sends, and with C{--local} everything."""
        self.assertTrue(parsed().isServer)
        series = parsed("192.0.2.1").series()
        self.assertEqual(series.transfers, (Transfer.SEND,))
        self.assertEqual(series.measures, (Measure.LATENCY, Measure.BANDWIDTH))
        self.assertEqual(parsed("--local").series().transfers, tuple(Transfer))
        self.assertIn("[default: send; --local: all]", " ".join(str(CommandOptions()).split()))

    def test_optionsMayPrecedeOrFollowHost(self) -> None:
        options = parsed("-c", "host", "--test", "ud,read", "-s64,4K", "--seconds=2", "-n", "7", "--csv", "-")
        series = options.series()
        self.assertEqual((options["host"], options["csv"], series.check), ("host", "-", True))
        self.assertEqual(series.transfers, (Transfer.UD, Transfer.READ))
        self.assertEqual((series.sizes, series.iterations, series.seconds), ((64, 4096), 7, 2.0))

    def test_allIsEveryPowerOfTwoTo8MiB(self) -> None:
        sizes = parsed("--local", "--all").series().sizes
        self.assertEqual((sizes, len(sizes), sizes[0], sizes[-1]), (ALL_SIZES, 23, 2, 8 << 20))

    def test_sizesMayHaveUnits(self) -> None:
        self.assertEqual(sizesFrom("2,1k,4KiB,1MB,1G"), (2, 1024, 4096, 1 << 20, 1 << 30))
        for wrong in ("", "x", "1,", "-1", "1.5k", "k", "٣"):
            self.assertRaises(ValueError, sizesFrom, wrong)

    def test_invalidOptionsAreRefusedFirst(self) -> None:
        for words in (
            ("--test", "dance"),
            ("--measure", "height"),
            ("--size", "0"),
            ("--size", "64", "--all"),
            ("--mtu", "1000"),
            ("--depth", "0"),
            ("--seconds", "0"),
            ("--iterations", "-5"),
            ("host", "--local"),
            ("host", "--listen", "7"),
            ("--local", "--compatible"),
            ("--compatible", "--test", "read"),
            ("--compatible", "--size", "1,2"),
            ("host", "another"),
            ("host", "--csv", "-", "--json"),
            ("--nonsense",),
        ):
            self.assertRaises(UsageError, parsed, *words)

    def test_defaultsAreThoseOfPrograms(self) -> None:
        game = parsed("--compatible").game()
        self.assertEqual(
            (game.transfer, game.size, game.iterations, game.warmup), (Transfer.SEND, 4096, 1000, 0)
        )
        game = parsed("--compatible", "host", "--test", "ud", "-n", "5").game()
        self.assertEqual((game.transfer, game.size, game.iterations), (Transfer.UD, 2048, 5))

    def test_defaultDeviceIsAtLocalAddressOfTCP(self) -> None:
        self.assertEqual(deviceAt(IPv4Address("TCP", "192.0.2.7", 1)), "soft:192.0.2.7")
        self.assertEqual(deviceAt(IPv6Address("TCP", "::1", 1)), r"soft:\:\:1")
        self.assertEqual(deviceAt(IPv6Address("TCP", "::ffff:192.0.2.7", 1)), "soft:192.0.2.7")
        self.assertEqual(deviceAt(None), "soft:127.0.0.1")


class ReportTests(SynchronousTestCase):
    def test_latencyTable(self) -> None:
        text = shown(latencyTable([latency()]))
        row = next(line for line in text.splitlines() if "send" in line)
        cells = [cell.strip() for cell in row.strip("│").split("│")]
        self.assertEqual(
            cells,
            ["send", "64", "1000", "1.00", "500.00", "500.50", "900.00", "990.00", "999.00", "1000.00"]
            + ["288.67", "rocev2, 2 wrong"],
        )

    def test_bandwidthsAreDecimalWithMessagesPerSecond(self) -> None:
        text = shown(bandwidthTable([bandwidth()]))
        row = next(line for line in text.splitlines() if "both ways" in line)
        cells = [cell.strip() for cell in row.strip("│").split("│")]
        self.assertEqual(
            cells,
            ["write both ways", "1000000", "1000", "500.00", "600.00", "4.000", "500"]
            + ["shared-memory, 3 lost, interrupted"],
        )

    def test_fullestBinHasLongestBar(self) -> None:
        rows = [line for line in shown(histogramTable(latency())).splitlines() if line.startswith("│")]
        cells = [[cell.strip() for cell in row.strip("│").split("│")] for row in rows]
        self.assertEqual(sum(int(cell[2]) for cell in cells), 1000)
        self.assertEqual(cells[-1][:3], ["990.01", "1000.00", "10"])

    def test_jsonHasValuesInNanosecondsAndBytes(self) -> None:
        reported = json.loads(json.dumps([asDict(latency()), asDict(bandwidth())]))
        self.assertEqual(reported[0]["latency"]["p99"], 990_000)
        self.assertEqual(sum(bin["count"] for bin in reported[0]["histogram"]), 1000)
        self.assertEqual((reported[0]["wrong"], "bandwidth" in reported[0]), (2, False))
        self.assertEqual((reported[1]["bandwidth"], reported[1]["messageRate"]), (5e8, 500.0))
        self.assertEqual(
            (reported[1]["lost"], reported[1]["interrupted"], "wrong" in reported[1]), (3, True, False)
        )

    def test_csvHasRowForEachTestWrittenImmediately(self) -> None:
        out = io.StringIO()
        report = CSVReport(out)
        report.add(latency())
        self.assertEqual(len(out.getvalue().splitlines()), 2)
        report.add(bandwidth())
        one, other = csv.DictReader(io.StringIO(out.getvalue()))
        self.assertEqual(tuple(one), COLUMNS)
        self.assertEqual((one["median"], one["bandwidth"]), ("500000", ""))
        self.assertEqual((other["median"], other["bandwidth"], other["lost"]), ("", "500000000.0", "3"))
