"""
The coordinator of the devices at one address: positions of sockets, and destinations of packets.
"""

from __future__ import annotations

from itertools import count
from random import Random

from twisted.trial.unittest import SynchronousTestCase

from txrdma.soft.host._coordinator import Coordinator, FilterChanged, ROUNDS, SERVICES
from txrdma.soft.host._management import Destination

OWN = 7


class Sockets:
    """
    The sockets of a port, numbered like the kernel's: the last socket replaces one that closes.

    @ivar deaf: shares of devices that do not answer probes.
    """

    def __init__(self, coordinator: Coordinator, *shares: int) -> None:
        self.coordinator = coordinator
        self.shares = list(shares)
        self.deaf: set[int] = set()
        self.filter: FilterChanged | None = None

    def close(self, share: int) -> None:
        """Close a device's socket."""
        position = self.shares.index(share)
        last = self.shares.pop()
        if last != share:
            self.shares[position] = last

    def turn(self, now: float) -> None:
        """Deliver all probes and their reports, and install the latest filter."""
        for probe in self.coordinator.outgoing():
            share = self.shares[probe.position if probe.position < len(self.shares) else -1]
            if share not in self.deaf:
                self.coordinator.seen(share, probe.position, probe.nonce, now)
        for event in self.coordinator.events():
            self.filter = event


class CoordinatorTests(SynchronousTestCase):
    def make(self) -> Coordinator:
        return Coordinator(OWN, count(1000).__next__, 0.0)

    def test_coordinatorWithoutMembersNeedsNoTimer(self) -> None:
        coordinator = self.make()
        sockets = Sockets(coordinator, OWN)
        sockets.turn(0.0)
        self.assertEqual(sockets.filter, FilterChanged({OWN: 0}, 0))
        self.assertIsNone(coordinator.deadline())

    def test_filterHasPositionOfEachMember(self) -> None:
        coordinator = self.make()
        sockets = Sockets(coordinator, OWN, 9, 20)
        for share in (20, 9):
            coordinator.entered(share, 1.0)
            sockets.turn(1.0)
        self.assertEqual(sockets.filter, FilterChanged({OWN: 0, 9: 1, 20: 2}, 0))
        self.assertIsNone(coordinator.deadline())

    def test_filterHasNewPositionsAfterMemberLeft(self) -> None:
        coordinator = self.make()
        sockets = Sockets(coordinator, OWN, 9, 20)
        coordinator.entered(9, 1.0)
        coordinator.entered(20, 1.0)
        sockets.turn(1.0)
        sockets.close(9)
        coordinator.left(9, 2.0)
        sockets.turn(2.0)
        self.assertEqual(sockets.filter, FilterChanged({OWN: 0, 20: 1}, 0))
        self.assertEqual(coordinator.shares, {OWN, 20})

    def test_laterRoundFindsPositionsAfterSocketCloses(self) -> None:
        coordinator = self.make()
        sockets = Sockets(coordinator, OWN, 9, 20)
        coordinator.entered(9, 1.0)
        coordinator.entered(20, 1.0)
        sockets.turn(1.0)
        coordinator.left(9, 2.0)
        sockets.deaf.add(9)
        sockets.turn(2.0)
        sockets.close(9)
        deadline = coordinator.deadline()
        assert deadline is not None
        coordinator.expired(deadline)
        sockets.turn(deadline)
        self.assertEqual(sockets.filter, FilterChanged({OWN: 0, 20: 1}, 0))
        self.assertIsNone(coordinator.deadline())

    def test_silentMemberIsRemovedUntilItAnswers(self) -> None:
        coordinator = self.make()
        sockets = Sockets(coordinator, OWN, 9)
        sockets.deaf.add(9)
        coordinator.entered(9, 0.0)
        sent = coordinator.outgoing()
        coordinator.seen(OWN, 0, sent[0].nonce, 0.0)
        rounds = 0
        while (deadline := coordinator.deadline()) is not None:
            coordinator.expired(deadline)
            sockets.turn(deadline)
            rounds += 1
        self.assertEqual(rounds, ROUNDS)
        self.assertEqual(sockets.filter, FilterChanged({OWN: 0}, 0))
        sockets.deaf.clear()
        coordinator.seen(9, 1, sent[1].nonce, 60.0)
        sockets.turn(60.0)
        self.assertEqual(sockets.filter, FilterChanged({OWN: 0, 9: 1}, 0))

    def test_socketsOfStoppedProcessesOnlyCauseMoreRounds(self) -> None:
        coordinator = self.make()
        sockets = Sockets(coordinator, 50, 51, OWN, 52, 9)
        sockets.deaf = {50, 51, 52}
        coordinator.entered(9, 1.0)
        sockets.turn(1.0)
        while (deadline := coordinator.deadline()) is not None:
            coordinator.expired(deadline)
            sockets.turn(deadline)
        self.assertEqual(sockets.filter, FilterChanged({OWN: 2, 9: 4}, 2))

    def test_requestsGoToMemberUntilOwnProbeIsReceived(self) -> None:
        coordinator = self.make()
        coordinator.entered(9, 1.0)
        probe = coordinator.outgoing()[1]
        coordinator.seen(9, probe.position, probe.nonce, 1.0)
        deadline = coordinator.deadline()
        assert deadline is not None
        coordinator.expired(deadline)
        self.assertEqual(coordinator.events(), [FilterChanged({9: 1}, 1)])

    def test_memberThatEntersAgainHasOnlyNewServices(self) -> None:
        coordinator = self.make()
        coordinator.entered(9, 1.0)
        coordinator.serves(9, 0x42, True)
        coordinator.receives(9, True)
        coordinator.entered(9, 2.0)
        self.assertIsNone(coordinator.shareOf(Destination(serviceID=0x42)))

    def test_reservedSharesAreRefused(self) -> None:
        coordinator = self.make()
        for share in (0, OWN, 255):
            self.assertRaises(ValueError, coordinator.entered, share, 1.0)

    def test_requestsGoToDeviceOfServiceOrQueuePair1(self) -> None:
        coordinator = self.make()
        coordinator.entered(9, 1.0)
        coordinator.serves(9, 0x42, True)
        coordinator.receives(9, True)
        self.assertEqual(coordinator.shareOf(Destination(serviceID=0x42)), 9)
        self.assertEqual(coordinator.shareOf(Destination(serviceID=0x43)), 9)
        coordinator.receives(OWN, True)
        self.assertEqual(coordinator.shareOf(Destination(serviceID=0x43)), OWN)
        self.assertEqual(coordinator.shareOf(Destination()), OWN)
        coordinator.serves(9, 0x42, False)
        self.assertEqual(coordinator.shareOf(Destination(serviceID=0x42)), OWN)

    def test_messagesGoToDeviceOfConnectionsShare(self) -> None:
        coordinator = self.make()
        coordinator.entered(9, 1.0)
        coordinator.receives(OWN, True)
        self.assertEqual(coordinator.shareOf(Destination(share=9)), 9)
        self.assertEqual(coordinator.shareOf(Destination(share=10)), OWN)
        coordinator.left(9, 3.0)
        self.assertEqual(coordinator.shareOf(Destination(share=9)), OWN)

    def test_servicesOfMemberAreBounded(self) -> None:
        coordinator = self.make()
        coordinator.entered(9, 1.0)
        for service in range(SERVICES):
            coordinator.serves(9, service, True)
        self.assertRaises(ValueError, coordinator.serves, 9, SERVICES, True)

    def test_noMemberIsKnownAfterTakeover(self) -> None:
        coordinator = self.make()
        service, share = Destination(serviceID=0x42), Destination(share=9)
        self.assertEqual([coordinator.isKnown(each) for each in (service, share)], [False, False])
        coordinator.entered(9, 0.05)
        self.assertEqual([coordinator.isKnown(each) for each in (service, share)], [False, True])
        coordinator.serves(9, 0x42, True)
        self.assertEqual([coordinator.isKnown(each) for each in (service, share)], [True, True])

    def test_filterIsCorrectAfterAnyOrderOfEvents(self) -> None:
        for seed in range(200):
            random = Random(seed)
            coordinator, now = self.make(), 0.0
            sockets = Sockets(coordinator, OWN)
            lines: set[int] = set()
            for _ in range(30):
                now += random.random() / 50
                share = random.choice((3, 9, 20, 33))
                if share not in lines and share not in sockets.shares:
                    sockets.shares.append(share)  # the socket is bound before the line is opened
                elif share not in lines:
                    if random.random() < 0.5:
                        lines.add(share)
                        coordinator.entered(share, now)
                        sockets.deaf.discard(share)
                    elif share in sockets.deaf:
                        sockets.close(share)
                        sockets.deaf.discard(share)
                else:
                    lines.discard(share)
                    sockets.deaf.add(share)
                    coordinator.left(share, now)
                coordinator.expired(now)
                if random.random() < 0.7:
                    sockets.turn(now)
            for share in set(sockets.shares) - lines - {OWN}:
                sockets.close(share)
            while (deadline := coordinator.deadline()) is not None:
                now = max(now, deadline)
                coordinator.expired(now)
                sockets.turn(now)
            assert sockets.filter is not None
            expected = {each: position for position, each in enumerate(sockets.shares)}
            self.assertEqual((seed, sockets.filter.positions), (seed, expected))
