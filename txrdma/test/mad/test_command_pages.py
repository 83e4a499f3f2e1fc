"""
The pages about commands for nodes and ports: what they show is what the commands print.

With C{RETELL=1} in the environment their output is written anew.
"""

from __future__ import annotations

import os
import re
import shlex
from pathlib import Path

import txrdma
from txrdma.test.mad.commanding import CommandTestCase, Said

DOCS = Path(txrdma.__file__).parents[1] / "docs"
BLOCK = re.compile(r"^```console\n\$ txrdma (.*)\n((?:.*\n)*?)```$", re.MULTILINE)


def shown(said: Said) -> str:
    """What stands on a terminal then."""
    lines = [line.rstrip() for line in said.out.rstrip("\n").splitlines()]
    if isinstance(said.status, str):
        lines.append(said.status)
    return "".join(f"{line}\n" for line in lines)


class NodePageTests(CommandTestCase):
    """C{node-commands}."""

    page = DOCS / "node-commands.md"
    skip = None if page.exists() else "the pages are not installed"

    def answered(self, line: str) -> str:
        """What a command prints."""
        name, *words = shlex.split(line)
        return shown(self.said(name, *words, device="") if "-d" not in words else self.given(name, *words))

    def given(self, name: str, *words: str) -> Said:
        """A command that says its device itself."""
        at = words.index("-d")
        return self.said(name, *words[:at], *words[at + 2 :], device=words[at + 1])

    def test_output(self) -> None:
        """Each command prints what the page shows."""
        text = self.page.read_text()
        if os.environ.get("RETELL") == "1":
            again = BLOCK.sub(
                lambda found: f"```console\n$ txrdma {found[1]}\n{self.answered(found[1])}```", text
            )
            self.page.write_text(again)
            text = again
        found = BLOCK.findall(text)
        self.assertGreater(len(found), 12)
        for line, output in found:
            self.assertEqual(output.splitlines(), self.answered(line).splitlines(), line)

    def test_options(self) -> None:
        """Each of its commands has a section with its options."""
        text = self.page.read_text()
        commands = "trace routes ping sysstat smpquery saquery perfquery portstate sminfo query decode"
        for name in commands.split():
            self.assertIn(f"```{{command-help}} txrdma.command {name}\n", text)
