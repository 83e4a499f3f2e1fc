"""Memory for receives: parts of regions, which connections reuse."""

from __future__ import annotations

import gc
from weakref import ref

from twisted.internet.task import Clock
from twisted.trial.unittest import SynchronousTestCase

from txrdma.cm.connections.adapter import adapterOf
from txrdma.cm.connections.receives import LARGEST, Part, PARTS, ReceiveMemory, SPARE_REGIONS
from txrdma.error import InvalidRequest
from txrdma.iba.verbs import Access
from txrdma.sim.network import SimulatedNetwork
from txrdma.test.support.cm.messaging import MessagingCase, SERVICE


class ReceiveMemoryTests(SynchronousTestCase):
    """Allocation of memory by connections, and its release."""

    def setUp(self) -> None:
        self.device = SimulatedNetwork(Clock()).device("10.0.1.1")
        self.addCleanup(self.device.close)
        self.domain = self.device.createProtectionDomain()
        self.memory = ReceiveMemory(self.domain)

    @property
    def regions(self) -> int:
        return len(self.device.keys)

    def take(self, count: int, slots: int = 3, slotBytes: int = 100) -> list[Part]:
        """Allocate memory for several connections."""
        return [self.memory.take(slots, slotBytes) for _ in range(count)]

    def test_connectionsShareNoByte(self) -> None:
        begins: list[int] = []
        for part in self.take(2 * PARTS + 1):
            self.assertEqual([request.identifier for request in part.prepare(3)], [0, 1, 2])
            segments = [segment for request in part.prepare(3) for segment in request.segments]
            self.assertEqual({segment.length for segment in segments}, {100})
            begins += [segment.address for segment in segments]
        begins.sort()
        self.assertGreaterEqual(
            min(after - before for before, after in zip(begins, begins[1:], strict=False)), 100
        )
        self.assertEqual(self.regions, 3)

    def test_peersCannotAccessReceives(self) -> None:
        self.take(1)
        (region,) = self.device.keys.regionsOf(self.domain)  # type: ignore[arg-type]  # the device's own
        self.assertEqual(region.access, Access.LOCAL_WRITE)

    def test_returnedMemoryIsReused(self) -> None:
        (part,) = self.take(1)
        before = part.prepare(1)[0].segments
        part.giveBack()
        (again,) = self.take(1)
        self.assertEqual((again.prepare(1)[0].segments, self.regions), (before, 1))

    def test_messageOfSlot(self) -> None:
        first, second = self.take(2)
        segment = second.prepare(2)[1].segments[0]
        (region,) = self.device.keys.regionsOf(self.domain)  # type: ignore[arg-type]  # the device's own
        at = segment.address - region.address
        region.view[at : at + 5] = b"hello"
        self.assertEqual((second.message(1, 5), first.message(1, 5)), (b"hello", bytes(5)))

    def test_fewRegionsAreKeptAfterBurst(self) -> None:
        parts = self.take(20 * PARTS)
        self.assertEqual(self.regions, 20)
        for part in parts[::2] + parts[1::2]:
            part.giveBack()
        self.assertEqual(self.regions, SPARE_REGIONS)

    def test_largeRegionsAreDeregistered(self) -> None:
        (part,) = self.take(1, 2, LARGEST)
        self.assertEqual(self.regions, 1)
        part.giveBack()
        self.assertEqual(self.regions, 0)

    def test_nothingIsLeftAfterClose(self) -> None:
        parts = [*self.take(PARTS + 1), *self.take(2, 5, 10)]
        for part in parts:
            part.giveBack()
        self.memory.close()
        self.assertEqual(self.regions, 0)
        self.domain.close()

    def test_refusedRequestLeavesTheRest(self) -> None:
        (part,) = self.take(1)
        self.assertRaises(InvalidRequest, self.memory.take, 1, 1 << 62)
        part.giveBack()
        self.assertEqual(len(self.take(PARTS)), PARTS)


class GarbageTests(MessagingCase):
    """Connections leave no reference cycles: the garbage collector is off."""

    def setUp(self) -> None:
        super().setUp()
        self.addCleanup(gc.enable if gc.isenabled() else gc.disable)
        gc.collect()
        gc.disable()

    def over(self) -> list[ref[object]]:
        """Open and close a connection; return weak references to its objects."""
        port = self.serve()
        client = self.result(self.ask(life=17))
        server = self.served[-1]
        port.stopListening()
        self.closed(client, server)
        transports = [each.transport for each in (client, server)]
        found = [ref(each) for each in (*transports, *(each.connection for each in transports))]
        self.served.clear()
        return found

    def test_timewaitHoldsOnlyIDs(self) -> None:
        self.serve(serviceID=SERVICE + 1)
        here, there = (adapterOf(self.clock, device) for device in self.devices)
        release = here.hold()
        transports = self.over()[:2]
        self.assertEqual([each.localManager.states["TIMEWAIT"] for each in (here, there)], [1, 1])
        self.assertEqual([each() for each in transports], [None, None])
        release()

    def test_closedManagerLeavesNoCycles(self) -> None:
        left = self.over()
        self.assertNothingLeft(0.1)
        self.assertEqual([each() for each in left], [None] * 4)
