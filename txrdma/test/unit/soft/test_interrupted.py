"""
Queue pairs of which one call of one function raises an exception: they go on correctly, or fail with flushed
completions. Another pair with the same devices and completion queues is not affected, and nothing is left.
"""

from __future__ import annotations

import gc
import sys
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import replace
from types import MethodType
from typing import Any, cast

from twisted.trial.unittest import SynchronousTestCase

import txrdma.soft.core
import txrdma.soft.rc
import txrdma.soft.shared
from txrdma.iba.headers import Opcode
from txrdma.iba.types import MTU
from txrdma.iba.verbs import (
    AddressVector,
    Capacity,
    Completion,
    Operation,
    QPAttributes,
    QPKind,
    QPState,
    ReceiveRequest,
    Segment,
    SendRequest,
    Status,
)
from txrdma.sim.sharedmemory import SimulatedMemory
from txrdma.soft import device as devices
from txrdma.soft.core.completion import SoftCompletionChannel, SoftCompletionQueue
from txrdma.soft.core.doorbellpage import DoorbellPage
from txrdma.soft.core.memory import KeyTable
from txrdma.soft.core.sharedreceives import SoftSharedReceiveQueue
from txrdma.soft.device import SoftDevice, SoftProtectionDomain
from txrdma.soft.rc.localpeers import LocalPeers
from txrdma.soft.rc.peers import UDPPeer
from txrdma.soft.rc.roce import RoCEPort
from txrdma.soft.shared.peerdevice import PeerDevice
from txrdma.soft.shared.sharedmemoryport import SharedMemoryPort
from txrdma.soft.shared.sharedqueuepair import SharedQueuePair, SharingReactor
from txrdma.test.support.compiled import skipIfCompiled
from txrdma.test.support.interruptedworld import InterruptedWorld
from txrdma.test.support.interruptions import Interruptions, ownersIn
from txrdma.test.support.soft.pairs import ALL, INIT, QKEY, RTR, RTS
from txrdma.testing.smc.hosts import Host
from txrdma.testing.smc.neighbours import openDescriptors, SleepyHost, ticking
from txrdma.verbs import _busypoll, _sources, completions
from txrdma.verbs._busypoll import BusyPoll
from txrdma.verbs._sources import Sources
from txrdma.verbs.completions import CompletionReader

OWNERS = (
    *ownersIn(txrdma.soft.core, txrdma.soft.rc, txrdma.soft.shared),
    *(SoftDevice, SoftProtectionDomain, devices.SoftAddressHandle, devices),
)

SHARED = (
    *(SoftDevice, SoftProtectionDomain, SoftCompletionQueue, SoftCompletionChannel, KeyTable, DoorbellPage),
    *(RoCEPort, UDPPeer, LocalPeers, SharedMemoryPort, PeerDevice, SoftSharedReceiveQueue),
)
"""Classes whose objects several queue pairs share."""

TRIVIAL = (
    # They handle exceptions of others.
    *("serve", "fail", "raised", "_isolated", "_isolate", "_checkArrivals", "takeEvents", "messageReceived"),
    *("_armRoutes", "_pollDormant", "_sweep", "_listRoutes", "armRoute", "_report", "batchEnded", "_watched"),
    *(
        "woken",
        "_due",
        "_expired",
        "_schedule",
        "left",
        "_end",
        "_remove",
        "_release",
        "silence",
        "_leaveQueues",
    ),
    "_readDelayed",
    # They append to a list, or release what they are called for.
    *(
        "push",
        "_datagramCompleted",
        "_flushed",
        "_flushReceives",
        "_raise",
        "ring",
        "hold",
        "release",
        "forget",
    ),
    *("detach", "rouse", "leave", "cancel", "closeMapping", "releaseDoorbell", "_closeBox", "purge"),
)
"""Functions that contain exceptions of others, or release what they are called for."""

QUEUE = [(KeyTable, "_add"), (SharedQueuePair, "join")]
"""Functions that contain exceptions of routes."""

SHORT, LONG = b"short", bytes(range(256)) * 12
PARTIAL = b"the second half"
MESSAGES = SHORT, LONG, PARTIAL, LONG[:1500]
LENGTH = 1 << 16
RECEIVES, THERE, BACK, WORDS = 0x1000, 0x8000, 0xA000, 0xC000
"""Offsets in the memory of an end: of receives, WRITEs of the peer, results of READs and of atomics."""


def texts(end: End) -> list[str]:
    """Describe the completions of an end."""
    return [f"{each.identifier} {each.status.name}" for each in end.completions]


def mappings() -> int:
    """Count the mappings of shared memory in this process."""
    with open("/proc/self/maps") as maps:
        return sum("memfd:" in line for line in maps)


def reachable(*roots: object) -> list[object]:
    """Return the objects of the software device that only these objects use."""
    found: dict[int, object] = {}
    pending = list(roots)
    while pending:
        each = pending.pop()
        if id(each) in found or isinstance(each, SHARED):
            continue
        isOwn = type(each).__module__.startswith("txrdma.soft")
        if isOwn or isinstance(each, (list, tuple, dict, MethodType)) or type(each).__name__ == "deque":
            found[id(each)] = each
            pending += gc.get_referents(each)
    return [each for each in found.values() if type(each).__module__.startswith("txrdma.soft")]


class Completions:
    """A completion queue of a device, with its reader."""

    def __init__(self, host: Host) -> None:
        self.channel = host.device.createChannel()
        self.queue = host.device.createCompletionQueue(1024, self.channel)
        self.ends: dict[int, End] = {}
        self.failures: list[object] = []
        self.reader = CompletionReader(
            cast(Any, host), self.channel, [self.queue], self.completed, self.failures.append
        )

    def completed(self, batch: Sequence[Completion]) -> None:
        for each in batch:
            self.ends[int(each.qpn)].completions.append(each)

    def close(self) -> None:
        self.reader.stop()
        self.queue.close()
        self.channel.close()


class Side:
    """A host with its device, a protection domain, and a completion queue."""

    def __init__(self, host: Host) -> None:
        self.host, self.device = host, host.openDevice()
        self.domain = self.device.createProtectionDomain()
        self.completions = Completions(host)
        self.completions.reader.start()
        self.events: list[object] = []
        self.device.subscribe(self.events.append)
        self.vector = AddressVector(self.device.gids(1)[0], dmac=self.device.mac)

    def close(self) -> None:
        self.domain.close()
        self.completions.close()
        self.device.close()


class End:
    """A queue pair, used as a program would: it makes no more calls after one that raises, but C{close}."""

    def __init__(self, side: Side, kind: QPKind, queues: Completions) -> None:
        self.side, self.kind, queue = side, kind, queues.queue
        self.completions: list[Completion] = []
        self.posted: list[int] = []
        self.raised = 0
        self.received = 0  # number of receives so far
        self.queuePair: Any = None
        self.region: Any = None
        self.queuePair = self.do(side.domain.createQueuePair, kind, queue, queue, Capacity(64, 64, 4, 4, 256))
        self.region = self.do(side.domain.allocateMemory, LENGTH, ALL)
        if self.queuePair is not None:
            queues.ends[int(self.queuePair.number)] = self

    @property
    def isUsable(self) -> bool:
        return self.queuePair is not None and self.region is not None

    def do(self, function: Callable[..., Any], *arguments: Any) -> Any:
        """Call a method, which may raise: then the queue pair is closed at once."""
        try:
            return None if self.raised else function(*arguments)
        except ZeroDivisionError:
            self.raised += 1
            self.close()
            return None

    def join(self, peer: End, timeout: int, retryCount: int) -> None:
        """Connect to another end."""
        if self.kind is QPKind.UD:
            steps = [
                QPAttributes(state=QPState.INIT, pkeyIndex=0, port=1, qkey=QKEY),
                QPAttributes(state=QPState.RTR),
                QPAttributes(state=QPState.RTS, sqPSN=5),
            ]
        else:
            rtr = replace(RTR, address=peer.side.vector, destinationQPN=peer.queuePair.number)
            steps = [INIT, rtr, replace(RTS, timeout=timeout, retryCount=retryCount)]
        for each in steps:
            self.do(self.queuePair.modify, each)

    def segment(self, offset: int, length: int) -> Segment:
        return Segment(self.region.address + offset, length, self.region.lkey)

    def receive(self) -> None:
        identifier = 1000 + self.received
        request = ReceiveRequest(identifier, [self.segment(RECEIVES + self.received * 0x1000, 0x1000)])
        self.received += 1
        self.do(self.queuePair.postReceive, [request])
        if not self.raised:
            self.posted.append(identifier)

    def post(self, identifier: int, operation: Operation, *segments: Segment, **more: Any) -> None:
        self.do(self.queuePair.postSend, [SendRequest(identifier, operation, segments, **more)])
        if not self.raised:
            self.posted.append(identifier)

    def send(self, identifier: int, data: bytes, **more: Any) -> None:
        if self.raised:
            return
        if len(data) <= 64:
            self.post(identifier, Operation.SEND, inline=[data], **more)
        else:
            self.region.view[: len(data)] = data
            self.post(identifier, Operation.SEND, self.segment(0, len(data)), **more)

    def close(self) -> None:
        """Close everything; again if that raises."""
        for each in (self.queuePair, self.region):
            if each is not None:
                for _ in range(2):
                    try:
                        each.close()
                    except ZeroDivisionError:
                        self.raised += 1

    def payloads(self) -> list[bytes]:
        """Return the received messages, in order."""
        if self.raised:
            return []
        skipped = 40 if self.kind is QPKind.UD else 0
        found = []
        for each in self.completions:
            if each.identifier >= 1000 and each.status is Status.SUCCESS:
                begin = RECEIVES + (each.identifier - 1000) * 0x1000
                found.append(bytes(self.region.view[begin + skipped : begin + each.length]))
        return found


class InterruptionTests(SynchronousTestCase):
    """Two pairs of queue pairs between the same devices, of which a function raises once for one of them."""

    maxDiff = None
    slowBecause = "it plays two connections for each function"
    STRIDE = 97
    MOST = 6
    LEAST = 100
    kind = QPKind.RC
    hostClass: type[Host] = Host
    owners: Sequence[Any] = OWNERS

    def setUp(self) -> None:
        skipIfCompiled()
        self.isArmed = False
        self.others: set[int] = set()
        self.queues: list[Completions] = []  # of the affected pair, unless it has those of the other one
        self.calls = Interruptions(self.patch, self.owners, self.isAffected, TRIVIAL)
        gc.freeze()  # each simulation collects garbage
        self.addCleanup(gc.unfreeze)
        ticks = ticking()
        ticks.__enter__()
        self.addCleanup(ticks.__exit__, None, None, None)

    def isAffected(self, *arguments: object) -> bool:
        """Return whether a call is not one for the other pair, also not by its methods."""
        if self.isArmed:
            for each in arguments:
                if id(each) in self.others or id(getattr(each, "route", None)) in self.others:
                    return False
            frame = sys._getframe(2)
            while frame.f_back is not None and frame.f_code.co_name != "turn":
                if not self.others.isdisjoint(id(frame.f_locals.get(name)) for name in ("self", "route")):
                    return False
                frame = frame.f_back
        return self.isArmed

    def makeDevice(self, host: Host) -> SoftDevice:
        return self.world.network.device(host.address)

    def begin(self) -> None:
        self.world = InterruptedWorld(1)
        self.prepare()
        self.sides = []
        for address in ("198.51.100.1", "198.51.100.2"):
            host = self.hostClass(self.world, address, lambda: self.makeDevice(host))  # noqa: B023
            self.sides.append(Side(host))

    def prepare(self) -> None:
        """Prepare the world for the devices."""

    def until(self, condition: Callable[[], Any], what: str, seconds: float = 20.0) -> None:
        if not self.world.until(condition, seconds):
            self.wrong.append(what)

    def pause(self, seconds: float) -> None:
        self.until(self.world.elapsed(seconds), "the time does not pass", seconds + 1)

    def pair(
        self, timeout: int = 14, retryCount: int = 2, queues: Sequence[Completions] = ()
    ) -> tuple[End, End]:
        """Return two connected ends, by default with the completion queues of their sides."""
        queues = queues or [side.completions for side in self.sides]
        one, other = (End(side, self.kind, each) for side, each in zip(self.sides, queues, strict=True))
        if one.isUsable and other.isUsable:
            for here, there in ((one, other), (other, one)):
                here.join(there, timeout, retryCount)
        return one, other

    def address(self, here: End, there: End) -> dict[str, Any]:
        """Return the attributes of a request that address another end."""
        if self.kind is QPKind.RC:
            return {}
        handle = here.do(here.side.domain.createAddressHandle, there.side.vector)
        return {"address": handle, "remoteQPN": there.queuePair.number, "remoteQKey": QKEY}

    def exchange(self, one: End, other: End) -> None:
        """Send a message in each direction, which must arrive."""
        for each in (one, other):
            each.receive()
        before = [len(each.payloads()) for each in (one, other)]
        for here, there in ((one, other), (other, one)):
            here.send(len(here.posted), SHORT, **self.address(here, there))
        self.until(
            lambda: [len(each.payloads()) for each in (one, other)] == [count + 1 for count in before],
            "a bystander's message does not arrive",
        )

    def work(self, one: End, other: End) -> None:
        """Use the ends: send, read and write in both directions, with losses and without receives."""
        for here, there in ((one, other), (other, one)):
            more = self.address(here, there)
            isLate = self.kind is QPKind.RC  # datagrams are lost without a receive
            for _ in range(2 if isLate else len(MESSAGES)):
                there.receive()
            for number, data in enumerate(MESSAGES):
                here.send(number, data[: self.most], **more)
            if self.kind is QPKind.RC and not (here.raised or there.raised):
                where = {"rkey": there.region.rkey}
                begin = there.region.address
                there.region.view[0x7000 : 0x7000 + len(LONG)] = LONG
                here.post(
                    10, Operation.RDMA_WRITE, here.segment(0, 1500), remoteAddress=begin + THERE, **where
                )
                here.post(
                    *(11, Operation.RDMA_READ, here.segment(BACK, len(LONG))),
                    **{"remoteAddress": begin + 0x7000, **where},
                )
                here.post(
                    *(12, Operation.FETCH_AND_ADD, here.segment(WORDS, 8)),
                    **{"remoteAddress": begin + WORDS + 8, "operand": 5, **where},
                )
            self.pause(0.01)
            for _ in range(2 if isLate else 0):
                there.receive()
            self.pause(0.01)

    most = 1 << 16

    def pairOfVictims(self) -> tuple[End, End]:
        """Return the connected ends of which a function raises."""
        return self.pair()

    def release(self) -> None:
        """Release what only these ends use."""

    def lose(self) -> None:
        """Lose packets of the affected pair."""
        for opcode in (Opcode.RC_SEND_MIDDLE, Opcode.RC_ACKNOWLEDGE, Opcode.RC_RDMA_READ_RESPONSE_MIDDLE):
            self.world.network.drop(lambda packet, opcode=opcode: packet.bth.opcode is opcode)  # type: ignore[misc]

    def cut(self, number: int) -> None:
        """Lose the packets to a queue pair of the bystander while functions may raise."""
        self.world.network.drop(lambda packet: self.isCut and packet.bth.destination == number, 1 << 30)

    def play(self) -> list[str]:
        """Use one pair beside another one; return what is wrong."""
        self.wrong: list[str] = []
        self.released = 0
        gc.collect()
        descriptors, maps = openDescriptors(), mappings()
        self.begin()
        bystanders = self.pair(timeout=18, retryCount=7)
        self.exchange(*bystanders)
        self.pause(0.01)
        bystanders[1].receive()
        if self.kind is QPKind.RC:
            self.isCut = True
            self.cut(bystanders[1].queuePair.number)
        bystanders[0].send(50, SHORT, **self.address(*bystanders))
        self.pause(0.001)
        self.others = {id(each) for each in reachable(*(each.queuePair for each in bystanders))}
        self.lose()
        self.isArmed = True
        victims = self.pairOfVictims()
        if all(each.isUsable for each in victims):
            self.work(*victims)
            self.pause(0.5)
        self.judge(*victims)
        for each in victims:
            each.close()
        self.release()
        self.isArmed = self.isCut = False
        self.until(
            lambda: len(bystanders[1].payloads()) == 2, "the bystander's lost message is not sent again"
        )
        self.exchange(*bystanders)
        self.wrong += [
            f"the bystander fails: {each.queuePair}"
            for each in bystanders
            if each.queuePair.state is not QPState.RTS
        ]
        following = self.pair()
        self.exchange(*following)
        for each in (*bystanders, *following):
            if any(end.status for end in each.completions) or each.raised:
                self.wrong.append(f"failed completions: {texts(each)}")
            each.close()
        self.wrong += [
            f"a reader has stopped: {failure}" for side in self.sides for failure in side.completions.failures
        ]
        logged = len(self.flushLoggedErrors(ZeroDivisionError)) + len(self.world.escaped)
        raised = sum(each.raised for each in victims) + self.released
        if logged + raised > 1 or (self.calls.hasRaised and not logged + raised):
            self.wrong.append(f"it was logged {logged} times, and raised {raised} times")
        self.wrong += [f"logged as well: {each.value!r}" for each in self.flushLoggedErrors()]
        self.clear()
        self.world.close()
        gc.collect()
        left = openDescriptors() - descriptors
        if left or mappings() != maps:
            self.wrong.append(f"descriptors are left: {left}, and {mappings() - maps} mappings")
        return self.wrong + self.world.wrong

    def judge(self, one: End, other: End) -> None:
        """Check the completions of two ends, and what they have received."""
        for here, there in ((one, other), (other, one)):
            if here.raised or not here.isUsable:
                continue
            counts = Counter(each.identifier for each in here.completions)
            if any(count > 1 for count in counts.values()):
                self.wrong.append(f"a request has completed twice: {texts(here)}")
            hasFailed = here.queuePair.state is QPState.ERR
            sent = [each for each in here.posted if each < 1000 or hasFailed]
            missing = [each for each in sent if each not in counts]
            if here.queuePair.state in (QPState.RTS, QPState.ERR) and missing:
                self.wrong.append(f"{here.queuePair}: requests have not completed: {missing}")
            expected = [data[: self.most] for data in MESSAGES]
            received = here.payloads()
            if self.kind is QPKind.RC and not there.raised and received != expected[: len(received)]:
                self.wrong.append("wrong messages have arrived")
            if any(each not in expected for each in received):
                self.wrong.append("wrong bytes have arrived")
            done = {each.identifier for each in here.completions if each.status is Status.SUCCESS}
            if 11 in done and here.region.view[BACK : BACK + len(LONG)] != LONG:
                self.wrong.append("wrong bytes were read")
            if (
                10 in done
                and not there.raised
                and there.region.view[THERE : THERE + 1500] != here.region.view[:1500]
            ):
                self.wrong.append("wrong bytes were written")
        isWhole = all(
            each.isUsable and not each.raised and len(each.payloads()) == len(MESSAGES)
            for each in (one, other)
        )
        if not self.calls.hasRaised and not isWhole:
            self.wrong.append(f"messages are missing: {[texts(each) for each in (one, other)]}")

    def clear(self) -> None:
        """Close everything, and check that nothing is left."""
        left: list[object] = []
        for side in self.sides:
            device, queue = side.device, side.completions.queue
            left += [*device._queuePairs, *device.keys._regions.values()]
            left += [*self.tables(device), *queue._awake, *queue._dormant, *queue._members]
            side.close()
            left += [*device.domains, *device._completionQueues, *device._channels, *device._numbers]
            left += [*side.host.readers, *side.host.writers]
        self.pause(1.0)
        left += self.world.clock.calls
        self.wrong += [f"{each!r} is left" for each in left]

    def tables(self, device: SoftDevice) -> list[object]:
        """Return what a device without queue pairs has in its tables."""
        (port,) = [each for each in device.routes if isinstance(each, RoCEPort)]
        return [
            *(*port._routes, *port._deadlines, *port._more, *port._touched, *port._unsent, *port._groups),
            *filter(None, (port._timer, port._inTurn, port._fill)),
        ]

    def test_each(self) -> None:
        """The calls of each function raise, one after the other."""
        self.calls.begin()
        self.assertEqual(self.play(), [])
        self.assertGreater(len(self.calls.counts), self.LEAST)
        for function in QUEUE:
            self.calls.counts.pop(function, None)
        found = {}
        for (owner, name), number in self.calls.each(self.MOST, self.STRIDE):
            if wrong := self.play():
                found[owner.__name__, name, number] = wrong
        self.assertEqual(found, {}, "\n".join(f"{key}: {value}" for key, value in found.items()))


class DatagramTests(InterruptionTests):
    """Datagrams over the network."""

    kind = QPKind.UD
    most = 1000
    LEAST = 50
    STRIDE = 37

    def lose(self) -> None:
        """Lose nothing, since datagrams are not repeated."""


class SharedMemoryTests(InterruptionTests):
    """Reliable connections between two processes of one host."""

    hostClass: type[Host] = SleepyHost

    def prepare(self) -> None:
        self.memory = SimulatedMemory(self.world.clock, 1)

    def makeDevice(self, host: Host) -> SoftDevice:
        return self.memory.device(cast(SharingReactor, host), host.address, MTU.MTU_1024, 1 << 13)

    def lose(self) -> None:
        """Lose nothing."""

    def cut(self, number: int) -> None:
        """Lose nothing."""

    def tables(self, device: SoftDevice) -> list[object]:
        (port,) = [each for each in device.routes if isinstance(each, SharedMemoryPort)]
        return [
            each
            for peer in port._peers.values()
            for each in (
                *peer.queuePairs,
                *peer._unopened,
                *peer._postponed,
                *peer._unanswered,
                *peer._invitations,
            )
        ]


class SleepingTests(SharedMemoryTests):
    """The same with readers that poll by themselves before they sleep."""

    hostClass = Host


class SharedDatagramTests(SharedMemoryTests):
    """Datagrams between two processes of one host."""

    kind = QPKind.UD
    most = 1000
    LEAST = 50

    def makeDevice(self, host: Host) -> SoftDevice:
        carrier = self.world.network.carrier(host.address)
        return self.memory.device(cast(SharingReactor, host), host.address, MTU.MTU_1024, 1 << 13, carrier)

    def tables(self, device: SoftDevice) -> list[object]:
        return InterruptionTests.tables(self, device)


class ReaderTests(SleepingTests):
    """Functions of a reader of completions raise, while another one on the same reactor works."""

    LEAST = 15
    owners: Sequence[Any] = (CompletionReader, completions, Sources, _sources, BusyPoll, _busypoll)

    def isAffected(self, *arguments: object) -> bool:
        """Return whether a call is one for the reader of the affected pair."""
        readers = [each.reader for each in self.queues]
        mine = [*readers, *(each._sources for each in readers), *(each._busyPoll for each in readers)]
        return self.isArmed and any(each is arguments[0] for each in mine if arguments)

    def pairOfVictims(self) -> tuple[End, End]:
        self.queues = [Completions(side.host) for side in self.sides]
        for each in self.queues:
            try:
                each.reader.start()
            except ZeroDivisionError:
                each.failures.append(None)
                self.released += 1
        return self.pair(queues=self.queues)

    def judge(self, one: End, other: End) -> None:
        """Check the results, unless a reader has failed, which is reported to its owner."""
        if not any(each.failures for each in self.queues):
            super().judge(one, other)

    def play(self) -> list[str]:
        return [each for each in super().play() if "the reactor has removed" not in each]

    def release(self) -> None:
        for each in self.queues:
            for _ in range(2):
                try:
                    each.close()
                    break
                except ZeroDivisionError:
                    self.released += 1


class PollingReaderTests(ReaderTests):
    """The same on a reactor that polls completion queues."""

    LEAST = 4

    hostClass = SleepyHost
