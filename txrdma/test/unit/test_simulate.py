"""
The command for random simulations: tests for L{txrdma.testing.simulate}.
"""

from __future__ import annotations

import contextlib
import io
import re
import signal
import time
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from unittest import mock

from twisted.internet.defer import succeed
from twisted.trial.unittest import SynchronousTestCase

from txrdma.testing import simulate
from txrdma.testing.outcome import Outcome, Violation
from txrdma.testing.simulate import Generator, main, readStored


@dataclass(frozen=True)
class CoinPlan:
    seed: int


class Terminal(io.StringIO):
    """Standard error on a terminal."""

    def isatty(self) -> bool:
        return True


class CommandTests(SynchronousTestCase):
    """
    C{python -m txrdma.testing.simulate}, with a generator whose seed 7 fails and whose seed 8 raises an
    exception.
    """

    def setUp(self) -> None:
        def play(plan: CoinPlan) -> Outcome:
            self.played.append(plan.seed)
            if plan.seed == 7:
                raise Violation("a promise was broken")
            if plan.seed == 8:
                raise KeyError("side")
            return Outcome(Counter(tosses=1, odd=plan.seed % 2))

        self.played: list[int] = []
        self.folder = Path(self.mktemp())
        self.patch(simulate, "_FOLDER", self.folder)
        coin = Generator(CoinPlan, CoinPlan, play)
        patcher = mock.patch.dict(simulate.GENERATORS, coin=coin, other=coin)
        patcher.start()
        self.addCleanup(patcher.stop)

    def run_(self, *arguments: str, error: io.StringIO | None = None) -> tuple[int, str, str]:
        """Run the command; return its exit code, its output and its errors."""
        error = io.StringIO() if error is None else error
        with contextlib.redirect_stdout(io.StringIO()) as output, contextlib.redirect_stderr(error):
            code = main(arguments)
        return code, output.getvalue(), error.getvalue()

    def test_well(self) -> None:
        """The command runs each generator with each seed, and reports the totals."""
        code, output, error = self.run_("--seeds", "3", "--first", "1", "coin", "other")
        self.assertEqual((code, error, self.played), (0, "", [1, 1, 2, 2, 3, 3]))
        self.assertIn("3 seeds from 1 on: coin, other", output)
        self.assertRegex(output, r"coin: 3 played in [\d.]+ s, 0 failed: 3 tosses, 2 odd")
        self.assertFalse(self.folder.exists())

    def test_failing(self) -> None:
        """The command reports failing seeds with a command that repeats each, and stores their plans."""
        code, output, error = self.run_("--seeds", "5", "--first", "5", "coin")
        self.assertEqual((code, self.played), (1, [5, 6, 7, 8, 9]))
        self.assertIn("5 played", output)
        self.assertIn("2 failed", output)
        path = self.folder / "coin-7.json"
        self.assertIn("coin: seed 7 fails: a promise was broken\n", error)
        self.assertIn("python -m txrdma.testing.simulate --seeds 1 --first 7 coin\n", error)
        self.assertIn(f"python -m txrdma.testing.simulate --plan {path}\n", error)
        self.assertIn("move it to txrdma/test/plans/coin/NAME.json", error)
        self.assertIn("coin: seed 8 fails: KeyError: 'side'\n", error)
        stored = readStored(path)
        self.assertEqual((stored.generator, stored.plan), ("coin", CoinPlan(7)))

    def test_repeats(self) -> None:
        """The commands that a failure names fail in the same way."""
        _code, _output, error = self.run_("--seeds", "1", "--first", "7", "coin")
        commands = re.findall(r"python -m txrdma.testing.simulate (.*)", error)
        self.assertEqual(len(commands), 2)
        for command in commands:
            code, output, error = self.run_(*command.split())
            self.assertEqual(code, 1)
            self.assertIn("a promise was broken", output + error)

    def test_plan(self) -> None:
        """A stored plan is run alone; an invalid one is a usage error."""
        self.run_("--seeds", "1", "--first", "7", "coin")
        path = self.folder / "coin-7.json"
        path.write_text(path.read_text().replace('"seed": 7', '"seed": 9'))
        code, output, _error = self.run_("--plan", str(path))
        self.assertEqual((code, self.played), (0, [7, 9]))
        self.assertIn("holds: 1 tosses, 1 odd", output)
        path.write_text(path.read_text().replace('"seed": 9', '"side": 9'))
        error = self.assertRaises(SystemExit, self.run_, "--plan", str(path))
        self.assertIn("plan.side is not known to CoinPlan", str(error.code))

    def test_minutes(self) -> None:
        """With C{--minutes} the command runs until that time has passed or all seeds were used."""
        times = iter(range(1000))
        with mock.patch.object(time, "monotonic", lambda: 10.0 * next(times)):
            code, output, _error = self.run_("--minutes", "2", "--first", "20", "coin")
        self.assertEqual(code, 0)
        self.assertTrue(1 <= len(self.played) < 12)
        self.assertIn("all seeds from 20 on", output)
        self.played.clear()
        self.run_("--minutes", "2", "--seeds", "3", "--first", "20", "coin")
        self.assertEqual(self.played, [20, 21, 22])

    def test_progress(self) -> None:
        """On a terminal a line shows seeds, seconds and failures; not with --quiet."""
        arguments = ("--seeds", "3", "--first", "6", "coin")
        self.patch(simulate, "_REDRAWN_SECONDS", 0.0)
        _code, _output, error = self.run_(*arguments, error=Terminal())
        self.assertRegex(error, r"\r\x1b\[K1 simulations, \d+ s, 0 failures")
        self.assertRegex(error, r"\r\x1b\[K3 simulations, \d+ s, 2 failures")
        self.assertTrue(error.endswith("\r\x1b[K"))
        _code, _output, error = self.run_("--quiet", *arguments, error=Terminal())
        self.assertNotIn("\r", error)

    def test_progressLog(self) -> None:
        """Without a terminal, a progress line is printed from time to time."""
        self.patch(simulate, "_LOGGED_SECONDS", 0.0)
        _code, _output, error = self.run_("--seeds", "2", "coin")
        self.assertRegex(error, r"\A1 simulations, \d+ s, 0 failures\n2 simulations, \d+ s, 0 failures\n\Z")

    def test_interrupted(self) -> None:
        """SIGINT and SIGTERM end the search after the current simulation, whose code may catch exceptions."""
        play = simulate.Search._play
        for number, status in ((signal.SIGINT, 130), (signal.SIGTERM, 143)):

            def interrupted(search: simulate.Search, name: str, seed: int) -> None:
                succeed(None).addCallback(lambda _: signal.raise_signal(number))  # noqa: B023
                play(search, name, seed)

            self.patch(simulate.Search, "_play", interrupted)
            before = signal.getsignal(number)
            code, output, error = self.run_("--seeds", "3", "--first", "6", "coin")
            self.assertEqual((code, error), (status, ""))
            self.assertIn("coin: 1 played", output)
            self.assertIs(signal.getsignal(number), before)

    def test_wrong(self) -> None:
        """Invalid arguments are errors that name them."""
        for arguments, part in (
            (("tossing",), "tossing is not one of"),
            (("--seeds", "-1"), "below zero"),
            (("--minutes", "0"), "not above zero"),
            (("--plan", "missing.json"), "missing.json"),
        ):
            error = self.assertRaises(SystemExit, main, arguments)
            self.assertIn(part, str(error.code))
