"""
Promises of devices with several ports about alternate paths.

Follows InfiniBand Architecture vol. 1, 17.2.8 (automatic path migration).
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from txrdma.error import InvalidRequest
from txrdma.iba.verbs import (
    AddressVector,
    AsyncEventKind,
    MigrationState,
    Operation,
    QPAttributes,
    QPState,
    SendRequest,
    Status,
)
from txrdma.testing.verbs.atomics import wordAt
from txrdma.testing.verbs.ends import End, PATIENT, TwoEnds, WITH_ATOMICS
from txrdma.testing.verbs.events import eventsOf

_MIGRATED, _REARM, _ARMED = MigrationState
_EVENT = AsyncEventKind.PATH_MIGRATED

QUICK = replace(PATIENT, timeout=8, retryCount=2)
"""Attributes with which a path fails after few retries."""


class MigrationContract(TwoEnds):
    """
    Promises about connections with an alternate path.

    Both devices have two ports; ports of the same number reach each other. The suite of an implementation
    defines how a path is broken.
    """

    def breakPath(self, number: int) -> None:
        """Drop all packets between the ports with this number."""
        raise NotImplementedError

    def path(self, end: End, peer: End, number: int) -> AddressVector:
        """Return the address vector from a port to the peer's port of the same number."""
        port = peer.device.portAttributes(number)
        return AddressVector(peer.device.gids(number)[0], port=number, dmac=port.mac)

    def alternate(self, end: End, peer: End, number: int) -> dict[str, Any]:
        """Return the attributes of an alternate path between the ports with this number."""
        address = self.path(end, peer, number)
        return {"alternateAddress": address, "alternatePKeyIndex": 0, "alternateTimeout": QUICK.timeout}

    def migrating(self, armed: bool = True) -> tuple[End, End]:
        """Return two connected ends with a loaded alternate path, which is armed by default."""
        alice, bob = self.end(0), self.end(1, access=WITH_ATOMICS)
        for end in (alice, bob):
            end.toInit()
        for end, peer in ((alice, bob), (bob, alice)):
            end.toRTR(peer, QUICK, address=self.path(end, peer, 1), **self.alternate(end, peer, 2))
        for end in (alice, bob):
            end.toRTS(QUICK)
        if armed:
            self.arm(alice, bob)
        return alice, bob

    def arm(self, alice: End, bob: End) -> None:
        """Arm the alternate path at both ends, which takes an exchange of messages."""
        for end in (alice, bob):
            end.queuePair.modify(QPAttributes(migrationState=_REARM))
        self.becomeArmed(alice, bob)

    def becomeArmed(self, alice: End, bob: End) -> None:
        """Exchange messages between ends that have both requested it until they are armed."""
        self.exchange(alice, bob)
        self.exchange(bob, alice)
        self.runPolling(lambda: self.states(alice, bob) == [_ARMED, _ARMED], alice, bob)

    def states(self, *ends: End) -> list[MigrationState | None]:
        """Return the migration states of the ends' queue pairs."""
        return [end.queuePair.query().migrationState for end in ends]

    def exchange(self, alice: End, bob: End, data: bytes = b"hello") -> None:
        """Send one message, and assert that it arrives."""
        before = len(alice.sent), len(bob.received)
        bob.receive(bob.segment(60_000, 64))
        alice.send(inline=[data])
        self.runPolling(lambda: len(alice.sent) > before[0] and len(bob.received) > before[1], alice, bob)
        self.assertEqual((alice.sent[-1].status, bob.received[-1].status), (Status.SUCCESS, Status.SUCCESS))
        self.assertEqual(bytes(bob.memory.view[60_000 : 60_000 + len(data)]), data)

    def migrated(self, alice: End, bob: End, number: int = 2, times: int = 1) -> None:
        """Assert that both ends use the path with this number, with one event for each migration."""
        self.runPolling(lambda: self.states(alice, bob) == [_MIGRATED, _MIGRATED], alice, bob)
        for end, peer in ((alice, bob), (bob, alice)):
            self.assertEqual(end.queuePair.query().address, self.path(end, peer, number))
            self.runUntil(lambda end=end: len(eventsOf(end, _EVENT)) >= times)  # type: ignore[misc]  # a lambda
        self.runFor(0.02)
        for end in (alice, bob):
            self.assertEqual([event.queuePair for event in eventsOf(end, _EVENT)], [end.queuePair] * times)
            self.assertEqual(eventsOf(end, AsyncEventKind.PATH_MIGRATION_FAILED), [])

    def test_loaded(self) -> None:
        """An alternate path that is loaded, but not armed, can be queried, but is not used."""
        alice, bob = self.migrating(armed=False)
        known = alice.queuePair.query()
        self.assertEqual(known.alternateAddress, self.path(alice, bob, 2))
        self.assertEqual((known.alternatePKeyIndex, known.alternateTimeout), (0, QUICK.timeout))
        self.assertEqual(self.states(alice, bob), [_MIGRATED, _MIGRATED])
        self.exchange(alice, bob)
        self.breakPath(1)
        bob.receive(bob.segment())
        alice.send(inline=[b"the first path is the only one"])
        sent = len(alice.sent)
        self.runUntilCompleted(alice, sends=sent + 1)
        self.assertEqual(alice.sent[-1].status, Status.RETRY_EXC_ERR)
        self.assertEqual(eventsOf(alice, _EVENT), [])

    def test_armed(self) -> None:
        """An alternate path is armed when both ends have requested it, and not before."""
        alice, bob = self.migrating(armed=False)
        alice.queuePair.modify(QPAttributes(migrationState=_REARM))
        self.exchange(alice, bob)
        self.exchange(bob, alice)
        self.assertEqual(self.states(alice, bob), [_REARM, _MIGRATED])
        bob.queuePair.modify(QPAttributes(migrationState=_REARM))
        self.becomeArmed(alice, bob)
        self.assertEqual(eventsOf(alice, _EVENT) + eventsOf(bob, _EVENT), [])
        self.assertEqual(alice.queuePair.query().address, self.path(alice, bob, 1))

    def test_armedOnTheWayToRTS(self) -> None:
        """An alternate path can be armed with the transition to RTS, too."""
        alice, bob = self.end(0), self.end(1)
        self.connectToRTR(alice, bob, QUICK)
        for end, peer in ((alice, bob), (bob, alice)):
            end.toRTS(QUICK, **self.alternate(end, peer, 2), migrationState=_REARM)
        self.becomeArmed(alice, bob)

    def test_byCommand(self) -> None:
        """When one end migrates by command the other one follows, and both get an event."""
        alice, bob = self.migrating()
        alice.queuePair.modify(QPAttributes(migrationState=_MIGRATED))
        self.exchange(alice, bob, b"by the other")
        self.exchange(bob, alice, b"and back")
        self.migrated(alice, bob)
        self.breakPath(1)
        self.exchange(alice, bob, b"the first is not needed")

    def test_byCommandOfTheOther(self) -> None:
        """An end with nothing to send can migrate by command while its peer sends."""
        alice, bob = self.migrating()
        for index in range(4):
            bob.receive(bob.segment(index * 10_000, 10_000), identifier=index)
            alice.send(alice.segment(0, 9000), identifier=index)
        before = len(alice.sent), len(bob.received)
        bob.queuePair.modify(QPAttributes(migrationState=_MIGRATED))
        self.runUntilCompleted(alice, sends=before[0] + 4, receives=len(alice.received))
        self.runUntilCompleted(bob, sends=len(bob.sent), receives=before[1] + 4)
        self.exchange(bob, alice)
        self.migrated(alice, bob)

    def test_pathFails(self) -> None:
        """When a path fails during traffic all messages arrive by the other path, in order and once."""
        alice, bob = self.migrating()
        before = len(alice.sent), len(bob.received)
        count = 12
        for index in range(count):
            bob.receive(bob.segment(index * 5000, 5000), identifier=index)
        for index in range(count):
            if index == 5:
                self.runPolling(lambda: len(bob.received) > before[1] + 2, alice, bob)
                self.breakPath(1)
            alice.send(alice.fill(bytes([index + 1]) * 4500, index * 5000), identifier=index)
        self.runUntilCompleted(alice, sends=before[0] + count, receives=len(alice.received))
        self.runUntilCompleted(bob, sends=len(bob.sent), receives=before[1] + count)
        self.assertEqual([c.identifier for c in alice.sent[before[0] :]], list(range(count)))
        self.assertEqual([c.identifier for c in bob.received[before[1] :]], list(range(count)))
        self.assertEqual({c.status for c in alice.sent + bob.received}, {Status.SUCCESS})
        for index in range(count):
            piece = bytes(bob.memory.view[index * 5000 : index * 5000 + 5000])
            self.assertEqual(piece, bytes([index + 1]) * 4500 + bytes(500))
        self.migrated(alice, bob)
        self.exchange(bob, alice, b"and the way back")

    def test_readsAndAtomicsMigrate(self) -> None:
        """Reads and atomics in flight when the path fails are executed once, too."""
        alice, bob = self.migrating()
        region = self.region(bob, 4096, WITH_ATOMICS)
        bob.fill(bytes(range(250)) * 40)
        before = len(alice.sent)
        for index in range(10):
            if index == 4:
                self.runPolling(lambda: len(alice.sent) > before, alice, bob)
                self.breakPath(1)
            add = SendRequest(
                index, Operation.FETCH_AND_ADD, [alice.segment(60_100 + index * 8, 8)], operand=1
            )
            add.remoteAddress, add.rkey = region.address, region.rkey
            alice.queuePair.postSend([add])
            alice.rdma(
                Operation.RDMA_READ, bob.memory, alice.segment(index * 1000, 1000), offset=index * 1000
            )
        self.runUntilCompleted(alice, sends=before + 20, receives=len(alice.received))
        self.assertEqual({c.status for c in alice.sent}, {Status.SUCCESS})
        self.assertEqual([wordAt(alice.memory, 60_100 + i * 8) for i in range(10)], list(range(10)))
        self.assertEqual(wordAt(region), 10)
        self.assertEqual(bytes(alice.memory.view[:10_000]), bytes(range(250)) * 40)
        self.migrated(alice, bob)

    def test_rearmed(self) -> None:
        """After a migration the former path can be armed as the alternate one, and be used again."""
        alice, bob = self.migrating()
        alice.queuePair.modify(QPAttributes(migrationState=_MIGRATED))
        self.exchange(alice, bob)
        self.migrated(alice, bob)
        for end, peer in ((alice, bob), (bob, alice)):
            end.queuePair.modify(QPAttributes(**self.alternate(end, peer, 1), migrationState=_REARM))
        self.becomeArmed(alice, bob)
        self.breakPath(2)
        self.exchange(bob, alice, b"back to the first")
        self.exchange(alice, bob, b"here, too")
        self.migrated(alice, bob, number=1, times=2)

    def test_bothFail(self) -> None:
        """A queue pair whose alternate path fails, too, moves to ERR."""
        alice, bob = self.migrating()
        self.breakPath(1)
        self.breakPath(2)
        bob.receive(bob.segment())
        sent = len(alice.sent)
        alice.send(inline=[b"lost"])
        self.runUntilCompleted(alice, sends=sent + 1, receives=len(alice.received))
        self.assertEqual(alice.sent[-1].status, Status.RETRY_EXC_ERR)
        self.assertEqual(alice.queuePair.state, QPState.ERR)

    def test_notArmedNotTaken(self) -> None:
        """An alternate path cannot be armed before it is loaded, and programs cannot set the state ARMED."""
        alice, bob = self.pair()
        refused = QPAttributes(migrationState=_REARM)
        self.assertRaises(InvalidRequest, alice.queuePair.modify, refused)
        carol, _dave = self.migrating(armed=False)
        self.assertRaises(InvalidRequest, carol.queuePair.modify, QPAttributes(migrationState=_ARMED))
        bob.receive(bob.segment())
        alice.send(inline=[b"as before"])
        self.runUntilCompleted(bob, receives=1)

    def test_noSuchAlternate(self) -> None:
        """An alternate path is refused unless the device has its port, GID and P_Key."""
        alice, bob = self.end(0), self.end(1)
        for end in (alice, bob):
            end.toInit()
        alice.toRTR(bob)
        alternate, address = self.alternate(alice, bob, 2), self.path(alice, bob, 2)
        wrongs: tuple[dict[str, Any], ...] = (
            {"alternateAddress": replace(address, port=alice.device.portCount + 1)},
            {"alternateAddress": replace(address, sgidIndex=200)},
            {"alternatePKeyIndex": 60_000},
        )
        for wrong in wrongs:
            self.assertRaises(InvalidRequest, alice.toRTS, **{**alternate, **wrong})
            self.assertEqual(alice.queuePair.state, QPState.RTR)
