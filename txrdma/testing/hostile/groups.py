"""
Hostile members of groups of the byte transfer layer, and hostile rendezvous.

A group has the victim, the honest host and the hostile one as members. Besides the messages of the hostile
one, its calls of operations are mutated: it calls one twice, another one, with data of another length, or
never. Another group of the victim and the honest host must not be affected.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import partial
from itertools import count
from random import Random
from struct import Struct
from typing import Any, Final

from twisted.internet.address import IPv4Address
from twisted.internet.defer import CancelledError, Deferred, succeed
from twisted.internet.error import ConnectionDone, ConnectionRefusedError, UserError
from twisted.python.failure import Failure

from txrdma.btl.groups import sharing as sharingModule
from txrdma.btl.groups import terms as termsModule
from txrdma.btl.groups.errors import GroupFailed
from txrdma.btl.groups.group import Group
from txrdma.btl.groups.rendezvous import Rendezvous
from txrdma.btl.groups.sharing import GroupMemory
from txrdma.btl.groups.terms import GroupTerms
from txrdma.kit import proofs as proofsModule
from txrdma.testing.hostile import btl
from txrdma.testing.hostile.plans import HostilePlan
from txrdma.testing.hostile.scenario import HostileScenario
from txrdma.testing.hostile.talkers import Pair, Talker
from txrdma.testing.hostile.tampering import Message, Tamper
from txrdma.testing.hostile.wiring import Proved, TamperedSocket, TCP, UD
from txrdma.testing.outcome import check
from txrdma.testing.smc.hosts import connectedSockets, Host, MemoryTCP

CALL: Final = "CALL"
"""Channel of the calls of operations: the number of the operation, the root and the data."""

SLOT: Final = "SLOT"
"""Channel of the steps that members publish in shared memory."""

_HEADER: Final = Struct("QQ")
_AREA_BYTES: Final = 256
_SECONDS: Final = 50e-6
_BRACE: Final = ord("{")


def lengthOf(data: bytes) -> int:
    """Return the length of the first line of the rendezvous, or of the first message between members."""
    return data.find(b"\n") + 1 if data[0] == _BRACE else btl.lengthOf(data)


def resized(message: bytes) -> bytes:
    """Return a message between members whose head has the message's length."""
    return message if message[:1] == b"{" else btl.resized(message)


class GroupHost(Host):
    """
    A host whose reactor has TCP.

    @ivar tamper: mutates what the host sends, or None.
    @ivar numbers: numbers of ports, common to all hosts.
    """

    tamper: Tamper | None = None
    numbers: Iterator[int]

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        self.listening: dict[int, Any] = {}

    def listenTCP(self, port: int, factory: Any, backlog: int = 50, interface: str = "") -> _Port:
        return _Port(self, next(self.numbers), factory)

    def connectTCP(
        self, host: str, port: int, factory: Any, timeout: float = 30.0, bindAddress: Any = None
    ) -> _Connector:
        connector = _Connector(host, port)
        factory.startedConnecting(connector)
        self.callLater(0, self._connect, connector, factory)
        return connector

    def _connect(self, connector: _Connector, factory: Any) -> None:
        server = next((each for each in self.world.hosts if each.address == connector.host), None)
        listening = None
        if isinstance(server, GroupHost) and not server.isDead:
            listening = server.listening.get(connector.port)
        if listening is None or connector.isStopped:
            error = UserError() if connector.isStopped else ConnectionRefusedError()
            factory.clientConnectionFailed(connector, Failure(error))
            return
        assert isinstance(server, GroupHost)
        number = next(self.numbers)
        sockets = connectedSockets(self.world, Random(number), self, server, number, _SECONDS)
        accepted = listening.buildProtocol(IPv4Address("TCP", self.address, number))
        protocol = factory.buildProtocol(IPv4Address("TCP", server.address, connector.port))
        for socket, each in zip(sockets, (protocol, accepted), strict=True):
            tamper = getattr(socket.host, "tamper", None)
            if tamper is not None:
                TamperedSocket(socket, tamper, Proved(each is protocol, lengthOf))
        server.callLater(0, MemoryTCP(sockets[1], accepted).begin)
        MemoryTCP(sockets[0], protocol).begin()  # before the attempt can be cancelled


class _Port:
    """A TCP port that listens."""

    def __init__(self, host: GroupHost, number: int, factory: Any) -> None:
        self._host, self._number = host, number
        host.listening[number] = factory

    def getHost(self) -> IPv4Address:
        return IPv4Address("TCP", self._host.address, self._number)

    def stopListening(self) -> Deferred[None]:
        self._host.listening.pop(self._number, None)
        return succeed(None)


class _Connector:
    """An attempt to connect."""

    isStopped = False

    def __init__(self, host: str, port: int) -> None:
        self.host, self.port = host, port

    def stopConnecting(self) -> None:
        self.isStopped = True

    def getDestination(self) -> IPv4Address:
        return IPv4Address("TCP", self.host, self.port)


def _operations(group: Group, root: int, data: bytes) -> Sequence[Callable[[], Deferred[Any]]]:
    items = [data] * group.size
    return (
        group.barrier,
        partial(group.broadcast, bytearray(data), root),
        partial(group.reduce, data, "max", root),
        partial(group.allreduce, data, "max"),
        partial(group.gather, data, root),
        partial(group.allgather, data),
        partial(group.scatter, items if group.rank == root else None, root),
        partial(group.alltoall, items),
    )


def _tamperSlots(memory: GroupMemory, tamper: Tamper) -> None:
    """Mutate each step that a member publishes in shared memory: kind and length, and the data's begin."""
    slots = memory.slots
    publish = slots.publish

    def tampered(kind: int, length: int) -> None:
        head = _HEADER.pack(kind, length)
        for each in tamper.replaced(SLOT, Message(head + bytes(slots.next()[:_AREA_BYTES]))):
            if len(each.content) >= _HEADER.size:
                area = slots.next()
                begin = each.content[_HEADER.size :][: len(area)]
                area[: len(begin)] = begin
                publish(*_HEADER.unpack_from(each.content))

    slots.publish = tampered  # type: ignore[method-assign]  # this is the interception


class GroupTalker(Talker):
    """
    A member of a group.

    @ivar host: its host; C{members}: all members, by rank.
    @ivar pending: operations without a result.
    """

    def __init__(self, host: Host) -> None:
        self.host = host
        self.members: Sequence[GroupTalker] = ()
        self.pending: set[Deferred[Any]] = set()
        self.group: Group | None = None
        self.joining: Deferred[Any] = Deferred()
        self._early: list[bytes] = []
        self._calls = 0

    def joined(self, group: Group) -> None:
        """Call the operations that other members have called before."""
        self.group = group
        self.isMade = True
        tamper = getattr(self.host, "tamper", None)
        if tamper is not None and group._memory is not None:
            _tamperSlots(group._memory, tamper)
        early, self._early = self._early, []
        for each in early:
            self.call(each)

    def send(self, data: bytes) -> None:
        """Call the next collective operation with this data at each member of the group."""
        self._calls += 1
        content = bytes([self._calls, self._calls // 8]) + data
        for each in self.members:
            each.host.callLater(0, each.call, content)

    def call(self, content: bytes) -> None:
        """Call an operation."""
        if self.group is None:
            self._early.append(content)
            return
        tamper = getattr(self.host, "tamper", None)
        calls = [Message(content)] if tamper is None else tamper.replaced(CALL, Message(content))
        for each in calls:
            if len(each.content) >= 2:
                kind, root, data = each.content[0], each.content[1], each.content[2:]
                operations = _operations(self.group, root % self.group.size, data)
                self._wait(operations[kind % len(operations)](), len(data))

    def _wait(self, result: Deferred[Any], length: int) -> None:
        self.pending.add(result)

        def ended(found: Any) -> None:
            self.pending.remove(result)
            if isinstance(found, Failure):
                found.trap(GroupFailed)
                self.lost = self.lost or found.value
            else:
                self.received += length

        result.addBoth(ended)

    def close(self) -> None:
        if self.group is None:
            self.joining.cancel()
        else:
            self.group.close().addCallback(self._closed)

    def _closed(self, _: object) -> None:
        self.lost = self.lost or ConnectionDone()

    def abort(self) -> None:
        if self.group is not None:
            for each in self.group._members.transports.values():
                each.abortConnection()
        self.close()


class GroupScenario(HostileScenario):
    """A simulation with a hostile member of a group; the hostile host may also have the rendezvous."""

    channels: tuple[str, ...] = (TCP, TCP, UD, CALL)
    chance = (
        *btl.BTLScenario.chance,
        (proofsModule, "token_bytes"),
        (sharingModule, "token_bytes"),
        (termsModule, "token_bytes"),
    )
    constants: Sequence[tuple[Any, str, object]] = (
        *btl.BTLScenario.constants,
        (sharingModule, "whyNoSharedMemory", lambda: "a simulation"),
    )
    resize = {TCP: resized}
    hostClass = GroupHost
    quiet = 400.0

    def __init__(self, plan: HostilePlan) -> None:
        super().__init__(plan)
        self._rendezvous: list[Rendezvous] = []
        self._members: list[GroupTalker] = []
        numbers = count(40_000)
        for host in self.hosts:
            assert isinstance(host, GroupHost)
            host.numbers = numbers
            host.tamper = self.tamper if host is self.hostile else None

    def connect(self, client: Host, server: Host) -> Pair:
        """Let two hosts join a group, with the honest host as a third one if one of them is hostile."""
        pair = Pair(GroupTalker(client), GroupTalker(server))
        members = [each for each in (pair.client, pair.server) if isinstance(each, GroupTalker)]
        if self.hostile in (client, server):
            members.append(self.accept(GroupTalker(self.honest)))
        Random(self.plan.seed).shuffle(members)
        rendezvous = Rendezvous(server, len(members), server.address)
        rendezvous.listen()
        self._rendezvous.append(rendezvous)
        for rank, each in enumerate(members):
            each.members = members
            each.host.callLater(0, self._join, each, rendezvous.terms(rank))
            if each.host is self.victim:
                self.accept(each)
        self._members += members
        return pair

    def _join(self, member: GroupTalker, terms: GroupTerms) -> None:
        host = member.host
        member.joining = Group.join(host, terms, host.device, host.address)
        member.joining.addCallback(member.joined)
        member.joining.addErrback(lambda failure: failure.trap(GroupFailed, CancelledError))
        self.watch(host, member.joining)

    def _endInOrder(self, pair: Pair) -> None:
        assert pair.server is not None
        pair.server.close()
        super()._endInOrder(pair)

    def judge(self) -> None:
        """Check the limits of each rendezvous, and that no operation waits for a host that has ended."""
        for each in self._rendezvous:
            check(len(each._lines) <= each._size and len(each._proved) == 0, f"{each._lines}, {each._proved}")
        if self.hostile.isDead:
            for member in self._members:
                isOver = member.host is self.hostile or not member.pending
                check(isOver, f"{len(member.pending)} operations have no result")

    def end(self) -> None:
        for each in self._rendezvous:
            each.close()

    def close(self) -> None:
        btl.closeModules(self.hosts)


class GroupMemoryScenario(GroupScenario):
    """A simulation of groups whose members share memory; all polls time out, in each run alike."""

    channels = (TCP, UD, CALL, SLOT, SLOT)
    constants = (
        *btl.BTLScenario.constants,
        (sharingModule, "GroupMemory", partial(GroupMemory, seconds=partial(next, count(0.0, 2.0**-10)))),
    )
