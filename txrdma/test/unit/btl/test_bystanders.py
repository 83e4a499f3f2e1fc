"""Failures that end one connection of a module while a second connection of the module continues."""

from __future__ import annotations

from errno import ENOMEM
from typing import Any
from unittest.mock import Mock

from twisted.python.monkey import MonkeyPatcher

from txrdma.btl.channels import Channel
from txrdma.btl.core import pendingacks
from txrdma.btl.core.assembly import Assembly
from txrdma.btl.core.congestion import Congestion
from txrdma.btl.core.events import Packet
from txrdma.btl.core.marks import Marks
from txrdma.btl.core.module import Module
from txrdma.btl.core.path import COMMAND, DATA, FAILURES_ONLY
from txrdma.btl.core.peer import ENDED, Peer
from txrdma.btl.core.receiving import ReceiveWindow
from txrdma.btl.core.regions import Regions
from txrdma.btl.core.shortcuts import FastPath
from txrdma.btl.core.timetable import Timetable
from txrdma.btl.core.window import SendWindow
from txrdma.btl.errors import MessageFailed
from txrdma.btl.inbox import Inbox
from txrdma.btl.lifeline import PeerConnection
from txrdma.btl.memory import ConnectionMemory
from txrdma.btl.module import _Route, ModulePort, MOST_INTERRUPTIONS, PEACEFUL_SECONDS
from txrdma.btl.receivebuffers import RemoteReceiveBuffers
from txrdma.btl.requests import PendingRequests
from txrdma.btl.wire import REFUSED
from txrdma.error import DeviceUnavailable
from txrdma.soft.device import SoftAddressHandle
from txrdma.soft.rc.routes import DatagramRoute
from txrdma.test.support.btl.hosts import HostsCase, TAG, TagRecorder
from txrdma.test.support.compiled import skipIfCompiled

_COMPILED = (
    *(
        _Route,
        Assembly,
        Channel,
        Congestion,
        FastPath,
        Inbox,
        Marks,
        Module,
        ModulePort,
        Peer,
        PendingRequests,
        ReceiveWindow,
        Regions,
        SendWindow,
        Timetable,
    ),
    pendingacks,
    pendingacks.PendingAcks,
)


class Attribute:
    """An attribute whose own attributes cannot be read."""

    def __getattr__(self, name: str) -> None:
        raise ZeroDivisionError("a test's")


class AnsweringMethod:
    """A method that answers calls, but cannot be bound to a protocol."""

    answersTag = 1

    def __get__(self, protocol: object, kind: type) -> AnsweringMethod:
        if protocol is None:
            return self
        raise ZeroDivisionError("a test's")


class Unreadable(TagRecorder):
    """A protocol with such a method."""

    method = AnsweringMethod()


class BystanderTests(HostsCase):
    """An exception ends only the connection in which it is raised."""

    def setUp(self) -> None:
        super().setUp()
        self.client, self.server = self.connected()
        self.bystanders = self.connected()

    def patch(self, owner: Any, name: str, value: Any) -> MonkeyPatcher:
        """Patch an attribute; skip the test if it belongs to a compiled class."""
        if owner in _COMPILED:
            skipIfCompiled()
        patcher: MonkeyPatcher = super().patch(owner, name, value)
        return patcher

    def raiseOnce(self, owner: Any, name: str, isMeant: Any = lambda *_arguments: True) -> None:
        usual, raised = getattr(owner, name), list[bool]()

        def replacement(*arguments: Any, **named: Any) -> Any:
            if not raised and isMeant(*arguments):
                raised.append(True)
                raise ZeroDivisionError("a test's")
            return usual(*arguments, **named)

        self.patch(owner, name, replacement)

    def assertContained(self, logged: int = 1) -> None:
        """Assert that both ends of the connection have ended, and that the other connection works."""
        self.wait(lambda: self.client.lost and self.server.lost)
        self.assertEqual(len(self.flushLoggedErrors(ZeroDivisionError)), logged)
        one, other = self.bystanders
        for here, there in ((one, other), (other, one)):
            self.outcome(here.transport.send(TAG, b"well"))
            self.assertEqual(there.tagged, [(TAG, b"well")])
        self.assertFalse(one.lost or other.lost)

    def sendContained(self) -> None:
        """Send a message that ends its connection, and no other."""
        self.client.transport.send(TAG, bytes(700)).addErrback(lambda failure: None)
        self.assertContained()

    def connectAgain(self) -> None:
        """Replace the connection that has ended."""
        self.client, self.server = self.connected()
        for each in self.bystanders:
            each.tagged.clear()

    def closeAll(self) -> None:
        """Close both connections, and assert that nothing is left."""
        for each in (self.client, self.bystanders[0]):
            each.transport.loseConnection()
        self.wait(lambda: self.server.lost and self.bystanders[1].lost)
        self.assertNothingLeft()

    def test_cut(self) -> None:
        """A segment that cannot be created ends only its connection."""
        mine = self.client.transport._peer
        self.raiseOnce(Peer, "cut", lambda peer, _queue: peer is mine)
        outcome = self.client.transport.send(TAG, bytes(10_000))
        outcome.addErrback(lambda failure: None)
        self.assertContained()

    def test_put(self) -> None:
        """A put that fails ends only its connection."""
        name = self.server.transport.share(100).name
        self.raiseOnce(Regions, "write")
        self.client.transport.write(name, b"x").addErrback(lambda failure: None)
        self.assertContained()

    def test_event(self) -> None:
        """A message that cannot be delivered, alone or in a pack, ends only its connection."""
        for several in (False, True):
            lifeline = self.server.transport._lifeline
            assert lifeline is not None
            self.raiseOnce(
                PeerConnection, "handleEvent", lambda each, _event, lifeline=lifeline: each is lifeline
            )
            for _each in range(1 + several):
                sent = self.client.transport.send(TAG, bytes(700))
                sent.addErrback(lambda failure: None)
            self.assertContained()
            self.connectAgain()

    def test_eventOfFastPath(self) -> None:
        """A message that the fast path cannot deliver ends only its connection."""
        self.outcome(self.client.transport.send(TAG, b"first"))
        self.pause(1.0)
        delivered: list[object] = []
        receive = ModulePort._receiveFast

        def receiveFast(*arguments: Any) -> bool:
            delivered.append(receive(*arguments))
            return bool(delivered[-1])

        self.patch(ModulePort, "_receiveFast", receiveFast)
        lifeline = self.server.transport._lifeline
        self.raiseOnce(PeerConnection, "handleEvent", lambda each, _event: each is lifeline)
        self.client.transport.send(TAG, b"second").addErrback(lambda failure: None)
        self.wait(lambda: delivered)
        self.assertEqual(delivered, [True])
        self.assertContained()

    def test_repeated(self) -> None:
        """A segment that cannot be sent again ends only its connection."""
        mine = self.client.transport._peer.sent
        self.raiseOnce(SendWindow, "retransmit", lambda window, *_words: window is mine)
        self.world.network.drop(lambda packet: len(packet.payload) > 1000, 1)
        self.client.transport.send(TAG, bytes(3000)).addErrback(lambda failure: None)
        self.assertContained()

    def test_timer(self) -> None:
        """A timer of a peer that fails ends only its connection; those of other peers expire."""
        mine = self.client.transport._peer.sent
        self.raiseOnce(SendWindow, "expired", lambda window, *_words: window is mine)
        self.world.network.drop(lambda packet: len(packet.payload) > 500, 2)
        lost = self.client.transport.send(TAG, bytes(700)).addErrback(lambda failure: None)
        repeated = self.bystanders[0].transport.send(TAG, bytes(700))
        self.wait(lambda: lost.called and repeated.called)
        self.assertEqual(self.bystanders[1].tagged.pop(), (TAG, bytes(700)))
        self.assertContained()

    def test_acknowledgement(self) -> None:
        """An acknowledgement that cannot be processed, alone or in a message, ends only its connection."""
        for name in ("acknowledged", "arrivedNext"):
            mine = self.client.transport._peer.sent
            self.raiseOnce(SendWindow, name, lambda window, *_words, mine=mine: window is mine)
            self.server.transport.setHandler(TAG, lambda data: self.server.transport.post(TAG, b"answer"))
            for length in (700, 10_000):
                self.client.transport.send(TAG, bytes(length)).addErrback(lambda failure: None)
            self.assertContained()
            self.connectAgain()

    def test_ownAcknowledgement(self) -> None:
        """An acknowledgement that cannot be made ends only its connection."""
        mine = self.server.transport._peer
        self.raiseOnce(Peer, "acknowledgement", lambda peer, _room: peer is mine)
        self.sendContained()

    def test_deadline(self) -> None:
        """A peer whose deadline cannot be computed ends only its connection."""
        mine, usual = self.client.transport._peer, Peer.deadline

        def deadline(peer: Peer, keepAlive: float) -> float | None:
            if peer is mine:
                raise ZeroDivisionError("a test's")
            return usual(peer, keepAlive)

        self.patch(Peer, "deadline", deadline)
        self.sendContained()

    def test_deadlineOnce(self) -> None:
        """A deadline that can be computed the next time is logged nevertheless, and ends its connection."""
        mine = self.client.transport._peer
        self.raiseOnce(Peer, "deadline", lambda peer, _seconds: peer is mine)
        self.sendContained()

    def test_fastPath(self) -> None:
        """A single message that cannot be received ends only its connection, and is not lost silently."""
        self.outcome(self.client.transport.send(TAG, b"first"))
        self.pause(1.0)
        mine, usual = self.server.transport._peer.received, ReceiveWindow.takeNext

        def takeNext(window: ReceiveWindow, sequence: int, attempt: int, now: float) -> bool:
            found = usual(window, sequence, attempt, now)
            if window is mine:
                raise ZeroDivisionError("a test's")
            return found

        self.patch(ReceiveWindow, "takeNext", takeNext)
        sent = self.client.transport.send(TAG, b"second")
        self.wait(lambda: self.client.lost and self.server.lost)
        self.failureResultOf(sent, MessageFailed)
        self.assertEqual(self.server.tagged, [(TAG, b"first")])
        self.assertContained()

    def test_sendFast(self) -> None:
        """An exception while a single message is sent is raised to the program, and ends its connection."""
        self.pause(1.0)
        peer = self.client.transport._peer
        self.raiseOnce(FastPath, "sentFast", lambda _module, each, *_words: each is peer)
        self.assertRaises(ZeroDivisionError, self.client.transport.post, TAG, b"x")
        self.assertContained(logged=0)

    def test_post(self) -> None:
        """A packet that cannot be posted ends only its connection, also if others are posted with it."""
        for name in ("_prepared", "_post"):
            peer = self.client.transport._peer
            mine = {address for address, _qpn in peer.context.destinations}
            usual = getattr(Channel, name)

            def replacement(
                channel: Channel, first: Any, *words: Any, usual: Any = usual, mine: Any = mine
            ) -> Any:
                addresses = [each.address for each in first] if isinstance(first, (list, tuple)) else [first]
                if not mine.isdisjoint(addresses):
                    raise ZeroDivisionError("a test's")
                return usual(channel, first, *words)

            self.patch(Channel, name, replacement)
            answers = [
                each.transport.send(TAG, bytes(size))
                for each in (self.client, self.bystanders[0])
                for size in (10_000, 10_001)
            ]
            self.wait(lambda: self.client.lost and self.server.lost)
            self.patch(Channel, name, usual)
            for each in answers[:2]:
                self.failureResultOf(each, MessageFailed)
            for each in answers[2:]:
                self.outcome(each)
            self.bystanders[1].tagged.clear()
            self.assertContained()
            self.connectAgain()
        self.closeAll()

    def test_postOnce(self) -> None:
        """Packets that can be posted separately after an exception are not lost, and it is logged."""
        self.raiseOnce(Channel, "_post", lambda _channel, batch: len(batch) > 1)
        answers = [
            each.transport.send(TAG, bytes(700)) for each in (self.client, self.bystanders[0]) for _ in "ab"
        ]
        for each in answers:
            self.outcome(each, 0.001)
        self.assertEqual(len(self.flushLoggedErrors(ZeroDivisionError)), 1)

    def test_marks(self) -> None:
        """A peer whose marks cannot be given up ends only its connection."""
        peer = self.client.transport._peer
        self.raiseOnce(_Route, "useNoMarks", lambda route, _port: route is peer.context)
        self.lifeline(self.client).module.core.unmarked.append((peer, 0))
        self.sendContained()

    def test_marksOfAcknowledgement(self) -> None:
        """A message fails if the marks that its acknowledgement has echoed cannot be validated."""
        mine = [path.marks for path in self.client.transport._peer.sent.paths]
        self.raiseOnce(Marks, "validate", lambda marks: marks in mine)
        sent = self.client.transport.send(TAG, bytes(700))
        self.assertContained()
        self.failureResultOf(sent, MessageFailed)

    def test_exit(self) -> None:
        """An exception that the reactor logs while placed bytes are reported stops no acknowledgements."""
        skipIfCompiled()
        lifeline, raised = self.server.transport._lifeline, list[bool]()
        usual = PeerConnection.handleEvent

        def handleEvent(each: PeerConnection, event: Any) -> None:
            if each is lifeline and each.module._reportsPlaced and not raised:
                raised.append(True)
                raise SystemExit("a test's")
            usual(each, event)

        self.patch(PeerConnection, "handleEvent", handleEvent)
        self.client.transport.send(TAG, bytes(256_000)).addErrback(lambda failure: None)
        for _each in range(1000):
            self.world.turn()
        self.assertEqual(len(self.flushLoggedErrors(SystemExit)), 1)
        self.assertFalse(lifeline.module._reportsPlaced)
        one, other = self.bystanders
        self.outcome(one.transport.send(TAG, b"well"))
        self.assertEqual(other.tagged, [(TAG, b"well")])

    def test_probe(self) -> None:
        """A probe of a silent path that cannot be made ends only its connection."""
        peer = self.client.transport._peer
        mine = peer.sent
        self.raiseOnce(SendWindow, "probes", lambda window, _now: window is mine)
        self.lifeline(self.client).module.core._probing[peer] = None
        self.sendContained()

    def test_refusal(self) -> None:
        """A refusal that cannot be made ends only its connection."""
        self.raiseOnce(pendingacks, "encodeHead", lambda kind, *_words, **_named: kind == REFUSED)
        self.lifeline(self.client).put(999, 0, b"x", None)
        self.assertContained()

    def test_manyLost(self) -> None:
        """A connection ends alone if it cannot be determined whether segments must be sent again."""
        for hasCredits in (True, False):
            mine = self.client.transport._peer.sent

            def isMeant(
                window: SendWindow, credits: object = None, mine: object = mine, hasCredits: bool = hasCredits
            ) -> bool:
                return window is mine and bool(window._lost) and (credits is not None) is hasCredits

            self.raiseOnce(SendWindow, "hasLost", isMeant)
            self.world.network.drop(lambda packet: len(packet.payload) > 1000, 40)
            self.client.transport.send(TAG, bytes(200_000)).addErrback(lambda failure: None)
            self.assertContained()
            self.connectAgain()

    def test_port(self) -> None:
        """The failure of a port reaches all peers, although one of them cannot be notified."""
        mine = self.client.transport._peer.sent
        self.patch(SendWindow, "losePath", lambda _window, _port, _now: True)
        self.raiseOnce(SendWindow, "losePath", lambda window, *_words: window is mine)
        module = self.lifeline(self.client).module
        module.core.losePort(0, "a test's", module.seconds())
        module.turn()
        self.assertContained()

    def test_interruption(self) -> None:
        """Both connections survive exceptions of the module itself, of which each is logged."""
        for owner, name in (
            (Module, "batchEnded"),
            (Module, "received"),
            (Module, "deadline"),
            (Module, "outgoing"),
        ):
            self.raiseOnce(owner, name)
            for each in (self.client, *self.bystanders):
                for _ in "ab":
                    each.transport.post(TAG, bytes(700))
            self.pause(2.0)
            self.assertEqual(len(self.flushLoggedErrors(ZeroDivisionError)), 1, name)
        self.assertEqual([len(each.tagged) for each in (self.server, *self.bystanders)], [8, 8, 8])
        self.assertFalse(self.client.lost or self.server.lost)
        self.closeAll()

    def test_interruptedBatch(self) -> None:
        """Messages are reported before their buffers are reused, although an exception follows them."""
        buffers: list[bytearray] = []
        usual, usualTurn = Module.received, ModulePort._runScheduledTurn

        def received(core: Module, channel: int, address: Any, packet: Any, *words: Any) -> None:
            buffers.append(bytearray(packet))
            usual(core, channel, address, memoryview(buffers[-1]), *words)

        def reuse(module: ModulePort) -> None:
            for each in buffers:
                each[:] = bytes(len(each))
            usualTurn(module)

        self.raiseOnce(Module, "batchEnded", lambda core: core.hasEvents)
        self.patch(Module, "received", received)
        self.patch(ModulePort, "_runScheduledTurn", reuse)
        messages = [(TAG, b"%d" % number * 700) for number in range(10)]
        for each in messages:
            self.client.transport.post(*each)
        self.pause(2.0)
        self.assertEqual(len(self.flushLoggedErrors(ZeroDivisionError)), 1)
        self.assertEqual(self.server.tagged, messages)

    def test_interruptedPackets(self) -> None:
        """Packets that an exception has prevented from being posted use up no credits."""
        module = self.lifeline(self.client).module
        module.core._owed.peers[self.bystanders[0].transport._peer] = None
        self.raiseOnce(
            pendingacks.PendingAcks, "sendAcknowledgements", lambda _each, packets, *_words: packets
        )
        self.client.transport.send(TAG, bytes(9000))
        self.pause(2.0)
        self.assertEqual(len(self.flushLoggedErrors(ZeroDivisionError)), 1)
        for channel in module._channels:
            inFlight = channel.posted - channel.completed
            self.assertEqual(module.core.credits[channel.number] + inFlight, channel.sends)

    def test_interruptedChannel(self) -> None:
        """An exception of one channel does not prevent the packets of others from being posted."""
        module = self.lifeline(self.client).module
        module._interruptions, module._interruptedAt = MOST_INTERRUPTIONS, module.seconds()
        peers = [each.transport._peer for each in (self.client, self.bystanders[0])]
        packets = [Packet(each, channel, b"?", b"") for each in peers for channel in (COMMAND, DATA)]
        before = [each.posted for each in module._channels]
        self.raiseOnce(Channel, "_post")
        patcher = self.patch(Module, "outgoing", lambda *_words: packets)
        self.assertRaises(ZeroDivisionError, module._send, module.seconds())
        patcher.restore()
        self.assertEqual([each.posted for each in module._channels], [count + 2 for count in before])

    def test_completions(self) -> None:
        """A channel whose completions cannot be processed is restarted, and loses no credits."""
        skipIfCompiled()  # which do not read attributes of other classes
        module = self.lifeline(self.client).module
        sent = [each.transport.send(TAG, bytes(9000)) for each in (self.client, self.bystanders[0])]
        for channel in module._channels:
            channel._completed([Attribute()])  # type: ignore[list-item]  # for the test
        self.assertEqual(len(self.flushLoggedErrors(ZeroDivisionError)), len(module._channels))
        for each in sent:
            self.outcome(each)
        self.pause(2.0)
        for channel in module._channels:
            inFlight = channel.posted - channel.completed
            self.assertEqual(module.core.credits[channel.number] + inFlight, channel.sends)
        self.assertFalse(self.client.lost or self.server.lost)

    def failPolls(self, error: Exception, times: int) -> list[object]:
        """Let the client's device raise an exception at the next polls; a list gets an item for each."""
        channels: list[Any] = self.lifeline(self.client).module._channels
        ports = [each._direct.route.port for each in channels]
        usual, raised = DatagramRoute.poll, list[object]()

        def poll(route: DatagramRoute) -> None:
            if route.port in ports and len(raised) < times:
                raised.append(route)
                raise error
            usual(route)

        self.patch(DatagramRoute, "poll", poll)
        return raised

    def test_poll(self) -> None:
        """A module survives polls that fail, which are repeated: no packet is lost."""
        module = self.lifeline(self.client).module
        raised = self.failPolls(OSError(ENOMEM, "a test's"), 3)
        for each in (self.client, *self.bystanders):
            each.transport.send(TAG, bytes(9000))
        self.wait(lambda: len(raised) == 3)
        self.pause(3.0)
        self.assertIn(len(self.flushLoggedErrors(OSError)), (1, 2))  # the first one of each channel
        self.assertEqual([len(each.tagged) for each in (self.server, *self.bystanders)], [1, 1, 1])
        self.assertFalse(module.isAbandoned)
        self.closeAll()

    def test_pollOfLostDevice(self) -> None:
        """A poll that fails because the device is lost ends the use of its port at once."""
        self.failPolls(DeviceUnavailable("a test's"), 1)
        self.wait(lambda: self.client.lost and self.server.lost)
        self.assertEqual(len(self.flushLoggedErrors(DeviceUnavailable)), 1)

    def test_lossDuringReset(self) -> None:
        """A channel whose device is lost while its queue pair is about to be reset is not read any more."""
        module = self.lifeline(self.client).module
        self.addCleanup(module.hold())
        for channel in module._channels:
            channel._restart()
        self.failPolls(DeviceUnavailable("a test's"), 1)
        self.wait(lambda: module.isBroken)
        self.pause(1.0)
        self.assertTrue(module.isAbandoned)
        self.assertEqual(len(self.flushLoggedErrors(DeviceUnavailable)), 1)

    def test_allPolls(self) -> None:
        """A module whose polls always fail ends, so that the log is not filled."""
        self.failPolls(OSError(ENOMEM, "a test's"), 1000)
        self.client.transport.send(TAG, bytes(3000)).addErrback(lambda failure: None)
        self.wait(lambda: self.client.lost and self.server.lost, 60.0)
        self.assertLessEqual(len(self.flushLoggedErrors(OSError)), MOST_INTERRUPTIONS + 2)

    def test_timerAfterInterruptions(self) -> None:
        """Segments are soon sent again although a turn has raised an exception."""
        module = self.lifeline(self.client).module
        self.pause(40.0)
        module._interruptions, module._interruptedAt = MOST_INTERRUPTIONS, module.seconds()
        self.raiseOnce(
            pendingacks.PendingAcks, "sendAcknowledgements", lambda _each, packets, *_words: packets
        )
        module.core._owed.peers[self.bystanders[0].transport._peer] = None
        module.core.send(self.client.transport._peer, TAG, bytes(700), FAILURES_ONLY)
        self.assertRaises(ZeroDivisionError, module.turn)
        self.pause(2.0)
        self.assertEqual(self.server.tagged, [(TAG, bytes(700))])

    def test_interruptions(self) -> None:
        """A module whose exceptions are repeated ends, so that a peer cannot fill the log."""

        def received(*_words: Any) -> None:
            raise ZeroDivisionError("a test's")

        self.patch(Module, "received", received)
        self.client.transport.send(TAG, bytes(3000)).addErrback(lambda failure: None)
        self.wait(lambda: self.client.lost and self.server.lost, 60.0)
        self.assertIn(len(self.flushLoggedErrors(ZeroDivisionError)), range(17, 2 * 17 + 1))

    def test_rareInterruptions(self) -> None:
        """Exceptions that are a minute apart never end a module."""
        module = self.lifeline(self.client).module
        for _each in range(2 * MOST_INTERRUPTIONS):
            self.pause(PEACEFUL_SECONDS + 1.0)
            module._interrupted(ZeroDivisionError("a test's"))
        self.assertEqual(len(self.flushLoggedErrors(ZeroDivisionError)), 2 * MOST_INTERRUPTIONS)
        for _each in range(MOST_INTERRUPTIONS - 1):
            module._interrupted(ZeroDivisionError("a test's"))
        self.assertRaises(ZeroDivisionError, module._interrupted, ZeroDivisionError("a test's"))
        self.assertEqual(len(self.flushLoggedErrors(ZeroDivisionError)), MOST_INTERRUPTIONS - 1)

    def test_arrivals(self) -> None:
        """Messages fail although an exception interrupts the processing of their acknowledgement."""
        for owner, name in (
            (SendWindow, "_learn"),
            (Marks, "validate"),
            (Congestion, "arrived"),
            (Module, "_segmentArrived"),
        ):
            peer = self.client.transport._peer
            path = peer.sent.paths[0]
            self.raiseOnce(
                owner,
                name,
                lambda each, *words, peer=peer, path=path: (
                    each in (peer.sent, path.marks, path.congestion) or peer in words
                ),
            )
            sent = [self.client.transport.send(TAG, bytes(size)) for size in (700, 701, 702)]
            self.wait(lambda: self.client.lost and self.server.lost)
            for each in sent:
                self.failureResultOf(each, MessageFailed)
            self.assertContained()
            self.connectAgain()

    def test_tables(self) -> None:
        """A read, or a peer, that an exception has prevented from being entered leaves nothing in tables."""
        memory, transport = self.server.transport.share(2000), self.client.transport
        core, peers, regions = transport._peer.context.program.module.core, 0, 0
        for owner, name, function in (
            (PendingRequests, "request", lambda: transport.read(memory.name, 100)),
            (Timetable, "touch", lambda: core.addPeer(1, 2, ["a", "b"], 0, 0, None, 0.0)),
        ):
            peers, regions = len(core.peers), len(core.regions._regions)
            self.raiseOnce(owner, name)
            self.assertRaises(ZeroDivisionError, function)
            self.assertEqual((len(core.peers), len(core.regions._regions)), (peers, regions), name)
        self.closeAll()

    def test_newSegment(self) -> None:
        """A write fails although an exception interrupts its way from the queue to the window."""
        memory = self.server.transport.share(2000)
        window = self.client.transport._peer.sent
        self.raiseOnce(
            *(SendWindow, "add"),
            lambda each, sent, *_words: each is window and sent.message.total == 500,
        )
        sent = self.client.transport.write(memory.name, bytes(500))
        self.wait(lambda: self.client.lost and self.server.lost)
        self.failureResultOf(sent, MessageFailed)
        self.assertContained()

    def test_spuriousTimeout(self) -> None:
        """Messages fail although an exception interrupts the return of others after a spurious timeout."""
        window = self.client.transport._peer.sent
        self.raiseOnce(SendWindow, "_undoTimeout", lambda each, _path: each is window)
        sent = [self.client.transport.send(TAG, bytes(size)) for size in (700, 701)]
        self.wait(lambda: window._slots)
        for each in window._slots.values():
            each.isLost = each.isLate = True
        self.wait(lambda: self.client.lost and self.server.lost)
        for each in sent:
            self.failureResultOf(each, MessageFailed)
        self.assertContained()

    def test_removal(self) -> None:
        """A connection ends, and releases everything, if its messages cannot be failed or its peer closed."""
        for owner, name in ((Module, "_failAll"), (Assembly, "drop")):
            self.raiseOnce(owner, name)
            self.client.transport.abortConnection()
            self.assertContained()
            self.connectAgain()
        self.closeAll()

    def test_removalByTimer(self) -> None:
        """An exception while a timer removes a peer is logged, and ends only its connection."""
        peer = self.client.transport._peer
        mine, usual = peer.sent, SendWindow.expired
        self.raiseOnce(Module, "_failAll", lambda _module, each, _reason: each is peer)
        self.patch(SendWindow, "expired", lambda window, now: window is mine or usual(window, now))
        self.world.network.drop(lambda packet: len(packet.payload) > 500, 1)
        self.sendContained()

    def test_removalAfterException(self) -> None:
        """A second exception, while a peer is removed because of a first one, ends only its connection."""
        peer = self.server.transport._peer
        self.raiseOnce(Module, "_accept", lambda _module, each, *_words: each is peer)
        self.raiseOnce(Module, "_failAll", lambda _module, each, _reason: each is peer)
        self.sendContained()

    def test_afterEnd(self) -> None:
        """An exception that is raised by a packet after the end of a peer is logged."""
        peer = self.server.transport._peer
        peer.state = ENDED
        self.raiseOnce(Module, "_accept", lambda _module, each, *_words: each is peer)
        self.sendContained()

    def test_eventOfFailure(self) -> None:
        """A connection that cannot process its failure either does not affect the messages of others."""
        lifeline, usual = self.lifeline(self.server), PeerConnection.handleEvent

        def handleEvent(each: PeerConnection, event: Any) -> None:
            if each is lifeline:
                raise ZeroDivisionError("a test's")
            usual(each, event)

        self.patch(PeerConnection, "handleEvent", handleEvent)
        for client in (self.client, self.bystanders[0]):
            for size in (700, 701):
                client.transport.post(TAG, bytes(size))
        self.wait(lambda: self.bystanders[1].tagged)
        self.assertEqual([len(data) for _tag, data in self.bystanders[1].tagged], [700, 701])
        self.assertTrue(self.flushLoggedErrors(ZeroDivisionError))
        self.outcome(self.bystanders[0].transport.send(TAG, b"well"))

    def test_begin(self) -> None:
        """Both ends fail if the transport of one cannot begin, for example because of its protocol."""
        for isServer in (False, True):
            failing, other = Unreadable(), TagRecorder()
            ends = (other, failing) if isServer else (failing, other)
            answers = [opening.answer for opening in self.open(*ends)]
            self.outcome(answers[isServer].addErrback(lambda failure: failure.trap(ZeroDivisionError)))
            self.outcome(answers[not isServer].addErrback(lambda _: None))
            self.wait(lambda other=other: other.lost or not other.isMade)  # type: ignore[misc]  # a lambda
            self.assertFalse(failing.isMade)
        one, other = self.bystanders
        self.outcome(one.transport.send(TAG, b"well"))
        for each in (self.client, one):
            each.transport.loseConnection()
        self.wait(lambda: self.server.lost and other.lost)
        self.assertNothingLeft()

    def test_end(self) -> None:
        """A protocol gets connectionLost if its requests or memory cannot be ended, and nothing is left."""
        for owner, name in ((Inbox, "end"), (ConnectionMemory, "close"), (RemoteReceiveBuffers, "_stop")):
            self.outcome(self.client.transport.send(TAG, bytes(1 << 20)))
            self.server.tagged.clear()
            self.raiseOnce(owner, name)
            self.client.transport.loseConnection()
            self.assertContained()
            self.connectAgain()
        self.closeAll()

    def test_addressHandle(self) -> None:
        """An address handle that the device cannot close affects no connection."""
        module = self.lifeline(self.client).module
        self.close(self.client, self.server)
        self.raiseOnce(SoftAddressHandle, "close")
        for each in module._channels:
            each.completed = each.posted
        module._closeHandles()
        self.assertContained()

    def test_nextTurn(self) -> None:
        """Timers still expire after one of them has raised an exception that affects no peer."""
        self.pause(1.0)
        mine = self.lifeline(self.client).module
        self.raiseOnce(ModulePort, "poll", lambda module, *_words: module is mine)
        self.world.network.drop(lambda packet: len(packet.payload) > 500, 1)
        sent = self.client.transport.send(TAG, bytes(700))
        self.assertRaises(ZeroDivisionError, self.wait, lambda: sent.called)
        self.outcome(sent, 5.0)

    def test_turnEnded(self) -> None:
        """A failure at the end of a reactor iteration ends only its connection."""
        lifeline = self.server.transport._lifeline
        self.raiseOnce(PeerConnection, "eventsReported", lambda each: each is lifeline)
        self.client.transport.post(TAG, b"x")
        self.assertContained()

    def test_lastMessage(self) -> None:
        """A protocol whose last messageReceived raises still gets connectionLost."""
        self.server.transport.pauseProducing()
        self.client.transport.sendMessage(b"x")
        self.raiseOnce(TagRecorder, "messageReceived", lambda protocol, *_words: protocol is self.server)
        self.pause(0.1)
        self.client.transport.loseConnection()
        self.wait(lambda: self.client.lost)
        self.server.transport.resumeProducing()
        self.assertContained()

    def test_valueError(self) -> None:
        """A ValueError of a protocol or handler is logged as the application's failure, not as the peer's."""
        fail = Mock(side_effect=ValueError("a test's"))
        for isTagged in (False, True):
            client, server = self.connected()
            server.transport.setHandler(TAG, fail)
            server.messageReceived = fail  # type: ignore[method-assign]  # for the test
            client.transport.post(TAG, b"x") if isTagged else client.transport.sendMessage(b"x")
            self.wait(lambda c=client, s=server: c.lost and s.lost)  # type: ignore[misc]  # a lambda
            self.assertEqual((client.why(), server.why()), ("ConnectionLost", "ConnectionAborted"))
            self.assertEqual(len(self.flushLoggedErrors(ValueError)), 1)
        self.assertFalse(any(each.lost for each in self.bystanders))
