"""Hostile processes that share UDP port 4791 of an address: messages of members to the coordinator."""

from __future__ import annotations

import errno
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import replace
from types import SimpleNamespace
from typing import Any, Final
from unittest import mock

from twisted.internet.error import ConnectionDone

from txrdma.sim.sharedmemory import ProcessRendezvous, SimulatedMemory
from txrdma.soft import device as deviceModule
from txrdma.soft.core import memory as memoryModule
from txrdma.soft.host import forwarding as forwardingModule
from txrdma.soft.host import member as memberModule
from txrdma.soft.host.forwarding import MOST_AWAITED
from txrdma.soft.host.member import LINES, PortMember
from txrdma.testing.hostile.plans import HostilePlan
from txrdma.testing.hostile.scenario import HostileScenario
from txrdma.testing.hostile.talkers import Pair, Talker
from txrdma.testing.hostile.wiring import LINE, TamperedLines
from txrdma.testing.outcome import check
from txrdma.testing.smc.hosts import Host
from txrdma.unix.sockets import Credentials

_member: Any = memberModule  # with what it imports from its cores
SERVICES: Final[int] = _member.SERVICES
POSITION: Final[int] = _member.POSITION

_ADDRESS: Final = "10.0.9.1"
_PORT: Final = 4791
_HEAD: Final = 12  # bytes of a BTH
_LONGEST: Final = 4000
_AGAIN_SECONDS: Final = 0.5
_MOST_TIMES: Final = 40
_SECONDS: Final = 20e-6


class _Dialed:
    """A socket that is connected to a listener, before it becomes a line."""

    def __init__(self, name: bytes) -> None:
        self.name = name

    def close(self) -> None:
        """Do nothing: the listener has not accepted it yet."""


class Address:
    """
    The sockets and names of an address, which simulated processes share.

    @ivar members: devices by the positions of their sockets at port 4791; as in Linux, the last one replaces
        one that is closed.
    @ivar positions: positions of sockets by share, in the latest filter.
    """

    def __init__(self, memory: SimulatedMemory) -> None:
        self._memory = memory
        self.members: list[Member] = []
        self.positions: dict[int, int] = {}
        self._claims: set[int] = set()

    def leave(self, member: Member) -> None:
        """Close the socket of a device."""
        if member in self.members:
            at = self.members.index(member)
            last = self.members.pop()
            if last is not member:
                self.members[at] = last

    # Functions that replace system calls

    def connectTo(self, kind: int, name: bytes) -> _Dialed:
        if (name.decode(), _PORT) not in self._memory.listening:
            raise ConnectionRefusedError(errno.ECONNREFUSED, "nobody listens")
        return _Dialed(name)

    def listener(
        self, reactor: Any, kind: int, name: bytes, accepted: Callable[[Any], None], purpose: str
    ) -> Any:
        return ProcessRendezvous(self._memory, reactor, 1).listen(name.decode(), _PORT, accepted)

    def line(self, reactor: Any, connected: Any) -> Any:
        if isinstance(connected, _Dialed):
            rendezvous = ProcessRendezvous(self._memory, reactor, 1)
            connected = rendezvous.connect(connected.name.decode(), _PORT)
        connected.isWaiting = False
        return connected

    def claim(self, address: str, serviceID: int) -> Callable[[], None]:
        self._claims.add(serviceID)
        return lambda: self._claims.discard(serviceID)

    def isClaimed(self, address: str, serviceID: int) -> bool:
        return serviceID in self._claims

    def isShareTaken(self, address: str, share: int) -> bool:
        return any(each.share == share for each in self.members)

    def attach(self, bound: Any, program: dict[int, int]) -> None:
        self.positions = program

    @contextmanager
    def replacing(self) -> Iterator[None]:
        """Replace the system calls of L{PortMember}."""
        with (
            mock.patch.multiple(
                memberModule,
                connectTo=self.connectTo,
                peerOf=lambda connected: Credentials(1, os.geteuid()),
                LocalListener=self.listener,
                PacketSocket=self.line,
                claimService=self.claim,
                filterProgram=lambda positions, home: dict(positions),
                attachFilter=self.attach,
            ),
            mock.patch.multiple(forwardingModule, isClaimed=self.isClaimed, isShareTaken=self.isShareTaken),
        ):
            yield


class Member(Talker):
    """
    A device at port 4791, and an end that sends packets to its peer, again until they arrive.

    @ivar share: its share; C{member}: its part in the sharing of the port.
    """

    isMade = True
    peer: Member

    def __init__(self, host: Host, address: Address, share: int) -> None:
        self._host, self._address, self.share = host, address, share
        self._number = 0
        self.peer = self
        self._taken: set[tuple[int, int]] = set()
        address.members.append(self)
        bound: Any = SimpleNamespace()
        reactor: Any = host
        self.member = PortMember(reactor, _ADDRESS, share, bound)
        self.member.claim(share)
        self.member.setReceiving(True)
        self.member.start(self.sendProbe, self.forwarded)

    # Callbacks of L{PortMember.start}

    def sendProbe(self, payload: bytes) -> None:
        if payload[0] < len(self._address.members):
            target = self._address.members[payload[0]]
            target._host.callLater(_SECONDS, target.probed, bytes(POSITION) + payload)

    def probed(self, packet: bytes) -> None:
        """Receive a probe."""
        self.member.redirect(0, memoryview(packet), (_ADDRESS, _PORT))

    def forwarded(self, source: tuple[str, int], packet: memoryview) -> None:
        key = int.from_bytes(packet[8:10], "big"), int.from_bytes(packet[10:12], "big")
        if key[0] == self.peer.share and key not in self._taken:
            self._taken.add(key)
            self.received += len(packet) - _HEAD

    # Talker

    def send(self, data: bytes) -> None:
        for at in range(0, len(data), _LONGEST):
            self._number += 1
            head = bytes(5) + ((self.peer.share << 16) + 5).to_bytes(3, "big") + self.share.to_bytes(2, "big")
            self._pass(head + self._number.to_bytes(2, "big") + data[at : at + _LONGEST], _MOST_TIMES)

    def _pass(self, packet: bytes, times: int) -> None:
        """Receive a packet for the peer from the network, as if the filter had passed it to this device."""
        key = self.share, int.from_bytes(packet[10:12], "big")
        if self.lost is None and times and key not in self.peer._taken:
            self.member.redirect((self.peer.share << 16) + 5, memoryview(packet), ("10.0.0.7", _PORT))
            self._host.callLater(_AGAIN_SECONDS, self._pass, packet, times - 1)

    def close(self) -> None:
        """Record the end of the connection at both ends."""
        for each in (self, self.peer):
            each.lost = each.lost or ConnectionDone()

    abort = close

    def leave(self) -> None:
        """Close the device."""
        self._address.leave(self)
        self.member.close()


class CoordinatorScenario(HostileScenario):
    """A simulation with a hostile member of a coordinator of port 4791: three processes of one host."""

    channels = (LINE,)
    chance = ((memberModule, "randbits"), (memoryModule, "randbits"), (deviceModule, "randbelow"))
    quiet = 30.0

    def __init__(self, plan: HostilePlan) -> None:
        super().__init__(plan)
        self._memory = SimulatedMemory(self.world.clock, 1)
        self._lines = TamperedLines(self._memory, self.hostile, self.tamper)
        self._address = Address(self._memory)
        self._shares = iter(range(1, 200))

    @classmethod
    def draw(cls, seed: int) -> HostilePlan:
        """Draw a plan in which the victim is the coordinator: members trust theirs to pass on packets."""
        return replace(super().draw(seed), isServer=False)

    def _play(self) -> None:
        with self._address.replacing():
            super()._play()

    def begin(self) -> None:
        self._members = {host: self._newMember(host) for host in (self.victim, self.honest)}
        self.run(1.0)

    def _newMember(self, host: Host) -> Member:
        return Member(host, self._address, next(self._shares))

    def connect(self, client: Host, server: Host) -> Pair:
        """Return a pair of a member, which the hostile host opens anew, and the coordinator."""
        here = self._newMember(client)
        there = self._newMember(server)
        here.peer, there.peer = there, here
        return Pair(here, there)

    def kill(self, silently: bool) -> None:
        """Kill the hostile process; the system closes its sockets in any case."""
        super().kill(False)
        self._memory.kill(self.hostile)
        for member in [each for each in self._address.members if each._host is self.hostile]:
            self._address.leave(member)

    def judge(self) -> None:
        """Check the limits of the victim, unless another device has replaced it as the coordinator."""
        member = self._members[self.victim].member
        coordinator, forwarder = member._forwarder.coordinator, member._forwarder
        if coordinator is None:
            return
        check(len(member._lines) <= LINES, f"{len(member._lines)} lines")
        check(len(forwarder._awaited) <= MOST_AWAITED, f"{len(forwarder._awaited)} packets are stored")
        check(len(coordinator._services) <= SERVICES, f"{len(coordinator._services)} services")

    def end(self) -> None:
        """Check that the coordinator knows the members of the victim and the honest host only."""
        found = [each.member._forwarder.coordinator for each in self._address.members]
        (coordinator,) = (each for each in found if each is not None)
        expected = {each.share for each in self._address.members}
        check(coordinator.shares == expected, f"{coordinator.shares} are members, not {expected}")
        left = set(coordinator._services.values()) | coordinator._receiving
        check(left <= expected, f"services of {left - expected} are left")
        positions = {each.share: at for at, each in enumerate(self._address.members)}
        check(
            self._address.positions == positions, f"the filter has {self._address.positions}, not {positions}"
        )
        for member in list(self._address.members):
            member.leave()

    def close(self) -> None:
        for member in list(self._address.members):
            with suppress(Exception):  # the host may have failed
                member.leave()
        self._lines.close()
