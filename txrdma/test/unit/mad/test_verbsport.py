"""Management datagrams over queue pairs of software devices on a simulated network."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any, cast
from unittest.mock import Mock

from twisted.internet.defer import CancelledError
from twisted.trial.unittest import SynchronousTestCase

from txrdma.error import DeviceUnavailable, InvalidRequest, ResourceExhausted
from txrdma.iba.headers import GRH
from txrdma.iba.path import GMP_QKEY, IBDRPath, IBPath
from txrdma.iba.types import GID, LID, PKey, QPN
from txrdma.iba.verbs import (
    AddressVector,
    AsyncEventKind,
    Completion,
    CompletionOpcode,
    GIDEntry,
    GIDType,
    Operation,
    QPAttributes,
    QPState,
    Segment,
    SendRequest,
    Status,
)
from txrdma.interfaces import AsyncEvent, IMADReceiver
from txrdma.mad import ports
from txrdma.mad.agent import MADAgent
from txrdma.mad.core.addressing import partitionIndex, sourceIndex
from txrdma.mad.core.frames import frame
from txrdma.mad.layouts.attributes import ManagementClass, Method
from txrdma.mad.layouts.devices import PDUInfo
from txrdma.mad.layouts.messages import InformInfo, MADRequest, Notice
from txrdma.mad.layouts.pma import PortCounters
from txrdma.mad.layouts.sa import NodeRecord
from txrdma.mad.ports import availableMADPorts, defaultMADPort, descriptor, openMADPort
from txrdma.mad.ports.verbsport import Arrival, HANDLES, IPollingReactor, RECEIVES, SENDS, VerbsPort
from txrdma.mad.server import MADServer
from txrdma.mad.subscription import Subscription
from txrdma.sim.network import Faults, SimulatedNetwork
from txrdma.soft.device import SoftDevice
from txrdma.soft.strings import SoftDeviceStringParser
from txrdma.test.support.mad.pairs import Answers, removedDescriptors
from txrdma.testing.bystanders import ApplicationError, callbacks, exploding
from txrdma.testing.mad.ports import Receiver, request
from txrdma.testing.reactors import ReactorClock, SteppedTime

PERFORMANCE = ManagementClass.PERFORMANCE
ADMINISTRATION = ManagementClass.SUBN_ADM


class VerbsPortCase(SteppedTime, SynchronousTestCase):
    addresses = ("10.0.0.1", "10.0.0.2")

    def setUp(self) -> None:
        self.clock = ReactorClock()
        self.network = SimulatedNetwork(self.clock)
        self.devices = [self.network.device(address) for address in self.addresses]
        self.ports = [self.port(device) for device in self.devices]
        self.agent, self.other = (
            MADAgent(self.clock, port, timeoutSeconds=0.5, retries=10) for port in self.ports
        )
        for agent in (self.agent, self.other):
            self.addCleanup(agent.close)
        self.server = MADServer(self.other)
        self.path = IBPath(dgid=GID.fromIP(self.addresses[1]), dqpn=self.ports[1].qpn)

    def port(self, device: SoftDevice) -> VerbsPort:
        return VerbsPort(cast("IPollingReactor", self.clock), device)

    def serve(
        self, managementClass: ManagementClass, how: Callable[[MADRequest], object], *methods: Method
    ) -> Answers:
        answers = Answers(how)
        self.server.handle(managementClass, answers, methods or (Method.GET, Method.SET))
        return answers


class SubscriptionTests(VerbsPortCase):
    def test_reports(self) -> None:
        reports: list[int] = []
        answers = self.serve(ADMINISTRATION, lambda request: request.payload, Method.SET)
        server = MADServer(self.agent)
        subscription = Subscription(
            self.clock,
            self.agent,
            server,
            self.path,
            lambda notice, request: reports.append(notice.trapNumber),
        )
        subscription.start()
        self.wait(lambda: subscription.isStanding)
        (asked,) = answers.asked
        assert isinstance(asked.payload, InformInfo)
        self.assertEqual(asked.payload.qpn, self.ports[0].qpn)
        there = IBPath(dgid=GID.fromIP(self.addresses[0]), dqpn=asked.payload.qpn)
        self.result(self.other.SubnAdmReport(Notice(isGeneric=True, trapNumber=64), there))
        self.assertEqual(reports, [64])
        self.result(subscription.stop())


class CallTests(VerbsPortCase):
    def test_call(self) -> None:
        counters = PortCounters(portSelect=1, portXmitData=77)
        served = self.serve(PERFORMANCE, lambda request: counters)
        self.assertEqual(self.result(self.agent.PerformanceGet(PortCounters, self.path)), counters)
        (request,) = served.asked
        self.assertEqual(request.path.sqpn, self.ports[0].qpn)
        self.assertGreater(request.path.sqpn, 1)
        self.assertEqual((request.path.dqpn, request.path.qkey), (self.ports[1].qpn, GMP_QKEY))
        self.assertEqual(
            (request.path.sgid, request.path.dgid), tuple(GID.fromIP(address) for address in self.addresses)
        )

    def test_answerWakesNobody(self) -> None:
        """The completion of an answer that is sent at once needs no iteration of the reactor."""
        served = self.serve(PERFORMANCE, lambda request: PortCounters())
        port = self.ports[1]
        events: list[object] = []
        channel = port._channel
        port._channel = Mock(wraps=channel)
        port._channel.takeEvents.side_effect = lambda: events.extend(channel.takeEvents())
        self.result(self.agent.PerformanceGet(PortCounters, self.path))
        self.pause(0.1)
        self.assertEqual((len(served.asked), len(events)), (1, 1))

    def test_arrivalBeforeArming(self) -> None:
        """A datagram that completes just before the queue is armed is handled without another event."""
        served = self.serve(PERFORMANCE, lambda request: PortCounters())
        port = self.ports[1]
        queue = port._queue
        late: list[Sequence[Completion]] = [()]
        port._queue = Mock(wraps=queue)
        port._queue.poll.side_effect = lambda limit: late.pop() if late else queue.poll(limit)
        self.result(self.agent.PerformanceGet(PortCounters, self.path))
        self.assertEqual(len(served.asked), 1)

    def test_many(self) -> None:
        self.serve(PERFORMANCE, lambda request: PortCounters(portXmitData=request.header.attributeModifier))
        count = 5 * SENDS
        calls = [self.agent.PerformanceGet(PortCounters, self.path, index) for index in range(count)]
        self.wait(lambda: all(call.called for call in calls))
        self.assertEqual([self.successResultOf(call).portXmitData for call in calls], list(range(count)))

    def test_tooManyWaiting(self) -> None:
        """Beyond the limit of queued datagrams, a request fails, and an answer is dropped."""
        self.patch(descriptor, "MOST_WAITING", 10)
        calls = [self.agent.PerformanceGet(PortCounters, self.path, index) for index in range(SENDS + 12)]
        self.assertEqual(len(self.ports[0]._waiting), 10)
        for call in calls[SENDS + 10 :]:
            self.failureResultOf(call, ResourceExhausted)
        self.serve(PERFORMANCE, lambda request: PortCounters(portXmitData=request.header.attributeModifier))
        self.wait(lambda: all(call.called for call in calls))
        found = [self.successResultOf(call).portXmitData for call in calls[: SENDS + 10]]
        self.assertEqual(found, list(range(SENDS + 10)))
        answers = [frame(PERFORMANCE, 1, 0x81, 0x12, number, b"") for number in range(SENDS + 12)]
        self.agent._core._packets += [(answer, self.path, 0.0) for answer in answers]
        self.agent._turn()
        self.assertEqual(len(self.ports[0]._waiting), 10)

    def test_closed(self) -> None:
        port = self.ports[0]
        removed = removedDescriptors(self, self.clock)
        self.agent.close()
        port.close()
        self.assertEqual([each >= 0 for each in removed], [True])
        self.assertRaises(DeviceUnavailable, port.send, bytes(256), self.path)

    def test_misdirected(self) -> None:
        port, gmp = self.ports[0], frame(PERFORMANCE, 1, 1, 0x12, 0, b"")
        for datagram, path, why in (
            (gmp + b"\0", self.path, "256 bytes"),
            (frame(ADMINISTRATION, 1, 1, 0x12, 0, b"")[:200], self.path, "256 bytes"),
            (b"\1\x81\1\1" + bytes(252), IBDRPath(drPath=(1,)), "subnet management"),
            (b"\1\1\1\1" + bytes(252), self.path, "subnet management"),
            (gmp, IBPath(), "neither a GID nor a LID"),
            (gmp, replace(self.path, pkey=PKey(0x8001)), "partition"),
        ):
            error = self.assertRaises(InvalidRequest, port.send, datagram, path)
            self.assertIn(why, str(error))

    def test_malformedDatagrams(self) -> None:
        port = self.ports[1]
        reports: list[bytes] = []
        self.patch(self.other, "received", lambda datagram, envelope: reports.append(datagram))
        for datagram in (bytes(255), bytes(0), b"\1\x81\1\1" + bytes(252), b"\1\4\1\1" + bytes(252)):
            self.sendRaw(datagram)
        self.wait(lambda: bool(reports))
        self.assertEqual([datagram[1] for datagram in reports], [4])
        self.assertIs(port._pair.state, QPState.RTS)

    def sendRaw(self, datagram: bytes) -> None:
        port = self.ports[0]
        slot = port._free.popleft()
        memory = port._memory
        memory.view[slot * 320 : slot * 320 + len(datagram)] = datagram
        request = SendRequest(
            slot, Operation.SEND, [Segment(memory.address + slot * 320, len(datagram), memory.lkey)]
        )
        request.address, request.remoteQPN = port._handleTo(self.path), self.ports[1].qpn
        request.remoteQKey = GMP_QKEY
        port._pair.postSend([request])


class GSITests(VerbsPortCase):
    def port(self, device: SoftDevice) -> VerbsPort:
        return VerbsPort(cast("IPollingReactor", self.clock), device, isGSI=True)

    def test_taken(self) -> None:
        device = self.network.device("10.0.0.7", "10.0.0.8")
        self.addCleanup(device.close)
        reactor = cast("IPollingReactor", self.clock)
        for again in range(2):
            ports = [VerbsPort(reactor, device, number, isGSI=True, closesDevice=False) for number in (1, 2)]
            for number in (1, 2):
                self.assertRaises(
                    ResourceExhausted, *(VerbsPort, reactor, device, number), isGSI=True, closesDevice=False
                )
            self.assertEqual([port.qpn for port in ports], [1, 1], again)
            for port in ports:
                port.close()
        self.assertEqual(list(device._queuePairs), [])
        self.assertEqual(device.gids(2), (GID.fromIP("10.0.0.8"),))

    def test_beside(self) -> None:
        beside = VerbsPort(cast("IPollingReactor", self.clock), self.devices[1], closesDevice=False)
        other = MADAgent(self.clock, beside)
        self.addCleanup(other.close)
        self.assertGreater(beside.qpn, 1)
        self.serve(PERFORMANCE, lambda request: PortCounters(portXmitData=1))
        MADServer(other).handle(
            PERFORMANCE, Answers(lambda request: PortCounters(portXmitData=2)), (Method.GET,)
        )
        for qpn, answer in ((1, 1), (beside.qpn, 2)):
            path = IBPath(dgid=GID.fromIP(self.addresses[1]), dqpn=QPN(qpn))
            counters = self.result(self.agent.PerformanceGet(PortCounters, path))
            self.assertEqual(counters.portXmitData, answer)


class ChosenTests(VerbsPortCase):
    def test_chosen(self) -> None:
        served = self.serve(PERFORMANCE, lambda request: PortCounters())
        number = self.agent.newTransactionID()
        call = self.agent.PerformanceGet(PortCounters, self.path, transactionID=number)
        twin = self.agent.PerformanceGet(PortCounters, self.path, transactionID=number)
        self.failureResultOf(twin, InvalidRequest)
        self.result(call)
        self.assertEqual([request.header.transactionID for request in served.asked], [number])
        self.result(self.agent.PerformanceGet(PortCounters, self.path, transactionID=number))
        wide = self.agent.PerformanceGet(PortCounters, self.path, transactionID=1 << 64)
        self.failureResultOf(wide, InvalidRequest)

    def test_unanswered(self) -> None:
        served = self.serve(ManagementClass.SNMP, lambda request: None, Method.SEND)
        call = self.agent.PerformanceGet(PortCounters, self.path, transactionID=7)
        self.successResultOf(self.agent.SNMPSend(PDUInfo, self.path, transactionID=7))
        self.wait(lambda: bool(served.asked))
        self.assertEqual(served.asked[0].header.transactionID, 7)
        self.assertNoResult(call)
        call.cancel()
        self.failureResultOf(call, CancelledError)

    def test_again(self) -> None:
        served = self.serve(ManagementClass.SNMP, lambda request: None, Method.SEND)
        datagram = frame(ManagementClass.SNMP, Method.SEND, 99, PDUInfo.attributeID, 0, b"hello")
        for _ in range(3):
            self.agent.send(datagram, self.path)
        self.wait(lambda: len(served.asked) == 3)
        self.assertEqual({request.header.transactionID for request in served.asked}, {99})
        self.assertEqual({request.data[:5] for request in served.asked}, {b"hello"})
        self.agent.close()
        self.assertRaises(DeviceUnavailable, self.agent.send, datagram, self.path)


class OverIPv6Tests(CallTests):
    addresses = ("fe80::1", "fe80::2")


class CrowdTests(VerbsPortCase):
    def test_namesakes(self) -> None:
        third = self.port(self.network.device("10.0.0.3"))
        agents = [self.agent, MADAgent(self.clock, third, timeoutSeconds=0.5)]
        self.addCleanup(agents[1].close)
        for agent in agents:
            agent._core._transactions._drawn.append(0x1234)

        def answered(request: MADRequest) -> list[NodeRecord]:
            return tables[request.path.sgid == GID.fromIP("10.0.0.3")]

        tables = [[NodeRecord(lid=LID(first + number)) for number in range(500)] for first in (1, 1001)]
        self.network.faults = Faults(loss=0.05, duplication=0.05, jitterSeconds=100e-6)
        self.serve(ADMINISTRATION, answered, Method.GET_TABLE)
        calls = [agent.SubnAdmGetTable(NodeRecord, self.path) for agent in agents]
        self.assertEqual([self.result(call, 600) for call in calls], tables)
        self.assertGreater(self.network.dropped, 20)

    def test_bothWays(self) -> None:
        for agent in (self.agent, self.other):
            agent._core._transactions._drawn.append(0x1234)
        back = IBPath(dgid=GID.fromIP(self.addresses[0]), dqpn=self.ports[0].qpn)
        servers = (MADServer(self.agent), self.server)
        for number, server in enumerate(servers):
            records = [NodeRecord(lid=LID(number + 1))] * 300
            server.handle(ADMINISTRATION, Answers(lambda request, r=records: r), (Method.GET_TABLE,))  # type: ignore[misc]  # of this turn
        calls = [
            self.agent.SubnAdmGetTable(NodeRecord, self.path),
            self.other.SubnAdmGetTable(NodeRecord, back),
        ]
        tables = [self.result(call) for call in calls]
        self.assertEqual([{record.lid for record in table} for table in tables], [{2}, {1}])


class RaisingReceiver(Receiver):
    hasRaised = False


class FaultTests(VerbsPortCase):
    def test_changes(self) -> None:
        port, gid = self.ports[0], GID.fromIP("10.0.0.9")
        self.patch(self.devices[0], "gidTable", lambda number: [GIDEntry(gid, GIDType.ROCE_V2)])
        port._asyncEvent(AsyncEvent(AsyncEventKind.GID_CHANGE, port=2))
        self.assertNotEqual(port.endPort.gids, (gid,))
        port._asyncEvent(AsyncEvent(AsyncEventKind.GID_CHANGE, port=1))
        self.assertEqual(port.endPort.gids, (gid,))

    def test_reregister(self) -> None:
        reported: list[bool] = []
        self.patch(self.agent, "portChanged", reported.append)
        for kind in (AsyncEventKind.CLIENT_REREGISTER, AsyncEventKind.SM_CHANGE):
            self.ports[0]._asyncEvent(AsyncEvent(kind, port=1))
        self.assertEqual(reported, [True, False])

    def test_mended(self) -> None:
        self.serve(PERFORMANCE, lambda request: PortCounters())
        self.pause(0.01)
        pair = self.ports[0]._pair
        pair.modify(QPAttributes(state=QPState.ERR))
        self.wait(lambda: pair.state is QPState.RTS)
        self.assertEqual(self.result(self.agent.PerformanceGet(PortCounters, self.path)), PortCounters())

    def test_failedReceive(self) -> None:
        """Receives that the device refuses once are posted with the next ones, and the port remains."""
        self.serve(PERFORMANCE, lambda request: PortCounters())
        self.pause(0.01)
        port = self.ports[0]
        genuine, failures = port._pair.postReceive, [ResourceExhausted("no memory")]

        def postReceive(requests: Any) -> None:
            if failures:
                raise failures.pop()
            genuine(requests)

        self.patch(port._pair, "postReceive", postReceive)
        for _each in range(2):
            answer = self.agent.PerformanceGet(PortCounters, self.path)
            self.assertEqual(self.result(answer), PortCounters())
        self.wait(lambda: port._posted == RECEIVES)
        self.assertEqual((failures, port._closed), ([], False))

    def test_failedSend(self) -> None:
        output: list[str] = []
        port = self.ports[0]
        self.patch(self.agent, "undeliverable", lambda datagram, reason: output.append(reason))
        for slot, method in ((0, 1), (1, 0x81)):
            port._free.remove(slot)
            port._memory.view[slot * 320 : slot * 320 + 4] = bytes((1, 4, 1, method))
            port._sent(Completion(slot, Status.LOC_QP_OP_ERR, CompletionOpcode.SEND, port.qpn))
        self.assertEqual(output, ["it could not be sent: LOC_QP_OP_ERR"])
        self.assertEqual(len(port._free), SENDS)

    def test_raisingReceivers(self) -> None:
        """Each callback of a receiver raises once: it is logged, and another port of the device goes on."""
        self.serve(PERFORMANCE, lambda request: PortCounters())
        failed = Completion(0, Status.LOC_QP_OP_ERR, CompletionOpcode.SEND, QPN(0))
        triggers: dict[str, Callable[[VerbsPort], object]] = {
            "received": lambda port: port.send(request(1, managementClass=PERFORMANCE), self.path),
            "undeliverable": lambda port: port._sent(failed),
            "portLost": lambda port: port._asyncEvent(AsyncEvent(AsyncEventKind.DEVICE_FATAL)),
            "portChanged": lambda port: self.devices[0].notify(AsyncEvent(AsyncEventKind.SM_CHANGE, port=1)),
        }
        for name in callbacks(IMADReceiver):
            reactor = cast("IPollingReactor", self.clock)
            port = VerbsPort(reactor, self.devices[0], closesDevice=False)
            self.addCleanup(port.close)
            receiver = exploding(RaisingReceiver, name)()
            port.start(receiver)
            triggers[name](port)
            self.wait(lambda: receiver.hasRaised)  # noqa: B023
            answer = self.agent.PerformanceGet(PortCounters, self.path)
            self.assertEqual(self.result(answer), PortCounters(), name)
            self.assertEqual(len(self.flushLoggedErrors(ApplicationError)), 1, name)

    def test_handles(self) -> None:
        port = self.ports[0]
        closed: list[AddressVector] = []

        def make(address: AddressVector) -> Mock:
            return Mock(address=address, close=lambda: closed.append(address))

        self.patch(port._domain, "createAddressHandle", make)
        paths = [IBPath(dgid=GID.fromIP(f"10.0.{number >> 8}.{number & 255}")) for number in range(HANDLES)]
        handles = [port._handleTo(path) for path in paths]
        self.assertIs(port._handleTo(paths[0]), handles[0])
        port._handleTo(IBPath(dgid=GID.fromIP("10.9.9.9")))
        self.assertEqual(closed, [handles[1].address])


class AddressingTests(SynchronousTestCase):
    def test_sourceIndex(self) -> None:
        local, mapped = GID.fromIP("fe80::1"), GID.fromIP("10.0.0.1")
        table = [
            GIDEntry(local, GIDType.ROCE_V1),
            GIDEntry(local, GIDType.ROCE_V2),
            GIDEntry(GID(bytes(16)), GIDType.ROCE_V2),
            GIDEntry(mapped, GIDType.ROCE_V1),
            GIDEntry(mapped, GIDType.ROCE_V2),
            GIDEntry(GID.fromIP("2001:db8::1"), GIDType.ROCE_V2),
        ]
        for destination, source, index in (
            ("fe80::2", None, 1),
            ("10.0.0.2", None, 4),
            ("2001:db8::2", None, 5),
            ("fe80::2", "2001:db8::1", 5),
            ("fe80::2", "2001:db8::99", 1),
        ):
            path = IBPath(dgid=GID.fromIP(destination), sgid=GID.fromIP(source) if source else None)
            self.assertEqual(sourceIndex(table, path), index, (destination, source))
        self.assertEqual(sourceIndex([], IBPath(dgid=local)), 0)
        self.assertEqual(sourceIndex(table, IBPath(dlid=LID(7))), 0)

    def test_partitionIndex(self) -> None:
        table = (PKey(0x7FFF), PKey(0x8001), PKey(0xFFFF))
        self.assertEqual(partitionIndex(table, PKey(0xFFFF)), 2)
        self.assertEqual(partitionIndex(table, PKey(0x0001)), 1)
        self.assertEqual(partitionIndex(table[:1], PKey(0xFFFF)), 0)
        self.assertIsNone(partitionIndex(table, PKey(0x8002)))

    def test_infiniband(self) -> None:
        clock = ReactorClock()
        port = VerbsPort(cast("IPollingReactor", clock), SimulatedNetwork(clock).device("10.0.0.1"))
        self.addCleanup(port.close)
        path = port.pathOf(Arrival(b"", 77, 9, 3))
        self.assertEqual((path.slid, path.serviceLevel, path.sqpn, path.dgid), (9, 3, QPN(77), None))
        grh = GRH(
            version=6,
            trafficClass=5,
            flowLabel=0x12345,
            payloadLength=280,
            nextHeader=0x1B,
            hopLimit=63,
            sgid=GID.fromIP("fe80::9"),
            dgid=GID.fromIP("fe80::1"),
        )
        path = port.pathOf(Arrival(grh.encode(), 77, 9, 3))
        self.assertEqual((path.sgid, path.dgid), (grh.sgid, grh.dgid))
        self.assertEqual((path.trafficClass, path.flowLabel, path.hopLimit), (5, 0x12345, 63))


class StringTests(SynchronousTestCase):
    def setUp(self) -> None:
        self.clock = ReactorClock()
        self.asked: list[tuple[tuple[str, ...], dict[str, str]]] = []
        self.patch(SoftDeviceStringParser, "parseDevice", self.open)

    def open(self, reactor: object, *args: str, **kwargs: str) -> SoftDevice:
        self.asked.append((args, kwargs))
        return SimulatedNetwork(self.clock).device("10.0.0.1", "10.0.0.2")

    def test_device(self) -> None:
        port = openMADPort(self.clock, r"vmad:soft:\:\:1:port=4792:pcap=a\=b.pcap:endport=2")
        self.addCleanup(port.close)
        self.assertEqual(self.asked, [(("::1",), {"port": "4792", "pcap": "a=b.pcap"})])
        self.assertEqual(port.endPort.gids, (GID.fromIP("10.0.0.2"),))
        self.assertIn("vmad:", port.name)

    def test_generalServices(self) -> None:
        port = openMADPort(self.clock, "vmad:soft:endport=2:qpn=1")
        self.addCleanup(port.close)
        self.assertEqual((self.asked, port.endPort.qpn), ([((), {})], 1))
        self.assertTrue(port.name.endswith(":endport=2:qpn=1"), port.name)

    def test_nonsense(self) -> None:
        for text in ("vmad", "vmad:soft:endport=x", "vmad:soft:qpn=0", "vmad:hard"):
            self.assertRaises(ValueError, openMADPort, self.clock, text)
        self.assertEqual(self.asked, [])
        self.assertRaises(InvalidRequest, openMADPort, self.clock, "vmad:soft:endport=7")
        self.assertEqual(self.clock.readers, [])

    def test_available(self) -> None:
        self.assertIn("vmad:soft", availableMADPorts())

    def test_default(self) -> None:
        self.patch(ports, "availableMADPorts", lambda: ["sim", "vmad:soft", "ibsim"])
        self.assertEqual(defaultMADPort(), "ibsim")
