"""
The lab without its guest: the table of results.

L{txrdma.test.system.kernel.test_box} tests the guest itself.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from twisted.trial.unittest import SynchronousTestCase

from lab import table


class TableTests(SynchronousTestCase):
    """The table is written between the markers of the page."""

    def result(self, **changes: Any) -> dict[str, Any]:
        witness = {"ours": "pyverbs", "theirs": "rxe", "what": "READ"}
        plain = {"id": "t", "outcome": "passed", "reason": "", "seconds": 1, "facts": {}, "mtu": 4200}
        return {**plain, "module": "m.test_x", "witness": witness, **changes}

    def text(self, *results: dict[str, Any]) -> str:
        reported = {"kernel": "6.12", "rdma-core": "44", "pyverbs": "44", "date": "2026-01-01"}
        return table.table(reported, list(results))

    def test_counts(self) -> None:
        """Tests with the same peer are counted together; those without one have no line."""
        text = self.text(
            self.result(facts={"MiB": 16, "share": 0.98765}),
            self.result(outcome="skipped"),
            self.result(outcome="failed", facts={"MiB": 16}),
            self.result(witness=None),
        )
        lines = [line for line in text.splitlines() if line.startswith("| ")]
        self.assertEqual(
            lines[1:],
            ["| pyverbs | rxe | READ | `test_x` | 1 passed, 1 failed, 1 skipped | MiB 16; share 0.988 |"],
        )

    def test_replace(self) -> None:
        """Text around the table does not change; writing twice is the same as once."""
        page = Path(self.mktemp())
        page.write_text(f"before\n{table.BEGIN}\nold\n{table.END}\nafter\n")
        table.replaceIn(page, self.text(self.result()))
        once = page.read_text()
        table.replaceIn(page, self.text(self.result()))
        self.assertEqual(page.read_text(), once)
        self.assertTrue(once.startswith("before\n") and once.endswith("after\n") and "old" not in once)
        self.assertIn("| pyverbs | rxe | READ |", once)

    def test_part(self) -> None:
        """A run of some suites replaces only their lines."""
        page = self.text(self.result(), self.result(module="m.test_y"), self.result(module="m.test_y", mtu=9))
        again = [self.result(module="m.test_y", outcome="failed")]
        reported = {"kernel": "6.12", "rdma-core": "44", "pyverbs": "44", "date": "2026-01-02"}
        text = table.table(reported, again, table.ofOthers(page, again))
        self.assertEqual(
            [line.split(" | ")[3:5] for line in text.splitlines() if line.startswith("| pyverbs")],
            [["`test_x`", "1 passed"], ["`test_y`", "1 failed"], ["`test_y`, MTU 9", "1 passed"]],
        )
