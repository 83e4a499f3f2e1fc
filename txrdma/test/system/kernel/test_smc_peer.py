"""
txrdma's SMC-R and the Linux kernel's at the two ends of connections: C{smc:} endpoints and AF_SMC sockets.

Both detect each other by SMC's TCP option. The state of the kernel's end is read by sock_diag.
"""

from __future__ import annotations

import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any, TYPE_CHECKING

from twisted.internet.defer import gatherResults
from twisted.internet.error import ConnectionDone
from twisted.internet.task import deferLater
from twisted.internet.threads import deferToThread

from txrdma.smc.kernel.sockdiag import kernelSockets
from txrdma.test.support.smc.ends import reactor
from txrdma.test.system.kernel import Box, record, Witness
from txrdma.test.system.kernel.agent import Refused
from txrdma.test.system.kernel.smcworld import (
    environment,
    HERE,
    KernelEnd,
    KernelPeerTestCase,
    OURS,
    THERE,
    UEID,
)

BOXES = (Box(smc=True, timeout=1000),)

MANY = 100
MUCH = 256 << 20
PAUSE_SECONDS = 4.0
LONG_PAUSE_SECONDS = 30.0
TEST_LINK = Path("/proc/sys/net/smc/smcr_testlink_time")
IDLER = str(Path(__file__).with_name("smcidler.py"))
ORDINARY = 1 << 20

if TYPE_CHECKING:
    _Case = KernelPeerTestCase
else:
    _Case = object


class Conversations(_Case):
    """
    Properties of connections, whichever end has connected.

    Each test reads the state of the kernel's end: it uses SMC-R, without fallback.
    """

    async def served(self) -> tuple[Any, KernelEnd]:
        """Return txrdma's end of a new connection and the kernel's, which uses SMC-R."""
        localEnd, kernelEnd = await self.pair()
        self.assertServed(kernelEnd)
        return localEnd, kernelEnd

    def assertServed(self, *kernelEnd: KernelEnd) -> None:
        """Assert that the kernel's ends use SMC-R, are alive, and are in a group with its device."""
        reported = {each.inode: each for each in kernelSockets()}
        role = "client" if self.weListen else "server"
        for each in kernelEnd:
            kernelStatus = reported[each.inode]
            self.assertEqual(
                (kernelStatus.mode, kernelStatus.state, kernelStatus.fallbackReason),
                ("SMC-R", "ACTIVE", None),
            )
            assert kernelStatus.group is not None
            self.assertEqual((kernelStatus.group.device, kernelStatus.group.role), ("rxe1", role))

    async def test_bytes(self) -> None:
        """One byte, 13 bytes and a MiB pass in each direction; the kernel's cursors count the same bytes."""
        localEnd, kernelEnd = await self.served()
        self.assertEqual((localEnd.smc.mode, localEnd.smc.version, localEnd.smc.eid), ("SMC-R", 2, UEID))
        total = 0
        for length in (1, 13, ORDINARY):
            await self.exchange(localEnd, kernelEnd, length)
            total += length
        await self.until(lambda: self.cursors(kernelEnd) == (total, total))

    def cursors(self, kernelEnd: KernelEnd) -> tuple[int, int]:
        """Return the bytes received and sent by the kernel, from its cursors."""
        buffers = self.kernelStatus(kernelEnd).buffers
        assert buffers is not None
        return buffers.arrived.bytesOf(buffers.size), buffers.peerConsumed.bytesOf(buffers.peerSize)

    async def test_much(self) -> None:
        """Many bytes arrive unchanged in both directions at once."""
        localEnd, kernelEnd = await self.served()
        await self.exchange(localEnd, kernelEnd, MUCH)
        self.assertServed(kernelEnd)
        record("MiB at once each way", MUCH >> 20)
        record("MiB/s each way", round(MUCH / self.seconds / (1 << 20), 1))

    test_much.timeout = 300  # type: ignore[attr-defined]  # trial's way to give one test more time

    async def test_firstContact(self) -> None:
        """The first connection of a link group waits for none of the kernel's timers."""
        await self.program.call("finish")  # it starts slowly
        connect = await self.connector()
        begun = time.monotonic()
        localEnd, kernelEnd = await connect()
        seconds = time.monotonic() - begun
        record("seconds until connected, first contact", round(seconds, 2))
        begun = time.monotonic()
        other, others = await connect()
        record("seconds until connected, later", round(time.monotonic() - begun, 2))
        self.assertServed(kernelEnd, others)
        self.assertEqual(other.smc.linkGroup, localEnd.smc.linkGroup)
        self.assertLess(seconds, 3)

    async def test_many(self) -> None:
        """A hundred connections share a link group, and each carries its own bytes."""
        connect = await self.connector()
        begun = time.monotonic()
        pairs = [await connect() for _ in range(MANY)]
        record("seconds for 100 connections", round(time.monotonic() - begun, 1))
        self.assertEqual(len({localEnd.smc.linkGroup for localEnd, _ in pairs}), 1)
        for number, (localEnd, _theirs) in enumerate(pairs):
            localEnd.transport.write(b"%d" % number)
        got = await gatherResults(
            [
                self.program.call("receive", number=kernelEnd.number, length=len(str(number)))
                for number, (_, kernelEnd) in enumerate(pairs)
            ]
        )
        self.assertEqual([each[2] for each in got], [str(number) for number in range(MANY)])
        self.assertServed(*(kernelEnd for _, kernelEnd in pairs))

    async def test_weHalfClose(self) -> None:
        """The kernel receives txrdma's end of file, may continue to write, and closes."""
        localEnd, kernelEnd = await self.served()
        localEnd.transport.write(b"our last word")
        localEnd.transport.loseWriteConnection()
        got = await self.program.call("receive", number=kernelEnd.number, length=100)
        self.assertEqual((got[0], got[2]), (13, "our last word"))
        await self.until(lambda: self.kernelStatus(kernelEnd).state == "APPCLOSEWAIT1")
        checksum = await self.program.call("send", number=kernelEnd.number, length=1000, seed=3)
        await self.program.call("close", number=kernelEnd.number)
        await localEnd.readEnded
        self.assertEqual((localEnd.count, localEnd.checksum), (1000, checksum))
        localEnd.transport.loseConnection()
        await localEnd.lost
        self.assertIsInstance(localEnd.reason.value, ConnectionDone)

    async def test_kernelHalfCloses(self) -> None:
        """txrdma receives the kernel's end of file, may continue to write, and closes."""
        localEnd, kernelEnd = await self.served()
        checksum = await self.program.call("send", number=kernelEnd.number, length=1000, seed=3)
        await self.program.call("shut", number=kernelEnd.number)
        await localEnd.readEnded
        self.assertEqual((localEnd.count, localEnd.checksum), (1000, checksum))
        await self.until(lambda: self.kernelStatus(kernelEnd).state == "PEERCLOSEWAIT1")
        localEnd.transport.write(b"our last word")
        localEnd.transport.loseConnection()
        got = await self.program.call("receive", number=kernelEnd.number, length=100)
        self.assertEqual((got[0], got[2]), (13, "our last word"))
        await self.program.call("close", number=kernelEnd.number)
        await localEnd.lost
        self.assertIsInstance(localEnd.reason.value, ConnectionDone)

    async def test_kernelAborts(self) -> None:
        """The close of a program with unread bytes is an abort for txrdma's end."""
        localEnd, kernelEnd = await self.served()
        localEnd.transport.write(b"nobody reads this")
        await self.until(lambda: self.cursors(kernelEnd)[0] == 17)
        await self.program.call("close", number=kernelEnd.number)
        await localEnd.lost
        self.assertNotIsInstance(localEnd.reason.value, ConnectionDone)
        record("seen", type(localEnd.reason.value).__name__)

    async def test_wePause(self) -> None:
        """Bytes that txrdma does not read for some seconds are retained, and arrive unchanged."""
        localEnd, kernelEnd = await self.served()
        localEnd.transport.pauseProducing()
        sending = self.program.call("send", number=kernelEnd.number, length=2 * self.room(localEnd), seed=5)
        await deferLater(reactor, PAUSE_SECONDS)
        self.assertFalse(sending.called)
        self.assertServed(kernelEnd)
        localEnd.transport.resumeProducing()
        await localEnd.counting(2 * self.room(localEnd))
        self.assertEqual(localEnd.checksum, await sending)
        self.assertServed(kernelEnd)

    @staticmethod
    def room(localEnd: Any) -> int:
        """Return the size of txrdma's ring."""
        return int(localEnd.smc.toDict()["bufferSize"])

    async def test_idle(self) -> None:
        """An idle link survives longer than the interval of TEST LINK."""
        usual = TEST_LINK.read_text()
        self.addCleanup(TEST_LINK.write_text, usual)
        TEST_LINK.write_text("1")
        localEnd, kernelEnd = await self.served()
        group = localEnd.smc.linkGroup
        await deferLater(reactor, 5)
        await self.exchange(localEnd, kernelEnd, 1000)
        self.assertEqual(localEnd.smc.linkGroup, group)
        self.assertServed(kernelEnd)

    async def test_weAbort(self) -> None:
        """The kernel detects txrdma's abort, and its program gets an error when it writes."""
        localEnd, kernelEnd = await self.served()
        localEnd.transport.abortConnection()
        await self.until(lambda: self.kernelStatus(kernelEnd).state == "PROCESSABORT")
        writing = self.program.call("send", number=kernelEnd.number, length=1, seed=1)
        error = await self.assertFailure(writing, Refused)
        self.assertIn("BrokenPipeError", str(error))

    async def test_urgent(self) -> None:
        """The kernel's urgent data stays in order, and later data arrives as well."""
        localEnd, kernelEnd = await self.served()
        await self.program.call("send", number=kernelEnd.number, length=5, seed=0)
        await self.program.call("urge", number=kernelEnd.number, text="now!")
        await self.program.call("send", number=kernelEnd.number, length=5, seed=0)
        await localEnd.counting(14)
        self.assertEqual(localEnd.first, bytes(5) + b"now!" + bytes(5))
        self.assertServed(kernelEnd)

    async def test_kernelPauses(self) -> None:
        """Bytes that a program does not read for half a minute are retained, and arrive unchanged."""
        localEnd, kernelEnd = await self.served()
        sending = localEnd.sending(ORDINARY, 4)
        await deferLater(reactor, LONG_PAUSE_SECONDS)
        self.assertFalse(sending.called)
        buffers = self.kernelStatus(kernelEnd).buffers
        assert buffers is not None
        self.assertEqual(self.cursors(kernelEnd)[0], buffers.size)
        got = await self.program.call("receive", number=kernelEnd.number, length=ORDINARY)
        self.assertEqual(got[:2], [ORDINARY, await sending])
        self.assertServed(kernelEnd)

    async def test_kernelKilled(self) -> None:
        """A killed kernel program is an orderly end for txrdma; with unread bytes it is an abort."""
        localEnd, _theirs = await self.served()
        other, others = await self.served()
        other.transport.write(b"nobody reads this")
        await self.until(lambda: self.cursors(others)[0] == 17)
        self.process.kill()
        await localEnd.readEnded
        await other.lost
        self.assertNotIsInstance(other.reason.value, ConnectionDone)

    async def test_noCommonUEID(self) -> None:
        """Without a common UEID the server declines, both ends use TCP, and report the reason."""
        localEnd, kernelEnd = await self.pair(OURS.replace(UEID, "OTHERS:version=2"))
        await self.exchange(localEnd, kernelEnd, 1000)
        kernelStatus = self.kernelStatus(kernelEnd)
        self.assertEqual((localEnd.smc.mode, kernelStatus.mode), ("TCP", "TCP"))
        server, client = (localEnd.smc, kernelStatus) if self.weListen else (kernelStatus, localEnd.smc)
        reasons = [str(each and each.name) for each in (server.fallbackReason, server.peerDiagnosis)]
        reasons += [str(each and each.name) for each in (client.fallbackReason, client.peerDiagnosis)]
        why = "NOUEID" if self.weListen else "NOSMCDEV"  # Linux does not report more
        self.assertEqual(reasons, [why, "None", "PEERDECL", why])

    async def test_off(self) -> None:
        """C{option=no} gives the kernel plain TCP, without a Proposal."""
        localEnd, kernelEnd = await self.pair(f"{OURS}:option=no")
        await self.exchange(localEnd, kernelEnd, 1000)
        kernelStatus = self.kernelStatus(kernelEnd)
        self.assertEqual(
            (kernelStatus.mode, kernelStatus.fallbackReason and kernelStatus.fallbackReason.name),
            ("TCP", "PEERNOSMC"),
        )
        self.assertEqual(localEnd.smc.fallbackReason.name, "PEERNOSMC")


class ClientTests(Conversations, KernelPeerTestCase):
    """txrdma's client and the kernel's server."""

    witness = Witness(
        "smc: over pyverbs, client", "Linux AF_SMC, server", "SMC-R version 2 by the TCP option"
    )

    async def test_readLater(self) -> None:
        """Bytes are read even after txrdma's last connection has ended; the next one joins the same group."""
        connect = await self.connector()
        localEnd, kernelEnd = await connect()
        self.assertServed(kernelEnd)
        group = localEnd.smc.linkGroup
        sent = await localEnd.sending(1000, 6)
        localEnd.transport.loseConnection()
        await localEnd.lost
        await deferLater(reactor, 3)
        got = await self.program.call("receive", number=kernelEnd.number, length=2000)
        self.assertEqual(got[:2], [1000, sent])
        await self.program.call("close", number=kernelEnd.number)
        localEnd, kernelEnd = await connect()
        self.assertEqual((localEnd.smc.mode, localEnd.smc.linkGroup), ("SMC-R", group))
        self.assertServed(kernelEnd)


class ServerTests(Conversations, KernelPeerTestCase):
    """The kernel's client and txrdma's server."""

    weListen = True
    witness = Witness(
        "smc: over pyverbs, server", "Linux AF_SMC, client", "SMC-R version 2 by the TCP option"
    )


class KilledTests(KernelPeerTestCase):
    """A txrdma process ends while the kernel waits for it."""

    witness = Witness("smc: over pyverbs, killed or ended", "Linux AF_SMC", "its program detects the end")

    def setUp(self) -> None:
        super().setUp()
        usual = TEST_LINK.read_text()
        self.addCleanup(TEST_LINK.write_text, usual)
        TEST_LINK.write_text("1")

    async def test_client(self) -> None:
        """The kernel's end reports that txrdma's client was killed."""
        await self.kill(*await self.connectedIdler())

    async def test_stopped(self) -> None:
        """txrdma's client exits in order, while the kernel's program has not closed yet."""
        idler, kernelEnd = await self.connectedIdler()
        await self.kill(idler, kernelEnd, signal.SIGTERM)
        await self.until(lambda: idler.poll() is not None)

    async def test_server(self) -> None:
        """The kernel's end reports that txrdma's server was killed."""
        idler = self.idler("listen", f"smc:{HERE}:0:{OURS}")
        assert idler.stdout is not None
        line = await deferToThread(idler.stdout.readline)
        kernelEnd = await self.program.call("connect", host=HERE, port=int(line.split()[1]))
        await self.kill(idler, KernelEnd(*kernelEnd))

    async def connectedIdler(self) -> tuple[subprocess.Popen[bytes], KernelEnd]:
        """Start a client of the kernel's program; return it and the kernel's end."""
        number, _, port = await self.program.call("listen")
        accepting = self.program.call("accept", listener=number)
        idler = self.idler("connect", f"smc:{THERE}:{port}:bindAddress={HERE}:{OURS}")
        return idler, KernelEnd(*await accepting)

    def idler(self, *words: str) -> subprocess.Popen[bytes]:
        """Start a txrdma process."""
        words = (sys.executable, IDLER, *words)
        process = subprocess.Popen(words, env=environment(), stdout=subprocess.PIPE)
        self.addCleanup(process.communicate)
        self.addCleanup(process.kill)
        return process

    async def kill(
        self, idler: subprocess.Popen[bytes], kernelEnd: KernelEnd, by: int = signal.SIGKILL
    ) -> None:
        """End a txrdma process, and check what its peer reports."""
        await self.until(lambda: self.kernelStatus(kernelEnd).mode == "SMC-R")
        assert idler.stdout is not None
        self.assertEqual(await deferToThread(idler.stdout.readline), b"served by SMC-R\n")
        idler.send_signal(by)
        begun = time.monotonic()
        try:
            received = (await self.program.call("receive", number=kernelEnd.number, length=1))[0]
        except Refused as error:
            received = str(error)
        record("reported", "an end of file" if received == 0 else received)
        record("seconds until that", round(time.monotonic() - begun, 1))
        self.assertNotEqual(received, 1)
        self.assertNotEqual(self.kernelStatus(kernelEnd).state, "ACTIVE")
