"""
Link groups of two links with the Linux kernel: two RDMA devices at each end, one of which fails under load.
"""

from __future__ import annotations

import os
import subprocess
import tempfile
import time
from pathlib import Path
from typing import Any, TYPE_CHECKING

from twisted.internet.defer import Deferred
from twisted.internet.error import ConnectionLost

from txrdma.commands.dissect.capture import Explanation
from txrdma.iba.captures import captured
from txrdma.iba.types import GID
from txrdma.smc.group.groups import closeLinkGroups, linkGroups
from txrdma.test.support.smc.ends import reactor
from txrdma.test.system.kernel import Box, OUTSIDE, record, Witness
from txrdma.test.system.kernel.agent import Refused
from txrdma.test.system.kernel.recording import Recording
from txrdma.test.system.kernel.smcworld import KernelEnd, KernelPeerTestCase, UEID

try:
    from lab import network, smc
except ImportError:
    OUTSIDE = "not a checkout"

BOXES = (Box(smc=True, pairs=2, timeout=400),)

DEVICES = "pyverbs:rxe0+pyverbs:rxe2"
OURS = rf"device={DEVICES}:ueid={UEID}:timeout=30".replace("pyverbs:", r"pyverbs\:")
LENGTH = 6 << 20
MANY = 8

if TYPE_CHECKING:
    _Case = KernelPeerTestCase
else:
    _Case = object


class Cuts(_Case):
    """Failures of one of several links, whichever end has connected."""

    def setUp(self) -> None:
        super().setUp()
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = Path(folder.name)

    def links(self) -> tuple[list[str], list[str]]:
        """Return the devices of the active links, by txrdma's status and by the kernel's."""
        localEnd = [
            link.port.candidate.device
            for group in linkGroups(reactor, DEVICES).groups()
            for link in group.links
            if link.isActive
        ]
        return sorted(localEnd), sorted(link.device for link in smc.links() if link.state == "active")

    async def linked(self, *expected: list[str]) -> None:
        """Wait until both ends have exactly these links."""
        try:
            await self.until(lambda: self.links() == expected)
        except self.failureException:
            self.fail(f"{self.links()} are the links, of {smc.groupTypes()}: {smc.links()}")

    def carriers(self, localEnd: Any, kernelEnd: KernelEnd) -> tuple[str, str]:
        """Return the devices of a connection's link, by txrdma's status and by the kernel's."""
        group = self.kernelStatus(kernelEnd).group
        assert group is not None
        return localEnd.transport.stream.link.port.candidate.device, group.device

    def down(self, number: int, side: int) -> None:
        """Take down the interface at an end of a wire, until L{up} or the end of the test."""
        self.addCleanup(self.up, number, side)
        subprocess.run(["ip", "link", "set", network.PAIRS[number][side].interface, "down"], check=True)

    def up(self, number: int, side: int) -> None:
        """Set an interface up, and restore the routes over its wire."""
        words = [f"ip link set {network.PAIRS[number][side].interface} up", *network.routes(number)]
        subprocess.run(["sh", "-c", "\n".join(words)], check=True)

    async def test_cut(self) -> None:
        """All bytes arrive over the other link when the interface of the active one goes down at one end."""
        localEnd, kernelEnd = await self.pair(OURS)
        await self.linked(["rxe0", "rxe2"], ["rxe1", "rxe3"])
        self.assertEqual(smc.groupTypes(), ["symmetric"])
        self.assertEqual(
            {(GID.fromString(link.gid).ip, GID.fromString(link.peerGID).ip) for link in smc.links()},
            {(there.address, here.address) for here, there in network.PAIRS},
        )
        group = localEnd.smc.linkGroup
        for side in (0, 1):
            before = self.carriers(localEnd, kernelEnd)
            number = [pair[0].device for pair in network.PAIRS].index(before[0])
            self.assertEqual(before[1], network.PAIRS[number][1].device)
            left = network.PAIRS[1 - number]
            exchanging = Deferred.fromCoroutine(self.exchange(localEnd, kernelEnd, LENGTH))
            await self.until(lambda: localEnd.count > LENGTH // 4)
            self.down(number, side)
            begun = time.monotonic()
            await self.linked([left[0].device], [left[1].device])
            record("seconds until the other link", round(time.monotonic() - begun, 2))
            self.assertFalse(exchanging.called)
            await exchanging
            self.assertEqual(self.carriers(localEnd, kernelEnd), (left[0].device, left[1].device))
            self.up(number, side)
            await self.linked(["rxe0", "rxe2"], ["rxe1", "rxe3"])
            await self.exchange(localEnd, kernelEnd, 1000)
        self.assertEqual((localEnd.smc.mode, localEnd.smc.linkGroup), ("SMC-R", group))

    async def test_balanced(self) -> None:
        """Connections are distributed over both links, and all survive the failure of one."""
        connect = await self.connector(OURS)
        pairs = [await connect()]
        await self.linked(["rxe0", "rxe2"], ["rxe1", "rxe3"])
        pairs += [await connect() for _ in range(MANY - 1)]
        self.assertEqual({self.carriers(*each)[0] for each in pairs}, {"rxe0", "rxe2"})
        self.assertEqual(sum(link.connections for link in smc.links()), MANY)
        for localEnd, kernelEnd in pairs:
            await self.exchange(localEnd, kernelEnd, 1000)
        self.down(0, 0)
        await self.linked(["rxe2"], ["rxe3"])
        for localEnd, kernelEnd in pairs:
            await self.exchange(localEnd, kernelEnd, 1000)
        self.assertEqual({self.carriers(*each) for each in pairs}, {("rxe2", "rxe3")})
        self.assertEqual([link.connections for link in smc.links() if link.state == "active"], [MANY])
        self.up(0, 0)
        await self.linked(["rxe0", "rxe2"], ["rxe1", "rxe3"])

    async def test_both(self) -> None:
        """Both ends lose their connection when the last link fails."""
        localEnd, kernelEnd = await self.pair(OURS)
        await self.linked(["rxe0", "rxe2"], ["rxe1", "rxe3"])
        await self.exchange(localEnd, kernelEnd, 1000)
        receiving = self.program.call("receive", number=kernelEnd.number, length=1)
        for number in (0, 1):
            self.down(number, 0)
        await localEnd.lost
        self.assertIsInstance(localEnd.reason.value, ConnectionLost)
        error = await self.assertFailure(receiving, Refused)
        record("error of the kernel's program", str(error))

    async def test_recorded(self) -> None:
        """A capture of both wires shows a first contact, a second connection, and the group's end."""
        await self.program.call("finish")  # it starts slowly
        recording = Recording([end.interface for pair in network.PAIRS for end in pair], self.folder)
        connect = await self.connector(OURS)
        pairs = [await connect()]
        await self.exchange(*pairs[0], 13)
        await self.linked(["rxe0", "rxe2"], ["rxe1", "rxe3"])
        pairs.append(await connect())
        await self.exchange(*pairs[1], 1000)
        for localEnd, kernelEnd in pairs:
            localEnd.transport.loseConnection()
            await self.program.call("close", number=kernelEnd.number)
            await localEnd.lost
        closeLinkGroups(reactor)
        await self.until(lambda: smc.links() == [])
        path = Path(os.environ["LAB_OUT"], f"smc-ours-{'server' if self.weListen else 'client'}.pcap")
        recording.end(path)
        explanation = Explanation()
        with open(path, "rb") as file:
            for packet in captured(file):
                explanation.add(packet)
        # tests read copies of these files, and docs/interoperability.md describes them
        connections, counts = explanation.conversation.connections, explanation.conversation.counts
        self.assertEqual([each.state for each in connections], ["SMC-R"] * 2)
        for each, length in zip(connections, (13, 1000), strict=True):
            self.assertEqual({stream.produced for stream in each.streams.values()}, {length})
            self.assertEqual(each.closing, {"client": "closed", "server": "closed"})
        self.assertEqual([counts[f"clc {kind}"] for kind in ("Proposal", "Accept", "Confirm")], [2, 2, 2])
        self.assertEqual((counts["llc CONFIRM_LINK"], counts["llc ADD_LINK"]), (4, 2))


class ClientTests(Cuts, KernelPeerTestCase):
    """txrdma's client and the kernel's server."""

    witness = Witness(
        "smc: over pyverbs, client, two devices", "Linux AF_SMC, server", "two links of which one is cut"
    )


class ServerTests(Cuts, KernelPeerTestCase):
    """The kernel's client and txrdma's server."""

    weListen = True
    witness = Witness(
        "smc: over pyverbs, server, two devices", "Linux AF_SMC, client", "two links of which one is cut"
    )
