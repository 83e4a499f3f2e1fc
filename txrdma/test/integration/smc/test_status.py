"""
What a process reports about its connections, link groups and statistics.
"""

from __future__ import annotations

import json
from typing import Any

from txrdma.commands.common.counted import differences
from txrdma.smc.status.report import describeGroup, report
from txrdma.smc.status.statistics import statistics
from txrdma.test.integration.smc.test_failover import TwoLinkTestCase
from txrdma.test.support.smc.races import Listener, RaceTestCase


class Pausing(Listener):
    """Reads nothing until it is resumed."""

    def connectionMade(self) -> None:
        self.transport.pauseProducing()
        super().connectionMade()


class LinkGroupTests(TwoLinkTestCase):
    def test_bothEndsReportSameTwoLinksLocalEndFirst(self) -> None:
        self.pair()
        here, there = map(describeGroup, self.both())
        self.assertEqual([here["role"], there["role"]], ["client", "server"])
        for local, remote in ((here, there), (there, here)):
            self.assertEqual((local["state"], local["connections"]), ("active", 1))
            for link, other in zip(self.links(local), self.links(remote), strict=True):
                self.assertEqual(link["number"], other["number"])
                self.assertEqual((link["gid"], link["qpn"]), (other["peerGID"], other["peerQPN"]))
                self.assertEqual(link["state"], "active")
        self.assertEqual(sum(link["connections"] for link in self.links(here)), 1)

    def test_ringIsInUseAsLongAsItHasConnection(self) -> None:
        here, there = self.pair()
        group = self.both()[0]
        [buffer] = self.buffers(describeGroup(group))
        self.assertEqual((buffer["elementSize"], buffer["used"]), (16384, 1))
        self.assertGreater(buffer["elements"], 1)
        here.transport.loseConnection()
        self.until(lambda: there.hasEnded)
        there.transport.loseConnection()
        self.until(lambda: here.reason and there.reason)
        self.wait(0.1)
        [buffer] = self.buffers(describeGroup(group))
        self.assertEqual(buffer["used"], 0)

    def links(self, group: dict[str, Any]) -> list[dict[str, Any]]:
        return list(group["links"])

    def buffers(self, group: dict[str, Any]) -> list[dict[str, Any]]:
        return list(group["buffers"])


class StatisticsTests(RaceTestCase):
    """Counters of what connections have done."""

    def setUp(self) -> None:
        super().setUp()
        self.before = statistics()["counters"]

    def counted(self) -> dict[str, Any]:
        """Return what was counted since the test began."""
        return differences(statistics()["counters"], self.before, 1)

    def test_connectionsAreCountedByModeAndRoleWhileTheyLast(self) -> None:
        here, there = self.pair()
        self.assertEqual(self.counted()["connections"]["SMC-R 1"], {"client": 1, "server": 1})
        present = statistics()["gauges"]["connections"]["SMC-R 1"]
        here.transport.abortConnection()
        self.until(lambda: here.reason and there.reason)
        left = {role: count - 1 for role, count in present.items()}
        self.assertEqual(statistics()["gauges"]["connections"]["SMC-R 1"], left)
        self.assertEqual(self.counted()["connections"]["SMC-R 1"], {"client": 1, "server": 1})

    def test_bytesAreCountedAtBothEndsAlsoAfterwards(self) -> None:
        here, there = self.pair()
        for data in (b"x", b"y" * 10_000):
            here.transport.write(data)
            self.wait(0.1)
        for _ in range(2):
            counted = self.counted()
            self.assertEqual((counted["sent"]["bytes"], counted["received"]["bytes"]), (10_001, 10_001))
            for way in ("sent", "received"):
                sizes = counted[way]["sizes"]
                self.assertEqual({bound: n for bound, n in sizes.items() if n}, {"8192": 1, "16384": 1})
            self.assertEqual((counted["sent"]["writes"], counted["received"]["reads"]), (2, 2))
            here.transport.abortConnection()
            self.until(lambda: here.reason and there.reason)

    def test_writesOfOneIterationCountAsOne(self) -> None:
        here, there = self.pair()
        for _ in range(100):
            here.transport.write(b"x")
        self.until(lambda: len(there.received) == 100)
        self.assertEqual(self.counted()["sent"]["writes"], 1)

    def test_writeThatWaitsForPeersRingIsCountedWithItsTime(self) -> None:
        here, there = self.pair(there=Pausing())
        here.transport.write(bytes(40_000))  # rings have 16 KiB
        self.wait(2.0)
        sent = self.counted()["sent"]
        self.assertEqual(sent["blocks"], 1)
        self.assertApproximates(sent["blockedSeconds"], 2.0, 0.1)
        self.assertGreater(statistics()["gauges"]["ringBytesUnread"], 16_000)
        there.transport.resumeProducing()
        self.until(lambda: len(there.received) == 40_000)
        self.wait(3.0)
        sent = self.counted()["sent"]
        self.assertGreaterEqual(sent["blocks"], 2)  # three rings full of bytes
        self.assertApproximates(sent["blockedSeconds"], 2.0, 0.2)

    def test_bytesThatJustFitDoNotWait(self) -> None:
        here, _there = self.pair(there=Pausing())
        here.transport.write(bytes(16_384))
        self.wait(1.0)
        self.assertEqual(self.counted()["sent"]["blocks"], 0)

    def test_abortedConnectionDoesNotWaitAnyMore(self) -> None:
        here, _there = self.pair(there=Pausing())
        here.transport.write(bytes(40_000))
        self.wait(1.0)
        here.transport.abortConnection()
        self.until(lambda: here.reason)
        seconds = self.counted()["sent"]["blockedSeconds"]
        self.wait(5.0)
        self.assertEqual(self.counted()["sent"]["blockedSeconds"], seconds)
        self.assertApproximates(seconds, 1.0, 0.1)

    def test_fallbackIsCountedWithRoleAndReasonsOfBothEnds(self) -> None:
        group = self.groupsOf[self.server]
        group.ports = ()
        self.pair()
        counted = self.counted()["fallbacks"]
        self.assertEqual(
            {role: {why: n for why, n in reasons.items() if n} for role, reasons in counted.items()},
            {"server": {"NOSMCRDEV": 1}, "client": {"PEERDECL (NOSMCRDEV)": 1}},
        )

    def test_reportIsJSONWithFieldsOfSmcss(self) -> None:
        here, there = self.pair()
        here.transport.write(b"hello")
        self.until(lambda: there.received)
        reported = json.loads(json.dumps(report()))
        ours = {status["token"]: status for status in reported["connections"] if "token" in status}
        client = ours[here.transport.stream.token]
        server = ours[client["peerToken"]]
        self.assertEqual(server["peerToken"], client["token"])
        self.assertEqual(client["link"]["gid"], server["link"]["peerGID"])
        self.assertEqual(client["shutdown"], "<->")
        here.transport.loseWriteConnection()
        self.until(lambda: there.hasEnded)
        self.assertEqual(here.transport.smc.toDict()["shutdown"], "<-W")
        self.assertEqual(there.transport.smc.toDict()["shutdown"], "R->")
        self.assertEqual(there.transport.smc.toDict()["flags"]["received"], ["DONE_WRITING"])
