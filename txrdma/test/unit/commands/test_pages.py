"""
The pages about commands show the actual output of the commands.

With C{RETELL=1} in the environment, the output on the pages is updated.
"""

from __future__ import annotations

import os
import re
import shlex
from pathlib import Path

import txrdma
from txrdma.commands.common.registry import COMMANDS, FABRICS
from txrdma.test.support import slow
from txrdma.test.support.mad.commanding import CommandTestCase, Output

DOCS = Path(txrdma.__file__).parents[1] / "docs"
BLOCK = re.compile(r"^```console\n\$ txrdma (.*)\n((?:.*\n)*?)```$", re.MULTILINE)


def shown(printed: Output) -> str:
    lines = [line.rstrip() for line in printed.out.rstrip("\n").splitlines()]
    if isinstance(printed.status, str):
        lines.append(printed.status)
    return "".join(f"{line}\n" for line in lines)


class PageTests(CommandTestCase):
    nodes, fabrics = DOCS / "node-commands.md", DOCS / "fabric-commands.md"
    skip = None if nodes.exists() else "the pages are not installed"

    def answered(self, line: str) -> str:
        name, *words = shlex.split(line)
        device = ""
        if "-d" in words:
            at = words.index("-d")
            device = words[at + 1]
            del words[at : at + 2]
        return shown(self.output(name, *words, device=device))

    def test_output(self) -> None:
        for page in (self.nodes, self.fabrics):
            text = page.read_text()
            if os.environ.get("RETELL") == "1":
                text = BLOCK.sub(
                    lambda found: f"```console\n$ txrdma {found[1]}\n{self.answered(found[1])}```", text
                )
                page.write_text(text)
            found = BLOCK.findall(text)
            self.assertGreater(len(found), 6)
            for line, output in found:
                self.assertEqual(output.splitlines(), self.answered(line).splitlines(), line)

    def test_options(self) -> None:
        text = self.nodes.read_text()
        commands = "trace routes ping sysstat smpquery saquery perfquery portstate sminfo query decode"
        for name in commands.split():
            self.assertIn(f"```{{command-help}} txrdma {name}\n", text)

    def test_commands(self) -> None:
        text = self.fabrics.read_text()
        for each in COMMANDS:
            if each.group == FABRICS:
                self.assertIn(f"`{each.name}", text)


DIAGS = """
check_lft_balance dump_fts dump_lfts dump_mfts ibaddr ibcacheedit ibccconfig ibccquery ibfindnodesusing
ibhosts ibidsverify iblinkinfo ibnetdiscover ibnodes ibping ibportstate ibqueryerrors ibroute ibrouters
ibstat ibstatus ibswitches ibsysstat ibtracert perfquery saquery sminfo smpdump smpquery vendstat
"""
"""Programs of Debian's package infiniband-diags (rdma-core 44)."""

IBTOOL = """
decode_mad dump_lfts dump_mfts help ibaddr ibcheckerrors ibcheckerrs ibchecknet ibchecknode ibcheckport
ibcheckportstate ibcheckportwidth ibcheckstate ibcheckwidth ibclearcounters ibclearerrors ibdatacounters
ibdatacounts ibfindnodesusing ibhosts ibidsverify iblinkinfo ibnetdiscover ibnodes ibping ibportstate
ibprintca ibprintrt ibprintswitch ibroute ibrouters ibstat ibstatus ibswitches ibswportwatch ibsysstat
ibtracert ibv_devices init_all_ports perfquery query rdma_bw saquery set_guid set_nodedesc set_port_state
sminfo smpdump smpquery subnet_diff vendstat
"""
"""Commands of python-rdma's ibtool, without aliases."""

ROW = re.compile(r"^\| (`.*) \|$", re.MULTILINE)
OURS = re.compile(r"`txrdma ([^`]*)`")
ELSEWHERE = {
    "ping --server": "serves until Ctrl-C: L{txrdma.test.unit.commands.test_fabrics} has it",
    "sysstat --server": "the same",
    "devices": "about this host: C{test_command} has it",
    "devices --verbose": "the same",
    "pingpong --help": "about verbs, and only its help is shown",
    "--help": "C{test_command} has it",
    "trace --help": "the same",
}
REFUSED = {
    "query SubnSet NodeDescription 3 nodeString=alpha --yes": "not supported",
    "query VendGet MlxGeneralInfo 17": "no answer",
    "query VendGet 0x50 17 --class 0x0a --modifier 1": "no answer",
    "sminfo 16 --control disable --priority 7 --yes": "invalid value",
}
"""Requests that simulated nodes refuse, and the message of the command."""


class ParityPageTests(CommandTestCase):
    page = DOCS / "infiniband-diags.md"
    skip = None if page.exists() else "the pages are not installed"
    device = "sim:fattree:16"

    def test_complete(self) -> None:
        names = set(re.findall(r"`([\w.]+)[^`]*`", self.page.read_text()))
        self.assertEqual({name for name in (DIAGS + IBTOOL).split() if name not in names}, set())
        self.assertEqual((len(DIAGS.split()), len(IBTOOL.split())), (30, 51))

    @slow("it runs a hundred commands")
    def test_rows(self) -> None:
        before, capture = self.mktemp(), self.mktemp()
        self.output("discover", "--save", before)
        datagram = "0101010100000000" + "00" * 8 + "00110000" + "00" * 4
        Path(capture).write_text(datagram)
        files = {"BEFORE": before, "AFTER": before, "FILE": capture, "HEX": datagram}
        lines = [line for row in ROW.findall(self.page.read_text()) for line in OURS.findall(row)]
        self.assertGreater(len(lines), 100)
        for line in dict.fromkeys(lines):
            if line in ELSEWHERE:
                continue
            name, *words = [files.get(word, word) for word in shlex.split(line)]
            printed = self.output(name, *words)
            if line in REFUSED:
                self.assertIn(REFUSED[line], str(printed.status))
            else:
                self.assertIn((line, printed.status), ((line, None), (line, 0)))
                self.assertTrue(printed.out or name == "diff", line)
                self.assertEqual(printed.errors, "", line)
        self.assertEqual([line for line in (*ELSEWHERE, *REFUSED) if line not in lines], [])
