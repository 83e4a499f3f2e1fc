"""Commands that show tables, with and without C{rich}."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any, Final

from twisted.trial.unittest import SynchronousTestCase

from txrdma import commands
from txrdma.commands.common.options import TableOptions
from txrdma.commands.common.registry import COMMANDS

RUN: Final = """
import json, os, sys, tempfile
import twisted.internet.endpoints, twisted.internet.task  # once, which do not install a reactor
from txrdma.command import main

if sys.argv[1] == "without":
    sys.modules["rich"] = None  # as documented, this makes its import fail
found = []
for words in json.loads(sys.argv[2]):
    files = [tempfile.TemporaryFile("w+") for _ in range(2)]
    if not (pid := os.fork()):
        for number, file in enumerate(files, 1):
            os.dup2(file.fileno(), number)
        sys.stdout.isatty = lambda: True
        sys.exit(main(words))
    status = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
    found.append([status, *(file.seek(0) or file.read() for file in files)])
print(json.dumps(found))
"""
"""A program that prints exit status, output and errors of each command, which a fork of it runs."""

_SIMULATED: Final = ("--device", "sim:fattree:2")
_SHORT: Final = ("--local", "--test", "send", "--size", "8", "--iterations", "20")

TABLES: Final = {
    "connections": ((),),
    "doctor": ((),),
    "linkgroups": ((),),
    "smc-stats": ((), ("--watch", "5")),
    "cm-stats": ((), ("--watch", "5")),
    "btl-stats": ((), ("--watch", "5")),
    "devices": ((), ("--verbose",), ("soft",)),
    "pingpong": (_SHORT, ("127.0.0.1",), ("--compatible", "127.0.0.1")),
}
"""Commands that need C{rich} for their output, with arguments."""

ROWS: Final = {
    "blast-radius": ("Cut off", ("--all",)),
    "cables": ("peerName", ()),
    "links": ("Width  Speed", ()),
    "nodes": ("GUID", ()),
    "routes": ("Least LIDs", ("--balance",)),
    "saquery": ("nodeGUID", ("--table", "NodeRecord")),
    "perfquery": ("Sent MB/s", ("--watch", "0.05", "--count", "1", "1")),
}
"""Commands that print rows without C{rich}, with a part of the first line, and arguments."""


def run(calls: Iterable[Sequence[str]], rich: str = "without", columns: int = 200) -> list[list[Any]]:
    """Return exit status, output and errors of each command on a terminal of this width."""
    # Without buffers, a command replaces standard output, and with it what makes it a terminal here.
    environment = {**os.environ, "COLUMNS": str(columns), "PYTHONUNBUFFERED": ""}
    settings: dict[str, Any] = {"env": environment, "timeout": 250}
    command = [sys.executable, "-c", RUN, rich, json.dumps([*calls])]
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True, **settings)
    found: list[list[Any]] = json.loads(done.stdout)
    return found


class WithoutRichTests(SynchronousTestCase):
    """Without C{rich} every command works or reports immediately what to install."""

    slowBecause = "every command runs in a separate process"

    def test_all(self) -> None:
        """These tests cover every command that shows tables or rows."""
        tables = {each.name for each in COMMANDS if isinstance(each.makeOptions(), TableOptions)}
        self.assertEqual(set(TABLES), tables)
        folder = Path(commands.__file__).parent
        shown = re.compile(r"\b(show|print)Rows\(")
        rows = {path.stem.replace("_", "-") for path in folder.glob("*.py") if shown.search(path.read_text())}
        # those without a fabric have tests of their own
        self.assertEqual({*ROWS, "fabric-users", "verify"}, rows - {"rows"})

    def test_tables(self) -> None:
        """The package to install is reported before anything is measured or requested, with no traceback."""
        calls = [(name, *arguments) for name, ways in TABLES.items() for arguments in ways]
        advice = "Tables need rich: pip install 'txrdma[cli]'. Or use --json.\n"
        for words, found in zip(calls, run(calls), strict=True):
            self.assertEqual(found, [1, "", advice], words)

    def test_json(self) -> None:
        """JSON, pingpong's CSV and help do not need C{rich}."""
        calls = [
            ("connections", "--json"),
            ("linkgroups", "--json"),
            ("smc-stats", "--json"),
            ("devices", "--json"),
            ("devices", "soft", "--json"),
            ("pingpong", *_SHORT, "--json"),
            ("pingpong", *_SHORT, "--csv", "-"),
            ("devices", "--help"),
        ]
        *tables, csv, usage = run(calls)
        for status, out, complaints in tables:
            self.assertEqual((status, complaints), (0, ""))
            self.assertIsInstance(json.loads(out), list)
        status, out, complaints = csv
        self.assertEqual((status, complaints, out.count("\n")), (0, "", 3))
        self.assertEqual(usage[0], 0)

    def test_rows(self) -> None:
        """Without C{rich}, rows are aligned columns, on a terminal, too."""
        calls = [(name, *_SIMULATED, *arguments) for name, (_heading, arguments) in ROWS.items()]
        for (heading, _arguments), (status, out, complaints) in zip(ROWS.values(), run(calls), strict=True):
            self.assertEqual((status in (0, 1), complaints), (True, ""))
            head, row, *_ = out.splitlines()
            self.assertIn(heading, head)
            self.assertNotEqual(row.strip(), "")

    def test_withRich(self) -> None:
        """With C{rich}, terminals show tables."""
        for status, out, complaints in run([("links", *_SIMULATED), ("devices",)], "with"):
            self.assertEqual((status, complaints), (0, ""))
            self.assertIn("\N{BOX DRAWINGS LIGHT VERTICAL}", out)

    def test_narrow(self) -> None:
        """On a terminal that is too narrow for a table, rows are aligned columns with whole GUIDs."""
        ((status, out, complaints),) = run([("nodes", *_SIMULATED)], "with", columns=40)
        self.assertEqual((status, complaints), (0, ""))
        self.assertIn("host    0x0000000000100000  1      1     h00000\n", out)
