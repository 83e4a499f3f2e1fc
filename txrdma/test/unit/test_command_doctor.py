"""
C{txrdma doctor}: output and exit status for given problems.
"""

from __future__ import annotations

import io
import json
from contextlib import redirect_stdout

from twisted.trial.unittest import SynchronousTestCase

from txrdma.commands.doctor import CommandOptions, report
from txrdma.verify.problems import HostProblem, problem

NEEDED = problem("no-driver", "eth0", "mlx5_ib is not loaded", module="mlx5_ib")
ADVICE = problem("no-smc-module", "smc", "the module is not loaded")


class ReportTests(SynchronousTestCase):
    """Reports of C{txrdma doctor}."""

    def reported(self, problems: list[HostProblem], *arguments: str) -> tuple[str, object]:
        """Return the output and the exit status."""
        options = CommandOptions()
        options.parseOptions(arguments)
        out = io.StringIO()
        status: object = 0
        with redirect_stdout(out):
            try:
                report(problems, options)
            except SystemExit as error:
                status = error.code
        return out.getvalue(), status

    def test_problem(self) -> None:
        """A problem is printed with its reason and command, and sets the exit status."""
        text, status = self.reported([NEEDED, ADVICE])
        self.assertEqual(status, 1)
        for part in ("eth0", "mlx5_ib is not loaded", NEEDED.why, "sudo modprobe mlx5_ib", ADVICE.fix):
            self.assertIn(part, text)
        self.assertIn("1 problem, 1 hint", text)

    def test_hints(self) -> None:
        """Hints do not set the exit status, and C{--quiet} omits them."""
        text, status = self.reported([ADVICE])
        self.assertEqual(status, 0)
        self.assertIn("sudo modprobe smc", text)
        text, status = self.reported([ADVICE], "--quiet")
        self.assertEqual((text, status), ("no problems, 1 hint\n", 0))

    def test_json(self) -> None:
        """JSON contains all problems, and whether there are none."""
        text, status = self.reported([NEEDED, ADVICE], "--json")
        self.assertEqual(status, 1)
        self.assertEqual(json.loads(text), {"isWell": False, "problems": [NEEDED.asDict(), ADVICE.asDict()]})
        self.assertEqual(json.loads(self.reported([], "--json")[0]), {"isWell": True, "problems": []})
