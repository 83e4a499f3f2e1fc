"""
LLC flows between two hosts with a fault at one of their messages, and checks of the result.

A flow is first played without a fault, which counts its messages; then once for each message and each kind of
fault. Meanwhile, connections transfer data in both directions.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import replace
from typing import Any, Final
from unittest import mock

from twisted.internet.error import ConnectionDone

from txrdma.smc.group import buffers as buffersModule
from txrdma.smc.group._groupstate import LinkLife
from txrdma.smc.group.group import LinkGroup
from txrdma.smc.group.groups import closeLinkGroups, LinkGroups, useDevice
from txrdma.smc.group.link import Link
from txrdma.smc.wire.llc import decode, LLC, LLCType
from txrdma.test.support.smc.races import Listener, RaceTestCase
from txrdma.testing.smc.hosts import Host
from txrdma.testing.smc.scenario import DEVICE

WRITTEN: Final = bytes(range(251)) * 100

LATEST: Final = 60.0
"""
Seconds within which bytes arrive or connections end: TEST LINK after 30 s, then the queue pair's retries.
"""

IDLE: Final = 30.0
"""Seconds for which the server retains a link group without connections."""

NETWORKS: Final = tuple(f"203.0.{each}" for each in range(113, 118))

Flow = Callable[["FlowTestCase"], Iterator[None]]
"""Prepares a flow, yields, and begins the flow."""

FAULTS: Final = (
    *("refused", "before", "after", "there", "lost", "doubled", "late", "cut", "down", "downThere"),
    *("ends", "closes", "killed"),
)
"""Faults at a message; the methods C{fault_...} describe them."""

PROMPT: Final = ("refused", "before", "after", "there", "doubled")
"""Faults that are detected without a timeout: with another link, no handshake may fail because of them."""

Send = Callable[[Link, bytes], "str | None"]


class Ending(Listener):
    """A listener that shows whether all data has arrived, and whether the connection has ended in any way."""

    @property
    def isWhole(self) -> bool:
        """Whether all data of the peer has arrived."""
        return self.received in (WRITTEN, WRITTEN[::-1])

    @property
    def isOver(self) -> bool:
        """Whether the connection has ended: by an error, or in order because the peer's process ends."""
        return self.hasEnded or self.reason is not None


def asking() -> Ending:
    """Return a client that writes as soon as it is connected."""
    return Ending(lambda listener: listener.transport.write(WRITTEN))


def answering() -> Ending:
    """Return a server that writes as soon as it is connected."""
    return Ending(lambda listener: listener.transport.write(WRITTEN[::-1]))


class FlowTestCase(RaceTestCase):
    """
    Two hosts with several ports, each on its own device.

    @ivar output: LLC messages of the flow so far.
    @ivar step: number of the message at which the fault happens; None: no fault.
    @ivar ends: the connections that transfer data, in pairs.
    @ivar isHarmless: connections must survive the fault; C{isFatal}: the flow itself ends them.
    @ivar count: number of ports of each host.
    @ivar version: version of SMC-R; C{isTesting}: TEST LINK is a part of the flow.
    """

    count = 2
    version = 2
    isTesting = False

    def setUp(self) -> None:
        """Reset the state; a test calls this for each world that it plays."""
        self.output: list[LLC] = []
        self.ends: list[tuple[Ending, Ending]] = []
        self.step: int | None = None
        self.fault = ""
        self.isHarmless = True
        self.isFatal = False
        super().setUp()

    def groups(self, host: Host) -> LinkGroups:
        number = host.address.rpartition(".")[2]
        addresses = [f"{network}.{number}" for network in NETWORKS[: self.count]]
        host.addresses = (host.address, *addresses)
        devices = [self.world.network.device(each) for each in addresses]
        for device in devices:
            device.attributes = replace(device.attributes, acknowledgesByProgram=False)
        groups = useDevice(host, DEVICE, *devices)
        groups.ringSize = lambda: 16384  # type: ignore[method-assign]  # the default is larger
        groups.timing = replace(groups.timing, serverIdle=IDLE, clientIdle=IDLE + 1)
        self.groupsOf[host] = groups
        return groups

    # Preparation of flows

    def enable(self, at: int, isEnabled: bool, *hosts: Host) -> None:
        """Set a port up or down, on both hosts unless some are given."""
        for host in hosts or (self.client, self.server):
            device: Any = self.groupsOf[host].devices[at]
            device.setPortEnabled(1, isEnabled)

    def groupOf(self, host: Host) -> LinkGroup | None:
        """Return the link group of a host, or None."""
        groups = self.groupsOf[host].groups()
        return groups[0] if groups and not host.isDead else None

    def active(self, host: Host) -> list[int]:
        """Return the numbers of a host's active links."""
        group = self.groupOf(host)
        return sorted(link.life.number for link in group.links if link.isActive) if group else []

    def talkers(self, count: int) -> None:
        """Establish this number of SMC-R connections."""
        for _ in range(count):
            here, there = Ending(), Ending()
            self.connect(here, there)
            self.until(lambda here=here, there=there: here.mode and there.mode)  # type: ignore[misc]
            self.assertEqual((here.mode, there.mode), ("SMC-R", "SMC-R"))
            self.ends.append((here, there))

    def begin(self) -> None:
        """Begin one more connection, whose ends write at once."""
        here, there = asking(), answering()
        self.ends.append((here, there))
        self.connect(here, there)

    def linked(self, count: int) -> None:
        """Wait until both hosts have this number of active links."""
        self.until(lambda: all(len(self.active(host)) == count for host in (self.client, self.server)), 20)

    # Faults

    @contextmanager
    def tapped(self) -> Iterator[None]:
        """Record the LLC messages that links send, and let the fault happen at message C{step}."""
        send = Link.send

        def tap(link: Link, raw: bytes) -> str | None:
            one, number = decode(raw), len(self.output)
            if one.type is LLCType.TEST_LINK and not self.isTesting:
                return send(link, raw)
            self.output.append(one)
            if number == self.step:
                self.isHarmless = not self.isFatal and self.isRedundant(link)
                fault: Callable[[Link, bytes, Send], str | None] = getattr(self, f"fault_{self.fault}")
                return fault(link, raw, send)
            return send(link, raw)

        with mock.patch.object(Link, "send", tap):
            yield

    def isRedundant(self, link: Link) -> bool:
        """Return whether both ends have another link in common that shares no port with this one."""
        places = []
        for host in (self.client, self.server):
            group = self.groupOf(host)
            lives = group.core.links if group is not None else []
            mine = next((life for life in lives if life.number == link.life.number), link.life)
            places.append(
                {life.number for life in lives if life is not mine and not self.isShared(life, mine)}
            )
        return bool(set.intersection(*places))

    def isShared(self, one: LinkLife, other: LinkLife) -> bool:
        """Return whether two links have a port in common, as far as their remote ends are known."""
        if one.remote is None or other.remote is None:
            return one.local.gid == other.local.gid
        return not one.isSymmetricTo(other)

    def other(self, link: Link) -> tuple[Host, Link | None]:
        """Return the peer's host, and its end of a link, or None if it has none."""
        host = self.server if link._reactor is self.client else self.client
        group, far = self.groupOf(host), link._peerEnd
        links = group.links if group is not None and far is not None else []
        return host, next((each for each in links if far is not None and each.qpn == far.qpn), None)

    def callSoon(self, call: Callable[..., object], *args: object) -> None:
        """Call a function after 1 ms, when messages in flight have arrived."""
        self.world.clock.callLater(1e-3, call, *args)

    def fault_refused(self, link: Link, raw: bytes, send: Send) -> str | None:
        """The device refuses to send the message."""
        return "refused for the test"

    def fault_before(self, link: Link, raw: bytes, send: Send) -> str | None:
        """The local queue pair fails, and the message is lost."""
        self.callSoon(link.broken, "for the test")
        return None

    def fault_after(self, link: Link, raw: bytes, send: Send) -> str | None:
        """The local queue pair fails after the message has arrived."""
        self.callSoon(link.broken, "for the test")
        return send(link, raw)

    def fault_there(self, link: Link, raw: bytes, send: Send) -> str | None:
        """The peer's queue pair fails after the message has arrived."""
        _, far = self.other(link)
        if far is not None:
            self.callSoon(far.broken, "for the test")
        return send(link, raw)

    def fault_lost(self, link: Link, raw: bytes, send: Send) -> str | None:
        """The message is lost without an error."""
        return None

    def fault_doubled(self, link: Link, raw: bytes, send: Send) -> str | None:
        """The message arrives twice."""
        return send(link, raw) or send(link, raw)

    def fault_late(self, link: Link, raw: bytes, send: Send) -> str | None:
        """The message is sent 7.5 s late, after the timeouts of LLC."""
        self.world.clock.callLater(7.5, send, link, raw)
        return None

    def fault_cut(self, link: Link, raw: bytes, send: Send) -> str | None:
        """The network drops all packets of the link's local port from now on, without an error."""
        for host in (self.client, self.server):
            for address in host.addresses:
                self.world.network.partition(str(link.port.candidate.gid.ip), address)
        return send(link, raw)

    def fault_down(self, link: Link, raw: bytes, send: Send) -> str | None:
        """The link's local port goes down, and up again after 5 s."""
        self._portDown(link)
        return send(link, raw)

    def fault_downThere(self, link: Link, raw: bytes, send: Send) -> str | None:
        """The link's remote port goes down, and up again after 5 s."""
        _, far = self.other(link)
        if far is not None:
            self._portDown(far)
        return send(link, raw)

    def _portDown(self, link: Link) -> None:
        device: Any = link.port.device
        self.world.clock.callLater(0, device.setPortEnabled, 1, False)
        self.world.clock.callLater(5.0, device.setPortEnabled, 1, True)

    def fault_ends(self, link: Link, raw: bytes, send: Send) -> str | None:
        """The peer ends the link group in order, by DELETE LINK."""
        host, _ = self.other(link)
        group = self.groupOf(host)
        self.isHarmless = False
        if group is not None:
            self.callSoon(group.shutdown)
        return send(link, raw)

    def fault_closes(self, link: Link, raw: bytes, send: Send) -> str | None:
        """The peer closes the link group at once."""
        host, _ = self.other(link)
        group = self.groupOf(host)
        self.isHarmless = False
        if group is not None:
            self.callSoon(group.close, "for the test")
        return send(link, raw)

    def fault_killed(self, link: Link, raw: bytes, send: Send) -> str | None:
        """The peer's process is killed."""
        host, _ = self.other(link)
        self.isHarmless = False
        self.world.clock.callLater(0, host.die, False)
        return send(link, raw)

    # Checks

    def play(self, flow: Flow, step: int | None, fault: str) -> None:
        """Play a flow with a fault at one of its messages, or without one, and check the result."""
        self.close()
        self.setUp()
        self.options = replace(self.options, versions=(self.version,), ueids=("TXRDMA",))
        self.patch(buffersModule, "MOST_ELEMENTS", 1)
        self.step, self.fault = step, fault
        steps = flow(self)
        next(steps)
        with self.tapped():
            for here, there in self.ends:
                here.transport.write(WRITTEN)
                there.transport.write(WRITTEN[::-1])
            with suppress(StopIteration):
                next(steps)
            self.wait(LATEST if step is not None else 10)
        self.step = None
        self.check()

    def check(self) -> None:
        """
        Check the connections, that a new one can be established, and that nothing remains after all have
        closed.
        """
        for here, there in self.ends:
            self.checkPair(here, there)
        hosts = (self.client, self.server)
        if not any(host.isDead for host in hosts):
            links, others = (self.active(host) for host in hosts)
            self.assertEqual(links, others, "the links of both ends differ")
            if links and self.fault != "cut":
                self.assertEqual(len(links), self.count, "a link was not restored")
            self.world.network.heal()
            self.begin()
            one, other = self.ends[-1]
            self.until(lambda: one.isWhole and other.isWhole, 20)
            self.assertEqual(one.mode, other.mode)
        for pair in self.ends:
            for end, host in zip(pair, hosts, strict=True):
                if end.mode and not end.reason and not host.isDead:
                    end.transport.loseConnection()
        self.wait(5)
        for here, there in self.ends:
            for end, host in ((here, self.client), (there, self.server)):
                self.assertTrue(end.reason or not end.mode or host.isDead, "a connection does not end")
        self.wait(IDLE + 5)
        for host in hosts:
            groups = self.groupsOf[host]
            if not host.isDead:
                self.assertEqual(groups.groups(), [], "a link group remains")
                self.assertEqual([len(device.keys) for device in groups.devices], [0] * self.count)  # type: ignore[attr-defined]  # the software device's

    def close(self) -> None:
        """Close everything that the last world has left open, since a test plays many worlds."""
        for host in (self.client, self.server):
            closeLinkGroups(host)
        for use in self.uses:
            use.release()
        self.world.close()

    def checkPair(self, here: Ending, there: Ending) -> None:
        """Check that all data has arrived, or that each end with a live process was notified of the end."""
        if any(host.isDead for host in (self.client, self.server)):
            alive = there if self.client.isDead else here
            isReportedByTCP = alive.mode == "TCP" and alive.hasEnded  # its protocol can be half-closed
            self.assertTrue(
                alive.reason or not alive.mode or isReportedByTCP, "the end of the peer is not reported"
            )
            return
        if self.isHarmless and self.fault in PROMPT:
            self.assertEqual((here.mode, there.mode), ("SMC-R", "SMC-R"))
        if here.mode == there.mode and not (here.isOver or there.isOver):
            self.assertTrue(here.isWhole and there.isWhole, "silence")
            return
        self.assertFalse(self.isHarmless, "a connection with another link has ended")
        for end in (here, there):
            self.assertTrue(end.isOver or not end.mode, "only one end detected the end")
            self.assertIsNot(end.reason, ConnectionDone)
