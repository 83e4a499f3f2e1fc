"""
Commands about link groups and statistics of SMC: text and JSON.
"""

from __future__ import annotations

from copy import deepcopy
from typing import Any

from twisted.trial.unittest import SynchronousTestCase

from txrdma.commands import linkgroups
from txrdma.commands.common.counted import CounterRates, withSums
from txrdma.commands.connections import connectionsTable
from txrdma.commands.smc_stats import entriesOf, statisticsTable
from txrdma.smc.status.statistics import statistics
from txrdma.test.support.tables import shown
from txrdma.test.system.test_command import SMC

GROUP: dict[str, Any] = {
    "name": "client 000011",
    "role": "client",
    "state": "active",
    "version": 2,
    "release": 1,
    "eid": "EXAMPLE.COM",
    "isDirect": False,
    "peer": "10.77.0.2:80",
    "peerID": "1dc7f63ee754e837",
    "connections": 3,
    "maxConnections": 255,
    "maxLinks": 2,
    "links": [
        {
            "number": number,
            "state": "active",
            "device": f"rxe{number}",
            "port": 1,
            "route": "verbs",
            "mtu": 1024,
            "connections": 4 - number,
            "gid": f"::ffff:10.77.0.{number}",
            "mac": "-",
            "qpn": 17,
            "peerGID": f"::ffff:10.77.1.{number}",
            "peerMAC": "-",
            "peerQPN": 18,
            "messagesSent": 1234,
        }
        for number in (1, 2)
    ],
    "buffers": [{"rkey": 5, "elementSize": 65536, "elements": 16, "used": 3, "isKnownToPeer": True}],
}


class LinkGroupsTests(SynchronousTestCase):
    def test_table(self) -> None:
        """The table shows terms, peer, both ends of each link, and the use of buffers."""
        answers = [
            {"pid": 7, "command": ["python", "[x]"], "linkGroups": [GROUP]},
            {"pid": 8, "error": "late"},
        ]
        entries = linkgroups.flat(answers)
        self.assertEqual([each["pid"] for each in entries], [7, 8])
        text = shown(linkgroups.groupsTable(entries))
        for words in (
            *("[x]", "client 000011", "to 10.77.0.2:80", "1dc7f63ee754e837", "client, active"),
            *("version 2.1 by EXAMPLE.COM", "behind a router", "3 of 255 connections"),
            *("1 active: rxe1 port 1, verbs", "2 active: rxe2", "::ffff:10.77.0.2 QP 0x11"),
            *("to ::ffff:10.77.1.2 QP 0x12", "1234 messages", "3 of 16 rings of 65.5 kB", "late"),
        ):
            self.assertIn(words, text)


class ConnectionsTests(SynchronousTestCase):
    def test_details(self) -> None:
        """Tokens, flags and the ends of the link are shown on request."""
        entry = {
            "pid": 1,
            "command": ["python", "a"],
            **SMC,
            "shutdown": "<-W",
            "inode": 4711,
            "token": 0xABC,
            "peerToken": 0xDEF,
            "backlog": 70,
            "blocks": 2,
            "blockedSeconds": 0.5,
            "flags": {"received": ["WRITE_BLOCKED"], "sent": []},
            "link": {"number": 2, "port": 1, "gid": "::ffff:10.77.0.1", "peerGID": "::ffff:10.77.0.2"},
        }
        words = (
            *("inode 4711", "token 00000abc, peer's 00000def", "70 bytes unsent"),
            "2 times for buffer space, 0.500 s",
            *("flags received: WRITE_BLOCKED", "flags sent: none", "link 2, port 1, ::ffff:10.77.0.1"),
        )
        text = shown(connectionsTable([entry], isDetailed=True))
        plain = shown(connectionsTable([entry]))
        self.assertIn("SMC-R ACTIVE <-W", plain)
        for each in words:
            self.assertIn(each, text)
            self.assertNotIn(each, plain)


class StatisticsTests(SynchronousTestCase):
    """C{txrdma smc-stats}."""

    def numbers(self, factor: int) -> dict[str, Any]:
        """Return the statistics of a process."""
        reported = deepcopy(statistics())
        reported["counters"]["connections"] = {"SMC-R 1": {"client": 3 * factor}, "TCP": {"server": factor}}
        reported["counters"]["fallbacks"] = {"server": {"PEERNOSMC": factor}}
        reported["counters"]["refused"] = {"NOUEID": factor}
        sent = reported["counters"]["sent"]
        sent |= {"bytes": 1000 * factor, "writes": 10 * factor, "blocks": factor, "blockedSeconds": 0.25}
        sent["sizes"] = dict.fromkeys(sent["sizes"], 0) | {"8192": 9 * factor, "1048576": factor}
        reported["gauges"]["rings"] = {"65536": 16}
        reported["gauges"]["ringsUsed"] = {"65536": 3}
        return reported

    def test_sum(self) -> None:
        """Several processes have a sum, which excludes those that do not answer; a single one has none."""
        one = {"pid": 1, "command": ["python", "a"], "statistics": self.numbers(1)}
        two = {"pid": 2, "command": ["python", "b"], "statistics": self.numbers(2)}
        entries = withSums(entriesOf([one, two, {"pid": 3, "error": "late"}]))
        self.assertEqual([each["pid"] for each in entries], [1, 2, 3, "all"])
        self.assertEqual(entries[-1]["counters"]["sent"]["sizes"]["8192"], 27)
        self.assertEqual(entries[-1]["counters"]["connections"]["SMC-R 1"], {"client": 9})
        self.assertEqual([each["pid"] for each in withSums(entriesOf([one]))], [1])

    def test_table(self) -> None:
        """The table shows connections by mode, reasons, sizes, waiting and buffers."""
        entries = entriesOf([{"pid": 1, "command": ["python", "[a]"], "statistics": self.numbers(1000)}])
        text = shown(statisticsTable(entries))
        for words in (
            *("[a]", "made SMC-R 1: 3,000 client", "made TCP: 1,000 server"),
            *("fell back, server: 1,000 PEERNOSMC", "refused, NOUEID: 1,000", "1.0 MB in 10,000 writes"),
            *("up to 8.2 kB: 9,000", "up to 1.0 MB: 1,000", "1,000 times, 0.250 s", "3 of 16 rings"),
        ):
            self.assertIn(words, text)

    def test_rates(self) -> None:
        """Later readings show rates per second; a new process has rates from its second reading."""
        rates = CounterRates()
        reads = [
            entriesOf([{"pid": 1, "command": ["python", "a"], "statistics": self.numbers(factor)}])
            for factor in (1, 5)
        ]
        self.assertEqual(rates.since(reads[0], 10.0), [])
        [entry] = rates.since(reads[1], 12.0)
        self.assertEqual(entry["counters"]["sent"]["bytes"], 2000)
        self.assertEqual(entry["gauges"], reads[1][0]["gauges"])
        self.assertIn("in a second", shown(statisticsTable([entry])))
