"""
The control sockets by which processes report their connections to tools of the same user.
"""

from __future__ import annotations

import os
import select
import socket

from twisted.internet.testing import MemoryReactorClock
from twisted.trial.unittest import SynchronousTestCase

from txrdma.smc.common.reactoruse import reactorUse
from txrdma.smc.signalling.silence import silentPeers
from txrdma.smc.status import control as introspection
from txrdma.smc.status.control import answer, openStatusSocket
from txrdma.test.support.smc.control import AskingCase, NAMESPACE, reactor, ReportedStatus
from txrdma.testing.reactors import waitUntil
from txrdma.unix import answers as unixanswers
from txrdma.unix import sockets as unixsockets
from txrdma.unix.answers import nameIn, processesIn
from txrdma.unix.sockets import Credentials


class InternalReactor(MemoryReactorClock):
    """A reactor with internal readers, like all of Twisted's real reactors."""

    def __init__(self) -> None:
        super().__init__()
        self._internalReaders: set[introspection.ControlSocket] = set()


class ListingTests(SynchronousTestCase):
    """Control sockets, and the processes that are found in the kernel's list of UNIX sockets."""

    def test_listeningSocketsOfThisUserAreFoundOncePerProcess(self) -> None:
        mine = f"@txrdma/control/{os.geteuid()}"
        listing = f"""\
Num       RefCount Protocol Flags    Type St Inode Path
0000000000000000: 00000002 00000000 00010000 0001 01 26543 {mine}/77
0000000000000000: 00000003 00000000 00000000 0001 03 26544 {mine}/77
0000000000000000: 00000003 00000000 00000000 0001 03 26545 {mine}/78
0000000000000000: 00000002 00000000 00010000 0001 01 26546 @txrdma/control/{os.geteuid() + 1}/79
0000000000000000: 00000002 00000000 00010000 0001 01 26547 /run/x @txrdma
0000000000000000: 00000002 00000000 00010000 0001 01 26548 {mine}/5
0000000000000000: 00000002 00000000 00010000 0001 01 26549 {mine}/5x
0000000000000000: 00000003 00000000 00000000 0001 03 26550
"""
        self.assertEqual(processesIn("txrdma/control", listing), [5, 77])

    def test_reactorWithoutUNIXSocketsGetsNoControlSocket(self) -> None:
        self.assertIs(answer(object(), dict), None)

    def test_repeatedAppearCreatesOneSocketWhenReactorRuns(self) -> None:
        self.patch(introspection, "NAMESPACE", NAMESPACE)
        memory = InternalReactor()
        openStatusSocket(memory, dict)
        use = reactorUse(memory).hold()
        openStatusSocket(memory, dict)
        [sentinel] = memory.getReaders()
        memory.run()
        [control] = memory._internalReaders
        self.assertEqual({*memory.getReaders()}, {sentinel, control})
        self.assertIn(os.getpid(), processesIn(NAMESPACE))
        use.release()
        self.assertEqual(memory.getReaders(), [])
        self.assertNotIn(os.getpid(), processesIn(NAMESPACE))

    def test_processThatChangedUserAnswersAtNewNameOnly(self) -> None:
        self.patch(introspection, "NAMESPACE", NAMESPACE)
        memory = InternalReactor()
        self.addCleanup(reactorUse(memory).hold().release)
        openStatusSocket(memory, dict)
        memory.run()
        old = nameIn(NAMESPACE, os.getpid())
        user = os.geteuid() + 1
        self.patch(os, "geteuid", lambda: user)
        openStatusSocket(memory, dict)
        memory.run()
        [control] = memory._internalReaders
        self.assertEqual(control.owner, (os.getpid(), user))
        with socket.socket(socket.AF_UNIX) as asker:
            self.assertRaises(ConnectionRefusedError, asker.connect, old)
            asker.connect(nameIn(NAMESPACE, os.getpid()))

    def test_reactorWithoutInternalReadersGetsNoControlSocket(self) -> None:
        memory = MemoryReactorClock()
        openStatusSocket(memory, dict)
        self.assertEqual(memory.getReaders(), [])


class AskingTests(AskingCase):
    async def test_processGetsReportOfItsOwnConnections(self) -> None:
        self.listen()
        [reported] = await self.ours(os.getpid())
        self.assertNotIn("error", reported)
        self.assertEqual(reported["connections"], [ReportedStatus().toDict()] * 2)

    async def test_peersThatDoNotAnswerAreListed(self) -> None:
        self.listen()
        silentPeers(reactor).timedOut("127.0.0.1:1", reactor.seconds())
        self.addCleanup(silentPeers(reactor).answered, "127.0.0.1:1")
        [reported] = await self.ours(os.getpid())
        [silent] = [each for each in reported["silent"] if each["peer"] == "127.0.0.1:1"]
        self.assertApproximates(silent["seconds"], 60.0, 10.0)

    async def test_claimedPIDIsIgnored(self) -> None:
        """A process is named by the PID of its socket, whatever its answer claims."""
        control = answer(reactor, lambda: {"pid": 1, "connections": []})
        assert control is not None
        self.addCleanup(control.close)
        [reported] = await self.ours(os.getpid())
        self.assertNotIn("error", reported)

    async def test_processAnswersOnItsFirstReactorOnly(self) -> None:
        self.listen()
        self.assertIs(answer(reactor, dict), None)

    async def test_clientThatReadsNothingDoesNotBlockProcess(self) -> None:
        self.listen(20_000)
        with socket.socket(socket.AF_UNIX) as inattentive:
            inattentive.connect(nameIn(NAMESPACE, os.getpid()))
            [reported] = await self.ours(os.getpid())
            self.assertEqual(len(reported["connections"]), 20_000)

    async def test_clientThatClosesImmediatelyIsHarmless(self) -> None:
        self.listen(20_000)
        for _ in range(3):
            with socket.socket(socket.AF_UNIX) as hasty:
                hasty.connect(nameIn(NAMESPACE, os.getpid()))
        [reported] = await self.ours(os.getpid())
        self.assertNotIn("error", reported)

    async def test_processOfOtherUserGetsNoAnswer(self) -> None:
        self.listen()
        self.patch(unixsockets, "peerOf", lambda connected: Credentials(1, os.geteuid() + 1))
        with socket.socket(socket.AF_UNIX) as other:
            other.connect(nameIn(NAMESPACE, os.getpid()))
            await waitUntil(reactor, lambda: select.select([other], [], [], 0)[0])
            self.assertEqual(other.recv(100), b"")

    async def test_answersOfOtherUsersAreIgnoredWhateverTheirName(self) -> None:
        self.listen()
        self.patch(unixanswers, "peerOf", lambda connected: Credentials(1, os.geteuid() + 1))
        [reported] = await self.ours(os.getpid())
        self.assertIn("belongs to user", reported["error"])
