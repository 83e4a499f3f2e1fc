"""
Tests for L{txrdma.soft.rc._migration} and L{txrdma.soft.rc.routes}: alternate paths, on a simulated network.
"""

from __future__ import annotations

import os
from random import Random
from typing import Any

from twisted.internet.task import Clock
from twisted.trial.unittest import SynchronousTestCase

from txrdma.iba.headers import BTH, Opcode
from txrdma.iba.roce import RoCEPacket, UDPFlow
from txrdma.iba.times import ackTimeoutSeconds
from txrdma.iba.types import DEFAULT_PKEY, GID
from txrdma.iba.verbs import (
    AddressVector,
    AsyncEventKind,
    MigrationState,
    Operation,
    QPAttributes,
    QPState,
    Status,
)
from txrdma.interfaces import IDisarmable
from txrdma.sim.network import SimulatedNetwork
from txrdma.soft.core.roundtrip import PATH_SECONDS
from txrdma.soft.rc._migration import Migration
from txrdma.test.support.clocks import elapse
from txrdma.test.support.soft.pairs import connected, End

A1, A2, B1, B2, B3 = "10.0.1.1", "10.0.2.1", "10.0.1.2", "10.0.2.2", "10.0.3.2"
MIGRATED, REARM, ARMED = MigrationState
FAILED = AsyncEventKind.PATH_MIGRATION_FAILED
DONE = AsyncEventKind.PATH_MIGRATED


class StateTests(SynchronousTestCase):
    """Transitions by the MigReq bit of the peer's packets (IBA 17.2.8)."""

    def lead(self, state: MigrationState) -> dict[tuple[bool, str], MigrationState]:
        """Return the next state after a packet with or without MigReq, on a path."""
        migration = Migration()
        migration.state = state
        found = {}
        for request in (False, True):
            for path in ("path", "alternate", "former"):
                target = migration.packetReceived(request, path == "path", path == "alternate")
                if target is not None:
                    found[request, path] = target
        return found

    def test_all(self) -> None:
        self.assertEqual(self.lead(MIGRATED), {})
        self.assertEqual(self.lead(REARM), {(False, "path"): ARMED, (True, "alternate"): MIGRATED})
        self.assertEqual(self.lead(ARMED), {(True, "alternate"): MIGRATED})

    def test_MigReqSetByMigratedState(self) -> None:
        migration = Migration()
        self.assertTrue(migration.request)
        for state in (REARM, ARMED):
            migration.state = state
            self.assertFalse(migration.request)


class MigrationCase(SynchronousTestCase):
    """Two devices with two ports each, and an RC connection between their first ports."""

    def setUp(self) -> None:
        self.clock = Clock()
        self.network = SimulatedNetwork(self.clock, seed=7)
        self.one, self.other = self.network.device(A1, A2), self.network.device(B1, B2)
        for device in (self.one, self.other):
            self.addCleanup(device.close)
        self.alice, self.bob = connected(self.one, self.other)
        self.ends = (self.alice, self.bob)

    def run_(self, seconds: float = 1.0) -> None:
        elapse(self.clock, seconds)

    def rearm(self, end: End, peer: End, vector: AddressVector | None = None, **more: Any) -> None:
        """Load the path between the second ports, or another one, and rearm."""
        vector = vector or AddressVector(peer.device.gids(2)[0], port=2, dmac=peer.device.ports[1].mac)
        end.qp.modify(QPAttributes(alternateAddress=vector, migrationState=REARM, **more))

    def arm(self) -> None:
        """Rearm both ends, until both are armed."""
        self.rearm(self.alice, self.bob)
        self.rearm(self.bob, self.alice)
        self.run_()
        self.assertEqual(self.states(), [ARMED, ARMED])

    def states(self) -> list[MigrationState | None]:
        return [end.qp.query().migrationState for end in self.ends]

    def paths(self) -> list[int | None]:
        """Return the ports in use."""
        return [end.qp.query().port for end in self.ends]

    def kinds(self, end: End) -> list[AsyncEventKind]:
        return [event.kind for event in end.events]

    def write(self, length: int = 100_000) -> None:
        """Write from Alice to Bob, and wait for it."""
        data = os.urandom(length)
        self.alice.region.view[:length] = data
        self.alice.write(self.bob, 1, 0, length)
        self.run_(3.0)
        self.assertEqual([(c.identifier, c.status) for c in self.alice.poll()], [(1, Status.SUCCESS)])
        self.assertEqual(bytes(self.bob.region.view[:length]), data)

    def cut(self) -> None:
        """Cut the path between the first ports."""
        self.network.partition(A1, B1)

    def watch(self) -> list[tuple[str, RoCEPacket]]:
        """Record all further packets with their source addresses."""
        seen: list[tuple[str, RoCEPacket]] = []
        carry = self.network.carry

        def watched(data: bytes, segment: int, source: Any, destination: Any) -> None:
            for at in range(0, len(data), segment):
                seen.append((source.address, RoCEPacket.decode(data[at : at + segment])))
            carry(data, segment, source, destination)

        self.network.carry = watched  # type: ignore[method-assign]  # records, and calls the method
        return seen


class ArmingTests(MigrationCase):
    """Both ends arm their alternate path."""

    def test_bothSidesArmWithoutTraffic(self) -> None:
        self.rearm(self.alice, self.bob)
        self.run_()
        self.assertEqual(self.states(), [REARM, MIGRATED])
        self.rearm(self.bob, self.alice)
        self.run_()
        self.assertEqual(self.states(), [ARMED, ARMED])
        self.assertEqual(self.kinds(self.alice) + self.kinds(self.bob), [])

    def test_MigReqFollowsState(self) -> None:
        seen = self.watch()
        self.write(10)
        self.assertEqual({packet.bth.migration for _, packet in seen}, {True})
        self.arm()
        seen.clear()
        self.write(10)
        self.assertEqual({packet.bth.migration for _, packet in seen}, {False})
        seen.clear()
        self.alice.qp.modify(QPAttributes(migrationState=MIGRATED))
        self.write(10)
        self.assertEqual(
            {(source, packet.bth.migration) for source, packet in seen}, {(A2, True), (B2, True)}
        )

    def test_trafficReplacesLostHandshake(self) -> None:
        self.network.drop(lambda packet: True, times=3)
        self.rearm(self.alice, self.bob)
        self.rearm(self.bob, self.alice)
        self.run_()
        self.write(10)
        self.write(10)
        self.assertEqual(self.states(), [ARMED, ARMED])

    def test_peerWithoutMigReqCountsAsReady(self) -> None:
        self.rearm(self.alice, self.bob)
        route = self.other.ports[0].routes[0]._routes[self.bob.qp.number]  # type: ignore[attr-defined]
        route._heading &= ~(1 << 54)
        self.write(10)
        self.assertEqual(self.states(), [ARMED, MIGRATED])

    def test_disarmedThenArmedForAnotherPath(self) -> None:
        """Queue pairs that give up a path stay where they are, and can load another one."""
        for isArmed in (True, False):
            if isArmed:
                self.arm()
            else:
                self.rearm(self.alice, self.bob)
            IDisarmable(self.alice.qp).disarm()
            self.write()
            self.assertEqual((self.states()[0], self.paths()), (MIGRATED, [1, 1]))
            self.assertIsNone(self.alice.qp.query().alternateAddress)
            IDisarmable(self.bob.qp).disarm()
        one, other = (device.ports for device in (self.one, self.other))
        vector = AddressVector(self.other.gids(1)[0], port=2, dmac=other[0].mac)
        self.rearm(self.alice, self.bob, vector)
        self.rearm(self.bob, self.alice, AddressVector(self.one.gids(2)[0], port=1, dmac=one[1].mac))
        self.run_()
        self.cut()
        self.write()
        self.assertEqual(self.paths(), [2, 1])
        self.assertEqual(self.kinds(self.alice) + self.kinds(self.bob), [DONE, DONE])

    def test_disarmedQueuePairDoesNotMigrate(self) -> None:
        """If its path fails, a queue pair that has given up the other one fails as without it."""
        self.arm()
        IDisarmable(self.alice.qp).disarm()
        self.cut()
        self.alice.write(self.bob, 1, 0, 10)
        self.run_(60.0)
        self.assertEqual([c.status for c in self.alice.poll()], [Status.RETRY_EXC_ERR])

    def test_alternatePathOfOtherAddressFamilyFails(self) -> None:
        vector = AddressVector(GID.fromIP("2001:db8::1"), port=2)
        self.rearm(self.alice, self.bob, vector=vector)
        self.run_()
        self.assertEqual(self.kinds(self.alice), [FAILED])
        self.write(10)


class CommandTests(MigrationCase):
    def test_migrationWithinMessageLosesNothing(self) -> None:
        self.arm()
        data = os.urandom(1 << 20)
        self.alice.region.view[:] = data
        seen = self.watch()
        self.alice.write(self.bob, 1, 0, 1 << 20)
        self.clock.advance(1e-5)
        self.alice.qp.modify(QPAttributes(migrationState=MIGRATED))
        self.run_(3.0)
        self.assertEqual([c.status for c in self.alice.poll()], [Status.SUCCESS])
        self.assertEqual(bytes(self.bob.region.view), data)
        sent = {
            source: [p.bth.psn for s, p in seen if s == source and p.bth.opcode < Opcode.RC_ACKNOWLEDGE]
            for source in (A1, A2)
        }
        self.assertTrue(sent[A1])
        self.assertEqual(sent[A2][0], sent[A1][-1] + 1 & 0xFFFFFF)

    def test_migrationToPortDownIsRefused(self) -> None:
        self.arm()
        self.one.setPortEnabled(2, False)
        self.alice.qp.modify(QPAttributes(migrationState=MIGRATED))
        self.run_()
        self.assertIn(FAILED, self.kinds(self.alice))
        self.assertEqual((self.states(), self.paths()), ([ARMED, ARMED], [1, 1]))
        self.write()


class FailureTests(MigrationCase):
    """Migration after exhausted retries."""

    def test_lostAnswersMigrateWithoutReexecution(self) -> None:
        self.arm()
        self.network.drop(
            lambda packet: packet.bth.opcode == Opcode.RC_ATOMIC_ACKNOWLEDGE and self.paths() == [1, 1],
            times=1 << 20,
        )
        for number in range(3):
            self.alice.rdma(Operation.FETCH_AND_ADD, self.bob, number, 8 * number, 8, operand=1)
        self.run_(3.0)
        self.assertEqual([c.status for c in self.alice.poll()], [Status.SUCCESS] * 3)
        self.assertEqual(self.paths(), [2, 2])
        self.assertEqual(sum(self.bob.region.view[:8]), 3)

    def test_bothSidesMigrateAtOnce(self) -> None:
        self.arm()
        for end in self.ends:
            for number in range(5):
                end.receive(100 + number, 1000 * number, 1000)
        self.cut()
        for end in self.ends:
            for number in range(5):
                end.post(number, Operation.SEND, inline=[b"x" * 1000])
        self.run_(3.0)
        for end in self.ends:
            found = [(c.identifier, c.status) for c in end.poll()]
            self.assertEqual(sorted(found), [(n, Status.SUCCESS) for n in (*range(5), *range(100, 105))])
            self.assertEqual(self.kinds(end), [DONE])

    def test_queuePairWithLongTimeoutMigratesEarly(self) -> None:
        self.alice, self.bob = connected(self.one, self.other, timeout=25)
        self.rearm(self.alice, self.bob, alternateTimeout=25)
        self.rearm(self.bob, self.alice)
        self.write()
        self.cut()
        self.alice.write(self.bob, 1, 0, 10)
        self.run_(PATH_SECONDS - 0.1)
        self.assertEqual(self.alice.poll(), [])
        self.run_(0.2)
        self.assertEqual([c.status for c in self.alice.poll()], [Status.SUCCESS])
        self.network.partition(A2, B2)
        self.alice.write(self.bob, 2, 0, 10)
        self.run_(120.0)
        self.assertEqual(self.alice.poll(), [])

    def test_alternatePathHasFreshRetries(self) -> None:
        self.rearm(self.alice, self.bob, alternateTimeout=13)
        self.rearm(self.bob, self.alice)
        self.run_()
        self.cut()
        self.network.partition(A2, B2)
        seen = self.watch()
        self.alice.write(self.bob, 1, 0, 10)
        self.run_(8 * (ackTimeoutSeconds(14) + ackTimeoutSeconds(13)) - 0.01)
        self.assertEqual(self.alice.poll(), [])
        self.run_(0.02)
        self.assertEqual([c.status for c in self.alice.poll()], [Status.RETRY_EXC_ERR])
        sources = [source for source, _ in seen]
        self.assertEqual(sources, sorted(sources))
        self.assertGreaterEqual(min(sources.count(A1), sources.count(A2)), 8)
        self.assertIs(self.alice.qp.state, QPState.ERR)
        self.assertFalse(self.clock.calls)

    def test_peerFollowsBeforeItKnows(self) -> None:
        self.rearm(self.bob, self.alice)
        self.run_()
        self.network.drop(lambda packet: not packet.bth.migration, times=1)
        # Alice receives from Bob; her packets are lost, and then the path fails
        self.rearm(self.alice, self.bob)
        route = self.one.ports[0].routes[0]._routes[self.alice.qp.number]  # type: ignore[attr-defined]
        route._setMigration(ARMED)
        self.cut()
        self.write()
        self.assertEqual(self.paths(), [2, 2])

    def test_bothPortsDown(self) -> None:
        self.arm()
        self.cut()
        self.one.setPortEnabled(2, False)
        self.alice.write(self.bob, 1, 0, 10)
        self.run_(3.0)
        self.assertEqual([c.status for c in self.alice.poll()], [Status.RETRY_EXC_ERR])
        self.assertIn(FAILED, self.kinds(self.alice))
        self.assertNotIn(DONE, self.kinds(self.alice))

    def test_longTimeoutWithAlternatePortDown(self) -> None:
        """A path has its usual retries if the other one is unusable, and is left when that one works."""
        self.alice, self.bob = self.ends = connected(self.one, self.other, timeout=20)
        self.arm()
        self.one.setPortEnabled(2, False)
        for number in range(2):
            self.network.partition(A1, B1)
            self.alice.write(self.bob, number, 0, 10)
            self.run_(2 * PATH_SECONDS)
            self.assertEqual(self.alice.poll(), [])
            self.assertEqual(self.kinds(self.alice).count(FAILED), 1)
            self.network.join(A1, B1)
            self.run_(2.0)
            self.assertEqual([c.status for c in self.alice.poll()], [Status.SUCCESS])
        self.one.setPortEnabled(2, True)
        self.alice.events.clear()
        self.cut()
        self.alice.write(self.bob, 3, 0, 10)
        self.run_(2 * PATH_SECONDS)
        self.assertEqual([c.status for c in self.alice.poll()], [Status.SUCCESS])
        self.assertEqual(self.paths(), [2, 2])

    def test_alternatePathFromSamePort(self) -> None:
        other = self.network.device(B1.replace("0.1.2", "0.1.7"), B3)
        self.addCleanup(other.close)
        self.alice, self.bob = self.ends = connected(self.one, other)
        self.rearm(self.alice, self.bob, vector=AddressVector(GID.fromIP(B3), dmac=other.ports[1].mac))
        self.rearm(
            self.bob, self.alice, vector=AddressVector(GID.fromIP(A1), port=2, dmac=self.one.ports[0].mac)
        )
        self.run_()
        self.network.partition(A1, "10.0.1.7")
        self.write()
        self.assertEqual(self.paths(), [1, 2])


class StrangerTests(MigrationCase):
    """Packets from unexpected addresses."""

    def test_alternatePathClosedUntilLoaded(self) -> None:
        self.arm()
        alice, _bob = connected(self.one, self.other)
        self.assertNotIn(alice.qp.number, self.one.ports[1].routes[0]._routes)  # type: ignore[attr-defined]
        self.assertIn(self.alice.qp.number, self.one.ports[1].routes[0]._routes)  # type: ignore[attr-defined]

    def test_migrationToUnknownAddressIsReportedOnce(self) -> None:
        self.rearm(self.alice, self.bob)
        self.rearm(self.bob, self.alice, vector=AddressVector(GID.fromIP("10.0.2.77"), port=2))
        self.run_()
        self.assertEqual(self.states(), [ARMED, ARMED])
        self.cut()
        self.alice.write(self.bob, 1, 0, 10)
        self.run_(3.0)
        self.assertEqual([c.status for c in self.alice.poll()], [Status.RETRY_EXC_ERR])
        self.assertEqual(self.kinds(self.bob), [FAILED])
        self.assertEqual(self.paths(), [2, 1])

    def test_arbitraryPacketsEndAtMostTheirConnection(self) -> None:
        random = Random(7)
        self.arm()
        armed = 0
        for number in range(600):
            if self.bob.qp.state is not QPState.RTS or self.states()[1] is not ARMED:
                self.alice, self.bob = self.ends = connected(self.one, self.other)
                self.arm()
                armed += 1
            guard = bytes(self.bob.region.view)
            source, target = random.choice(((A1, B1), (A2, B2), (A2, B1), (A1, B2)))
            bth = BTH(
                opcode=Opcode(random.choice((random.randrange(32), 0x0A, 0x11))),
                migration=random.random() < 0.3,
                pkey=DEFAULT_PKEY,
                destination=self.bob.qp.number,
                psn=0xFFFFF0 + random.randrange(-2, 3) & 0xFFFFFF,
                acknowledge=True,
            )
            packet = bth.encode() + random.randbytes(4 * random.randrange(12))
            port: Any = self.other.ports[0 if target == B1 else 1].routes[0]
            datagram = UDPFlow(source, 4791, target, 4791).seal(packet)
            port.received(memoryview(datagram), len(datagram), (source, 4791))
            port.batchEnded()
            self.assertEqual(bytes(self.bob.region.view), guard, number)
        self.assertGreater(armed, 20)

    def test_closedQueuePairLeavesNoTimers(self) -> None:
        self.arm()
        self.cut()
        self.alice.write(self.bob, 1, 0, 10)
        self.alice.qp.close()
        for port in self.one.ports:
            route: Any = port.routes[0]
            self.assertEqual((dict(route._routes), route._deadlines), ({}, {}))

    def test_latePacketChangesNothing(self) -> None:
        self.arm()
        self.network.drop(lambda packet: packet.bth.opcode == Opcode.RC_ACKNOWLEDGE, times=1)
        self.alice.write(self.bob, 1, 0, 10)
        self.clock.advance(1e-4)
        route: Any = self.other.ports[0].routes[0]._routes[self.bob.qp.number]  # type: ignore[attr-defined]
        route._heading |= 1 << 54
        self.run_()
        self.assertEqual((self.states(), self.paths()), ([ARMED, ARMED], [1, 1]))
        self.assertEqual(self.kinds(self.alice), [])
