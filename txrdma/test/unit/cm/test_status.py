"""Counters of communication managers, and the output of C{txrdma cm-stats}."""

from __future__ import annotations

import io
import json
import sys
from collections import Counter
from operator import itemgetter
from typing import Any

from twisted.internet.defer import Deferred
from twisted.internet.task import Clock
from twisted.trial.unittest import SynchronousTestCase

from txrdma.cm.status import byKind
from txrdma.commands.cm_stats import countersTable
from txrdma.commands.common import watching as _watching
from txrdma.commands.common.counted import ALL, CounterRates, withSums
from txrdma.test.support.tables import shown


class ShowingTests(SynchronousTestCase):
    def entry(self, factor: int) -> dict[str, Any]:
        """Return the entry of a process."""
        counters = Counter({"sent REQ": 3 * factor, "retried REQ": factor, "received REP": 2 * factor})
        gauges = {"managers": 1, "listeners": 2, "connections": {"ESTABLISHED": 5, "TIMEWAIT": 1}}
        return {"pid": 1, "command": ["python", "[a]"], "counters": byKind(counters), "gauges": gauges}

    def test_countersByKind(self) -> None:
        self.assertEqual(
            self.entry(1)["counters"], {"REQ": {"sent": 3, "retried": 1}, "REP": {"received": 2}}
        )

    def test_table(self) -> None:
        text = shown(countersTable([self.entry(1000), {"pid": 2, "error": "no answer: late"}]))
        for words in ("[a]", "5 ESTABLISHED", "1 TIMEWAIT", "2 listeners", "no answer: late"):
            self.assertIn(words, text)
        rows = {line.split("│")[3].strip(): line for line in text.splitlines() if line.count("│") > 8}
        self.assertEqual({*rows} - {""}, {"REQ", "REP"})
        self.assertEqual([cell.strip() for cell in rows["REQ"].split("│")[4:6]], ["3,000", "1,000"])

    def test_processWithoutMessages(self) -> None:
        quiet = self.entry(0) | {"counters": {}}
        self.assertIn("2 listeners", shown(countersTable([quiet])))

    def test_otherVersion(self) -> None:
        """A process that does not send what the table shows affects no other row, and no sum."""
        foreign = {"pid": 7, "command": [], "counters": {}}
        entries = [self.entry(5), foreign, self.entry(5)]
        table = shown(countersTable(withSums(entries)))
        self.assertIn("it probably has another version of txrdma (KeyError('gauges'))", table)
        self.assertIn("10 ESTABLISHED", table)  # the sum
        rows = _watching.entriesBy(
            [foreign | {"rows": 7}, {**foreign, "rows": [{"a": 1}]}], itemgetter("rows")
        )
        self.assertIn("it probably has another version", rows[0]["error"])
        self.assertEqual(rows[1], {"pid": 7, "command": [], "a": 1})
        self.assertIn("2 listeners", table)

    def test_rates(self) -> None:
        rates = CounterRates()
        rates.since([self.entry(1)], 10.0)
        (entry,) = rates.since([self.entry(5)], 12.0)
        self.assertEqual(entry["counters"]["REQ"], {"sent": 6.0, "retried": 2.0})
        self.assertIn("in a second", shown(countersTable([entry])))
        self.assertNotEqual(entry["pid"], ALL)

    def test_otherProcess(self) -> None:
        """A PID whose counters are lower than before is that of a new process, which has no rates yet."""
        rates = CounterRates()
        rates.since([self.entry(5)], 10.0)
        self.assertEqual(rates.since([self.entry(1)], 12.0), [])
        (entry,) = rates.since([self.entry(2)], 14.0)
        self.assertEqual(entry["counters"]["REQ"], {"sent": 1.5, "retried": 0.5})

    def test_late(self) -> None:
        """A process that did not answer once has rates since its last answer."""
        rates, late = CounterRates(), {"pid": self.entry(1)["pid"], "error": "no answer"}
        rates.since([self.entry(1)], 10.0)
        self.assertEqual(rates.since([late], 12.0), [late])
        (entry,) = rates.since([self.entry(5)], 14.0)
        self.assertEqual((entry["counters"]["REQ"]["sent"], entry["seconds"]), (3.0, 4.0))

    def watched(self, *answers: list[dict[str, Any]]) -> list[list[dict[str, Any]]]:
        """Return what --watch --json prints after each of three rounds of answers."""
        clock: Any = Clock()
        rounds = iter(answers)

        async def askAll(namespace: str, reactor: object, timeout: float) -> list[dict[str, Any]]:
            return next(rounds)

        self.patch(_watching, "askAll", askAll)
        options: Any = {"json": True, "watch": True, "interval": 2, "timeout": 3.0}
        self.patch(sys, "stdout", out := io.StringIO())
        watching = Deferred.fromCoroutine(
            _watching.watch(clock, options, "txrdma/test", list, countersTable, "", withSums)
        )
        clock.pump((2, 2))
        watching.cancel()
        self.failureResultOf(watching)
        return [json.loads(line) for line in out.getvalue().splitlines()]

    def test_summedRates(self) -> None:
        """The sum of rates is neither raised by a process that begins, nor lowered by one that ends."""
        one, two, three = (self.entry(factor) for factor in (1, 3, 100))
        _first, second, third = self.watched(
            *([one, three | {"pid": 2}], [two, three | {"pid": 3}], [two, three | {"pid": 3}])
        )
        self.assertEqual([each["counters"]["REQ"]["sent"] for each in second], [3.0])
        self.assertEqual([(each["pid"], each["counters"]["REQ"]["sent"]) for each in third][-1], (ALL, 0.0))

    def test_firstTotalsThenRates(self) -> None:
        reports = self.watched(*([self.entry(count)] for count in (1, 5, 5)))
        sent = [entry["counters"]["REQ"]["sent"] for (entry,) in reports]
        self.assertEqual(sent, [self.entry(1)["counters"]["REQ"]["sent"], 6.0, 0.0])
