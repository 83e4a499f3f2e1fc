"""
Alternate paths of queue pairs: when they are allowed, and the resulting attributes.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from twisted.internet.task import Clock
from twisted.trial.unittest import SynchronousTestCase

from txrdma.error import InvalidRequest
from txrdma.iba.types import GID, MTU, QPN
from txrdma.iba.verbs import (
    AddressVector,
    Capacity,
    MigrationState,
    QPAttributes,
    QPKind,
    QPState,
)
from txrdma.soft.core.completion import SoftCompletionChannel, SoftCompletionQueue
from txrdma.soft.core.memory import Domain
from txrdma.soft.core.queuepair import SoftQueuePair
from txrdma.soft.core.transitions import transition
from txrdma.soft.device import SoftDevice
from txrdma.soft.ports import SoftPort
from txrdma.test.unit.soft.test_queuepair import bring, Host, required, Route

RESET, INIT, RTR, RTS, SQD, SQE, ERR = QPState
MIGRATED, REARM, ARMED = MigrationState
RC, UD = QPKind.RC, QPKind.UD

THERE = AddressVector(GID.fromIP("192.0.2.1"))
ELSEWHERE = AddressVector(GID.fromIP("198.51.100.1"), port=2)
ALTERNATE = QPAttributes(alternateAddress=ELSEWHERE, alternatePKeyIndex=0, alternateTimeout=9)


class AlternateTests(SynchronousTestCase):
    """A queue pair's attributes follow its path."""

    def setUp(self) -> None:
        self.channel = SoftCompletionChannel()
        self.addCleanup(self.channel.close)
        self.host = Host()
        self.queue = SoftCompletionQueue(100, self.channel, self.host.notify)

    def make(self, upTo: QPState = RTS, kind: QPKind = RC) -> SoftQueuePair:
        queuePair = SoftQueuePair(
            self.host.calls(), Domain(), kind, QPN(9), self.queue, self.queue, Capacity()
        )
        return bring(queuePair, upTo)

    def armed(self) -> SoftQueuePair:
        """Return a queue pair that can migrate."""
        queuePair = self.make()
        queuePair.modify(replace(ALTERNATE, migrationState=REARM))
        queuePair.migrationChanged(ARMED)
        return queuePair

    def calls(self) -> list[str]:
        assert self.host.route is not None
        return self.host.route.calls

    def test_alternatePathAcceptedInItsTransitions(self) -> None:
        for before, after in ((INIT, RTR), (RTR, RTS), (RTS, RTS), (SQD, RTS), (SQD, SQD)):
            enough = required(RC, before, after)
            more: dict[str, Any] = {name: getattr(ALTERNATE, name) for name in ALTERNATE.given()}
            self.assertEqual(transition(RC, before, replace(enough, **more)), after)
            rearming = replace(enough, migrationState=REARM, **more)
            if after is RTR:
                self.assertRaises(InvalidRequest, transition, RC, before, rearming)
            else:
                self.assertEqual(transition(RC, before, rearming), after)
        for before, after in ((RESET, INIT), (INIT, INIT), (RTS, SQD)):
            wrong = replace(required(RC, before, after), alternateAddress=ELSEWHERE)
            self.assertRaises(InvalidRequest, transition, RC, before, wrong)
        for before, after in ((INIT, RTR), (RTR, RTS), (RTS, RTS), (SQD, SQD)):
            wrong = replace(required(UD, before, after), alternateAddress=ELSEWHERE)
            self.assertRaises(InvalidRequest, transition, UD, before, wrong)

    def test_alternateAttributesNeedEachOther(self) -> None:
        for alone in (QPAttributes(alternateTimeout=3), QPAttributes(alternatePKeyIndex=0)):
            self.assertRaises(InvalidRequest, transition, RC, RTS, alone)
        wrong = QPAttributes(alternateAddress=ELSEWHERE, alternateTimeout=32)
        self.assertRaises(InvalidRequest, transition, RC, RTS, wrong)

    def test_secondAlternateReplacesFirst(self) -> None:
        queuePair = self.make()
        queuePair.modify(ALTERNATE)
        queuePair.modify(QPAttributes(alternateAddress=THERE))
        known = queuePair.query()
        self.assertEqual((known.alternateAddress, known.alternateTimeout), (THERE, None))

    def test_migratedWhenRouteReports(self) -> None:
        queuePair = self.armed()
        self.calls().clear()
        queuePair.modify(QPAttributes(migrationState=MIGRATED))
        self.assertEqual(self.calls(), ["attributesChanged", "migrate"])
        self.assertEqual((queuePair.query().migrationState, queuePair.query().address), (ARMED, THERE))

    def test_unsetAlternateAttributesComeFromPrimary(self) -> None:
        queuePair = self.make()
        queuePair.modify(QPAttributes(alternateAddress=ELSEWHERE, migrationState=REARM))
        timeout = queuePair.query().timeout
        queuePair.migrationChanged(ARMED)
        queuePair.migrationChanged(MIGRATED)
        known = queuePair.query()
        self.assertEqual((known.timeout, known.pkeyIndex, known.port), (timeout, 0, 2))

    def test_migrationStatesFollowTheirOrder(self) -> None:

        def refused(queuePair: SoftQueuePair, *asked: MigrationState) -> None:
            before = queuePair.query()
            for state in asked:
                wrong = QPAttributes(migrationState=state)
                self.assertRaises(InvalidRequest, queuePair.modify, wrong)
            self.assertEqual(queuePair.query(), before)

        queuePair = self.make()
        refused(queuePair, REARM, ARMED, MIGRATED)
        queuePair.modify(ALTERNATE)
        refused(queuePair, ARMED, MIGRATED)
        queuePair.modify(QPAttributes(migrationState=REARM))
        refused(queuePair, REARM, ARMED, MIGRATED)
        self.assertRaises(InvalidRequest, queuePair.modify, ALTERNATE)
        queuePair.migrationChanged(ARMED)
        unknown: Any = 7
        refused(queuePair, REARM, ARMED, unknown)
        self.assertRaises(InvalidRequest, queuePair.modify, ALTERNATE)
        queuePair.migrationChanged(MIGRATED)
        refused(queuePair, REARM, ARMED, MIGRATED)
        queuePair.modify(replace(ALTERNATE, alternateAddress=THERE, migrationState=REARM))
        self.assertNotIn("migrate", self.calls())

    def test_lateReportsAfterCloseAreIgnored(self) -> None:
        queuePair = self.armed()
        queuePair.failed()
        queuePair.migrationChanged(MIGRATED)
        self.assertEqual((queuePair.query().address, self.host.events), (THERE, []))
        queuePair.modify(QPAttributes(state=RESET))
        queuePair.migrationChanged(ARMED)
        self.assertEqual(queuePair.query(), QPAttributes(state=RESET, currentState=RESET))

    def test_sharedMemoryHasNoAlternatePath(self) -> None:
        queuePair = self.make()
        queuePair._route = Route()
        queuePair._route.name = "shared-memory"
        error = self.assertRaises(InvalidRequest, queuePair.modify, ALTERNATE)
        self.assertIn("shared memory", str(error))


class RoutesTests(SynchronousTestCase):
    """The route of a queue pair with an alternate path."""

    def ends(self, *names: str) -> tuple[SoftDevice, SoftQueuePair]:
        """Return a device whose port has these routes, as stand-ins, and a queue pair on it."""
        from txrdma.soft.shared.sharedmemoryport import SharedMemoryPort

        class Memory(SharedMemoryPort):
            def __init__(self) -> None:
                pass

            def connect(self, owner: object) -> Any:
                route = Route()
                route.name = "shared-memory"
                return route

            def close(self) -> None:
                pass

        class Datagrams:
            canRest = False

            def connect(self, owner: object) -> Route:
                route = Route()
                route.name = "rocev2"
                return route

            def setEnabled(self, isEnabled: bool) -> None:
                pass

            def close(self) -> None:
                pass

        kinds: dict[str, Any] = {"memory": Memory, "datagrams": Datagrams}
        routes = [kinds[name]() for name in names]
        device = SoftDevice(
            Clock(), [SoftPort("127.0.0.1", 4791, routes), SoftPort("127.0.0.2", 4791, [], MTU.MTU_4096)]
        )
        self.addCleanup(device.close)
        channel = device.createChannel()
        queue = device.createCompletionQueue(4, channel)
        queuePair = device.createProtectionDomain().createQueuePair(RC, queue, queue, Capacity())
        assert isinstance(queuePair, SoftQueuePair)
        queuePair.modify(required(RC, RESET, INIT))
        return device, queuePair

    def test_alternatePathSelectsRoCE(self) -> None:
        for alternate, route in ((None, "shared-memory"), (ELSEWHERE, "rocev2")):
            _device, queuePair = self.ends("memory", "datagrams")
            queuePair.modify(replace(required(RC, INIT, RTR), alternateAddress=alternate))
            self.assertEqual(queuePair.route, route)

    def test_deviceWithoutRoCERefusesAlternatePath(self) -> None:
        _device, queuePair = self.ends("memory")
        wrong = replace(required(RC, INIT, RTR), alternateAddress=ELSEWHERE)
        self.assertIn("alternate path", str(self.assertRaises(InvalidRequest, queuePair.modify, wrong)))
        self.assertEqual((queuePair.state, queuePair.query().alternateAddress), (INIT, None))
        queuePair.modify(required(RC, INIT, RTR))
        self.assertEqual(queuePair.route, "shared-memory")
