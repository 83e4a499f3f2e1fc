"""Management ports of the kernel, over a fake kernel, and batches of datagrams."""

from __future__ import annotations

import errno
import socket
import struct
import sys
from collections.abc import Callable, Sequence
from typing import Any, cast

from twisted.internet.defer import CancelledError, Deferred
from twisted.internet.error import ConnectionDone
from twisted.internet.interfaces import IReactorFDSet
from twisted.python.failure import Failure
from twisted.trial.unittest import SynchronousTestCase

from txrdma.error import DeviceUnavailable, InvalidRequest, ResourceExhausted
from txrdma.iba.path import GMP_QKEY, IBDRPath, IBPath
from txrdma.iba.types import GID, LID, PKey, QPN
from txrdma.mad.agent import MADAgent
from txrdma.mad.core.frames import frame
from txrdma.mad.errors import MADTimeoutError
from txrdma.mad.layouts.attributes import ManagementClass, Method
from txrdma.mad.layouts.messages import MADRequest, Notice
from txrdma.mad.layouts.pma import PortCounters
from txrdma.mad.layouts.sa import MultiPathRecord, NodeRecord
from txrdma.mad.layouts.smp import NodeInfo
from txrdma.mad.ports import openMADPort, registration, umad
from txrdma.mad.ports.batches import Batches, MOST
from txrdma.mad.ports.umad import UmadPort
from txrdma.mad.server import MADServer
from txrdma.mad.vendor import OpenIBPing
from txrdma.ports import getEndPort
from txrdma.test.support.mad.fakekernel import FakeKernel, MOST_AGENTS
from txrdma.test.support.mad.pairs import Answers, removedDescriptors
from txrdma.test.support.sysfs import INFINIBAND, MLX5, ROCE, SysFS
from txrdma.testing.reactors import ReactorClock, SteppedTime

PERFORMANCE = ManagementClass.PERFORMANCE
ADMINISTRATION = ManagementClass.SUBN_ADM
GIDS = ("fe80::1", "fe80::2")


class UmadCase(SteppedTime, SynchronousTestCase):
    def setUp(self) -> None:
        self.clock = ReactorClock()
        self.sysfs = SysFS(self.mktemp())
        for index, gid in enumerate(GIDS):
            name = f"roce{index}"
            self.sysfs.device(name, MLX5)
            self.sysfs.port(name, 1, ROCE, [(gid, "RoCE v2", ""), (f"::ffff:10.0.0.{index}", "RoCE v2", "")])
            self.sysfs.characterDevice(f"umad{index}", name, 1)
        self.sysfs.device("mlx5_0", MLX5)
        pkeys = ("0x7fff", "0x8001")
        self.sysfs.port("mlx5_0", 1, INFINIBAND, [("fe80::2:c903:0:7", "IB/RoCE v1", "")], pkeys)
        self.sysfs.characterDevice("umad2", "mlx5_0", 1)
        gids = {f"umad{index}": GID.fromString(gid) for index, gid in enumerate((*GIDS, "fe80::2:c903:0:7"))}
        self.kernel = FakeKernel(self.clock, gids)
        self.patch(umad, "os", self.kernel)
        self.patch(registration, "ioctl", self.kernel.ioctl)
        self.path = IBPath(dgid=GID.fromString(GIDS[1]), dqpn=QPN(1))

    def port(self, name: str, rmpp: bool = True) -> UmadPort:
        port = UmadPort(cast("IReactorFDSet", self.clock), getEndPort(name, self.sysfs.root), rmpp)
        self.addCleanup(port.close)
        return port

    def agent(self, name: str, rmpp: bool = True) -> MADAgent:
        agent = MADAgent(self.clock, self.port(name, rmpp), timeoutSeconds=0.5)
        self.addCleanup(agent.close)
        return agent

    def serve(
        self,
        agent: MADAgent,
        managementClass: ManagementClass,
        how: Callable[[MADRequest], object],
        *methods: Method,
        oui: int = 0,
    ) -> Answers:
        answers = Answers(how)
        MADServer(agent).handle(managementClass, answers, methods or (Method.GET, Method.SET), oui)
        return answers


class PortTests(UmadCase):
    def test_noSuchFile(self) -> None:
        del self.kernel.gids["umad0"]
        self.assertRaises(DeviceUnavailable, self.port, "roce0")
        self.kernel.isGone = True
        self.assertRaises(DeviceUnavailable, self.port, "roce1")
        self.assertEqual(self.kernel.files, {})

    def test_subnetManagement(self) -> None:
        roce = self.agent("roce0")
        self.assertFalse(roce.port.hasSMI)
        self.failure(roce.SubnGet(NodeInfo, IBDRPath()), InvalidRequest)
        self.kernel.hasSMI = True
        agent = self.agent("mlx5_0")
        self.assertTrue(agent.port.hasSMI)
        for path in (IBDRPath(drPath=(1, 2)), IBPath(dlid=LID(9))):
            agent.SubnGet(NodeInfo, path).addErrback(lambda failure: None)
        directed, routed = self.kernel.sent
        for message, lid, managementClass in ((directed, 0xFFFF, 0x81), (routed, 9, 0x01)):
            qpn, qkey, to = struct.unpack_from(">IIH", message, 20)
            self.assertEqual((qpn, qkey, to, message[65]), (0, 0, lid, managementClass))

    def test_closed(self) -> None:
        agent = self.agent("roce0")
        removed = removedDescriptors(self, self.clock)
        agent.close()
        agent.port.close()
        self.assertEqual((self.clock.readers, self.kernel.files), ([], {}))
        self.assertEqual([each >= 0 for each in removed], [True])
        self.assertRaises(DeviceUnavailable, agent.port.send, bytes(256), self.path)
        self.assertRaises(DeviceUnavailable, agent.port.serve, ManagementClass.SUBN_ADM, (Method.REPORT,))

    def test_strings(self) -> None:
        asked: list[str] = []

        def find(spelling: str) -> object:
            asked.append(spelling)
            return getEndPort(spelling, self.sysfs.root)

        self.patch(__import__("txrdma.ports", fromlist=["getEndPort"]), "getEndPort", find)
        for text, name, rmpp in (
            ("umad:roce0", "roce0", True),
            ("umad:roce1/1:rmpp=own", "roce1", False),
            ("umad:fe80::2", "roce1", True),
            ("umad:port=mlx5_0:rmpp=kernel", "mlx5_0", True),
            ("umad", "mlx5_0", True),
        ):
            port = openMADPort(self.clock, text)
            self.addCleanup(port.close)
            self.assertEqual((port.name, port.doesRMPP), (f"umad:{name}/1", rmpp))
        self.assertEqual(asked[-1], "")
        for text in ("umad:roce0:rmpp=maybe", "umad:roce0:colour=red", "umad:roce0:port=roce1"):
            self.assertRaises(ValueError, openMADPort, self.clock, text)
        self.assertRaises(DeviceUnavailable, openMADPort, self.clock, "umad:nothing")


class CallTests(UmadCase):
    def test_call(self) -> None:
        client, server = self.agent("roce0"), self.agent("roce1")
        served = self.serve(server, PERFORMANCE, lambda request: PortCounters(portXmitData=7))
        self.assertEqual(self.result(client.PerformanceGet(PortCounters, self.path)).portXmitData, 7)
        path = served.asked[0].path
        self.assertEqual((path.sgid, path.dgid), tuple(GID.fromString(gid) for gid in GIDS))
        self.assertEqual((path.sqpn, path.dqpn, path.qkey, path.hopLimit), (1, 1, GMP_QKEY, 64))

    def test_envelope(self) -> None:
        port = self.port("mlx5_0")
        datagram = frame(PERFORMANCE, Method.GET, 0x1122334455667788, 0x12, 0, b"")
        path = IBPath(
            dlid=LID(0x0102),
            slid=LID(7),
            serviceLevel=3,
            dgid=GID.fromString("fe80::9"),
            trafficClass=4,
            flowLabel=0x56789,
            hopLimit=5,
            pkey=PKey(0x0001),
            dqpn=QPN(0x123456),
            qkey=0x81020304,
        )
        port.send(datagram, path, 2.0)
        (message,) = self.kernel.sent
        local = struct.pack("=IIIII", 0, 0, 1800, 0, 256)
        remote = bytes.fromhex("00123456 81020304 0102 03 01 01 00 05 04 fe80000000000000 0000000000000009")
        rest = bytes.fromhex("00056789") + struct.pack("=H6x", 1)
        self.assertEqual(message[:64], local + remote + rest)
        self.assertEqual(message[72:80], bytes.fromhex("00000001 55667788"))

    def test_partitions(self) -> None:
        port, datagram = self.port("mlx5_0"), frame(PERFORMANCE, Method.GET, 1, 0x12, 0, b"")
        for pkey, index in ((0xFFFF, 0), (0x7FFF, 0), (0x8001, 1)):
            port.send(datagram, IBPath(dlid=LID(9), pkey=PKey(pkey)))
            self.assertEqual(struct.unpack_from("=H", self.kernel.sent[-1], 56), (index,))
        self.assertRaises(InvalidRequest, port.send, datagram, IBPath(dlid=LID(9), pkey=PKey(0x8002)))

    def test_timeout(self) -> None:
        client = self.agent("roce0")
        self.failure(client.PerformanceGet(PortCounters, self.path, retries=2), MADTimeoutError)
        self.assertEqual(len(self.kernel.sent), 3)
        self.assertLess(self.clock.seconds(), 1.5)
        self.assertEqual(len({message[72:80] for message in self.kernel.sent}), 1)

    def test_slowKernel(self) -> None:
        self.kernel.lateness = 0.2
        client = self.agent("roce0")
        self.failure(client.PerformanceGet(PortCounters, self.path, retries=2), MADTimeoutError)
        self.assertEqual(len(self.kernel.sent), 3)
        server = self.agent("roce1")
        self.serve(server, PERFORMANCE, lambda request: PortCounters())
        self.kernel.lose = lambda datagram: len(self.kernel.sent) < 5
        self.result(client.PerformanceGet(PortCounters, self.path))

    def test_forgets(self) -> None:
        client, server = self.agent("roce0"), self.agent("roce1")
        self.serve(server, PERFORMANCE, lambda request: PortCounters())
        self.result(client.PerformanceGet(PortCounters, self.path))
        nowhere = IBPath(dgid=GID.fromString("fe80::77"), dqpn=QPN(1))
        self.failure(client.PerformanceGet(PortCounters, nowhere, retries=0), MADTimeoutError)
        cancelled = client.PerformanceGet(PortCounters, nowhere)
        cancelled.cancel()
        self.failureResultOf(cancelled, CancelledError)
        self.wait(lambda: not self.kernel.files[client.port.fileno()].open)  # type: ignore[attr-defined]  # a UmadPort
        self.clock.step()
        self.assertEqual(client.port._awaited, {})  # type: ignore[attr-defined]  # a UmadPort

    def test_hungUp(self) -> None:
        client = self.agent("roce0")
        waiting = client.PerformanceGet(PortCounters, self.path)
        port = cast("UmadPort", client.port)
        for _ in range(2):
            port.connectionLost(Failure(ConnectionDone()))
            self.failureResultOf(client.PerformanceGet(PortCounters, self.path), DeviceUnavailable)
        self.failureResultOf(waiting, DeviceUnavailable)


class RecordedTests(UmadCase):
    skip = None if sys.byteorder == "little" else "recorded on a little-endian machine"

    ANSWER = (
        "0000000000000000000000000000000040010000 00000001 00000000 0000 00 00 01004000"
        "fe8000000000000038c1aafffefc4c0e 00000000 0000000000000000"
        "0104018100000000000000074ad33bd000120000"
    )
    UNSERVED = (
        "0200000000000000000000000000000040010000 00000001 00000000 0000 00 00 01004000"
        "fe8000000000000038c1aafffefc4c0e 00000000 0000000000000000"
        "01320181000c00000000000a4ad33bd200000000"
    )
    TOO_LONG = (
        "01000000000000000000000000000000b8320100 00000001 00000000 0000 00 00 01004000"
        "fe8000000000000038c1aafffefc4c0e 00000000 0000000000000000"
        "0103029200000000000000084ad33bd1001100000000000001010300 00000001 000150e0"
    )

    def read(self, *messages: bytes) -> list[tuple[bytes, IBPath]]:
        agent = self.agent("roce0")
        port = cast("UmadPort", agent.port)
        reports: list[tuple[bytes, IBPath]] = []
        self.patch(agent, "received", lambda datagram, way: reports.append((datagram, port.pathOf(way))))
        self.kernel.files[port.fileno()].toRead.extend(messages)
        port.doRead()
        return reports

    def test_answers(self) -> None:
        messages = [bytes.fromhex(text).ljust(320, b"\0") for text in (self.ANSWER, self.UNSERVED)]
        reports = self.read(*messages)
        self.assertEqual([datagram for datagram, _ in reports], [message[64:] for message in messages])
        for _, path in reports:
            self.assertEqual(path.sgid, GID.fromString("fe80::38c1:aaff:fefc:4c0e"))
            self.assertEqual(path.dgid, GID.fromString(GIDS[0]))
            self.assertEqual((path.sqpn, path.hopLimit, path.slid, path.pkey), (1, 64, 0, 0xFFFF))

    def test_tooLong(self) -> None:
        begin = bytes.fromhex(self.TOO_LONG)
        message = begin.ljust(struct.unpack_from("=I", begin, 16)[0], b"\1")
        ((datagram, _),) = self.read(message)
        self.assertEqual(len(datagram), 78520 - 64)
        self.assertEqual(datagram, message[64:])


class ServeTests(UmadCase):
    def test_trap(self) -> None:
        client, server = self.agent("roce0"), self.agent("roce1")
        MADServer(server).listen(lambda notice, request: None, ADMINISTRATION, (Method.TRAP,))
        self.result(client.SubnAdmTrap(Notice(isGeneric=True, trapNumber=64), self.path))
        port = client.port
        assert isinstance(port, UmadPort)
        self.assertEqual(port._awaited, {})

    def test_taken(self) -> None:
        first, second = self.port("roce0"), self.port("roce0")
        end = first.serve(PERFORMANCE, [Method.GET, Method.SET])
        self.assertRaises(ResourceExhausted, second.serve, PERFORMANCE, [Method.SET])
        second.serve(PERFORMANCE, [Method.TRAP])
        end()
        end()
        second.serve(PERFORMANCE, [Method.SET])

    def test_oldKernel(self) -> None:
        self.kernel.isOld = True
        client, server = self.agent("roce0"), self.agent("roce1")
        self.serve(server, PERFORMANCE, lambda request: PortCounters(portXmitData=7))
        self.assertEqual(self.result(client.PerformanceGet(PortCounters, self.path)).portXmitData, 7)
        self.assertRaises(ResourceExhausted, self.port("roce1").serve, PERFORMANCE, [Method.SET])
        self.assertFalse(client.port.hasSMI)

    def test_registration(self) -> None:
        asked: list[tuple[int, bytes]] = []

        def respond(fd: int, number: int, *arguments: Any) -> int:
            asked.append((number, bytes(arguments[0]) if arguments else b""))
            if number == 0xC0281B04 and len(asked) > 1:
                raise OSError(errno.ENOTTY, "Inappropriate ioctl for device")
            if arguments:
                arguments[0][:4] = struct.pack("=I", 9)
            return 0

        self.patch(registration, "ioctl", respond)
        for _ in range(2):
            number = registration.Registry(5).register(1, 0x32, 1, 1 << 3 | 1 << 70, 0x001405, True)
            self.assertEqual(number, 9)
        new = (
            struct.pack("=II", 0, 1) + b"\x32\x01\0\0" + struct.pack("=IQQI", 0, 8, 64, 0x1405) + b"\1\0\0\0"
        )
        old = struct.pack("=IQQ", 0, 8, 64) + b"\x01\x32\x01\x00\x14\x05\x01\0"
        self.assertEqual(asked, [(0xC0281B04, new), (0xC0281B04, new), (0x1B03, b""), (0xC01C1B01, old)])

    def test_impossible(self) -> None:
        self.assertRaises(InvalidRequest, self.port("roce0").serve, ManagementClass.SUBN_LID, [Method.GET])

    def test_vendor(self) -> None:
        client, server = self.agent("roce0"), self.agent("roce1")
        kind = OpenIBPing.vendorClass
        assert kind is not None
        served = self.serve(server, kind, lambda request: request.payload, Method.GET, oui=OpenIBPing.oui)
        self.result(client.VendGet(OpenIBPing(content=b"hello".ljust(216, b"\0")), self.path))
        self.assertEqual(len(served.asked), 1)


class TableTests(UmadCase):
    def records(self, count: int) -> list[NodeRecord]:
        return [NodeRecord(lid=LID(number % 0xBFFF + 1)) for number in range(count)]

    def fetch(self, count: int, isServerKernel: bool, isClientKernel: bool) -> None:
        client, server = self.agent("roce0", isClientKernel), self.agent("roce1", isServerKernel)
        records = self.records(count)
        self.serve(server, ADMINISTRATION, lambda request: records, Method.GET_TABLE)
        found: Sequence[NodeRecord] = self.result(client.SubnAdmGetTable(NodeRecord, self.path, retries=9))
        self.assertEqual(found, records)
        client.close()
        server.close()

    def test_byTheKernel(self) -> None:
        for count in (0, 1, 1000, 2000):
            self.fetch(count, True, True)

    def test_resends(self) -> None:
        self.fetch(10, True, True)
        answer = self.kernel.sent[1]
        timeout, retries = struct.unpack_from("=II", answer, 8)
        self.assertEqual(timeout, 0)  # otherwise the kernel would wait for an answer to the answer
        self.assertGreater(retries, 3)


NOWHERE = GID.fromString("fe80::77")


class RefusalTests(UmadCase):
    def waited(self, seconds: float) -> int:
        port = self.port("roce0")
        port.send(frame(PERFORMANCE, Method.GET, 7, 0x12, 0, b""), self.path, seconds)
        (milliseconds,) = struct.unpack_from("=I", self.kernel.sent[-1], 8)
        return int(milliseconds)

    def test_patience(self) -> None:
        self.assertEqual(self.waited(2.0), 1800)
        self.assertEqual(self.waited(0.0004), 1)
        self.assertEqual(self.waited(0.0), 0)
        self.assertEqual(self.waited(1e12), 0x7FFFFFFF)

    def test_noSuchHeader(self) -> None:
        port, datagram = self.port("roce0"), frame(PERFORMANCE, Method.GET, 7, 0x12, 0, b"")
        path = IBPath(dgid=NOWHERE)
        object.__setattr__(path, "hopLimit", 300)
        self.assertRaises(InvalidRequest, port.send, datagram, path, 1.0)
        self.assertEqual((self.kernel.sent, port._awaited), ([], {}))

    def test_noRoom(self) -> None:
        port, served = self.port("roce0"), []
        for number in range(MOST_AGENTS - len(port._agents)):
            served.append(port.serve(0x30, [Method.GET], oui=number))
        self.assertRaises(ResourceExhausted, port.serve, PERFORMANCE, [Method.GET])
        datagram = frame(PERFORMANCE, Method.GET, 7, 0x12, 0, b"")
        self.assertRaises(ResourceExhausted, port.send, datagram, self.path)
        served[0]()
        port.send(datagram, self.path)
        self.assertEqual(len(self.kernel.sent), 1)

    def test_servedTwice(self) -> None:
        port = self.port("roce1")
        agents = self.kernel.files[port.fileno()].agents
        before = set(agents)
        ends = [port.serve(PERFORMANCE, [method]) for method in (Method.GET, Method.SET)]
        for _ in range(2):
            ends[0]()
        (left,) = (agent for number, agent in agents.items() if number not in before)
        self.assertEqual(left.methods, 1 << Method.SET)
        port.send(frame(PERFORMANCE, Method.GET_RESP, 7, 0x12, 0, b""), self.path)
        self.assertEqual(struct.unpack_from("=I", self.kernel.sent[-1]), (left.number,))
        ends[1]()
        self.assertEqual(set(agents), before)

    def test_bufferShrinks(self) -> None:
        client, server = self.agent("roce0"), self.agent("roce1")
        records = [NodeRecord()] * 2000
        self.serve(server, ADMINISTRATION, lambda request: records, Method.GET_TABLE)
        port = cast("UmadPort", client.port)
        before = len(port._buffer)
        self.assertEqual(len(self.result(client.SubnAdmGetTable(NodeRecord, self.path))), 2000)
        self.assertEqual(len(port._buffer), before)


class GoneTests(UmadCase):
    def test_oldKernel(self) -> None:
        agent = self.agent("roce0")
        path, nobody = IBPath(dgid=NOWHERE), [NOWHERE] * 50
        calls: list[Deferred[Any]] = [
            *(agent.PerformanceGet(PortCounters, path, number) for number in range(20)),
            agent.SubnAdmGetTable(NodeRecord, path),
            agent.SubnAdmGet(NodeRecord, path),
            agent.SubnAdmGetMulti(MultiPathRecord.between(nobody, nobody), path),
        ]
        self.kernel.vanish("umad0")
        self.sysfs.remove("class/infiniband_mad/umad0")
        self.wait(lambda: all(call.called for call in calls))
        for call in (*calls, agent.PerformanceGet(PortCounters, self.path)):
            error = self.failureResultOf(call, DeviceUnavailable).value
            self.assertIn("umad:roce0/1 is gone", str(error))
        port = cast("UmadPort", agent.port)
        self.assertEqual(self.clock.readers, [])
        self.assertEqual(port.fileno(), -1)
        self.assertRaises(DeviceUnavailable, port.send, bytes(256), self.path)
        self.assertEqual(self.clock.getDelayedCalls(), [])

    def test_stillThere(self) -> None:
        agent = self.agent("roce0")
        waiting = agent.PerformanceGet(PortCounters, IBPath(dgid=NOWHERE))
        self.kernel.vanish("umad0")
        self.failureResultOf(agent.PerformanceGet(PortCounters, self.path), InvalidRequest)
        self.assertNoResult(waiting)
        agent.close()
        self.failureResultOf(waiting, DeviceUnavailable)

    def test_registering(self) -> None:
        for act in ("ask", "serve"):
            agent = self.agent("roce0")
            waiting = agent.PerformanceGet(PortCounters, IBPath(dgid=NOWHERE))

            def refuse(*arguments: object) -> int:
                raise OSError(errno.EPIPE, "Broken pipe")

            self.patch(registration, "ioctl", refuse)
            if act == "ask":
                self.failureResultOf(agent.SubnAdmGet(NodeRecord, self.path), DeviceUnavailable)
            else:
                self.assertRaises(DeviceUnavailable, agent.port.serve, PERFORMANCE, [Method.GET])
            self.failureResultOf(waiting, DeviceUnavailable)
            self.patch(registration, "ioctl", self.kernel.ioctl)


class BatchesTests(SynchronousTestCase):
    def setUp(self) -> None:
        self.near, self.far = socket.socketpair(socket.AF_UNIX, socket.SOCK_DGRAM)
        self.addCleanup(self.near.close)
        self.addCleanup(self.far.close)
        self.batches = Batches(self.near.fileno(), 4)

    def test_send(self) -> None:
        for count in (1, 5, MOST):
            sent = [number.to_bytes(4, "big") for number in range(count)]
            self.assertEqual(self.batches.send(sent), count)
            self.assertEqual([self.far.recv(100) for _ in range(count)], sent)

    def test_receive(self) -> None:
        for number in range(MOST + 3):
            self.far.send(number.to_bytes(4, "big"))
        whole = b"".join(number.to_bytes(4, "big") for number in range(MOST + 3))
        self.assertEqual(self.batches.receive(), whole[: 4 * MOST])
        self.assertEqual(self.batches.receive(), whole[4 * MOST :])

    def test_otherLengths(self) -> None:
        for raw in (b"aaaa", b"bbbb", b"cccc"):
            self.far.send(raw)
        self.assertEqual(self.batches.receive(), b"aaaabbbbcccc")
        for raw in (b"dddd", b"e", b"", b"ffff", b"gggghhhh"):
            self.far.send(raw)
        self.assertEqual(self.batches.receive(), b"ddddffffgggg")

    def test_noRoom(self) -> None:
        sent = 0
        with self.assertRaises(BlockingIOError):
            while True:
                sent += self.batches.send([b"full"] * MOST)
        self.far.setblocking(False)
        come = 0
        with self.assertRaises(BlockingIOError):
            while True:
                self.far.recv(100)
                come += 1
        self.assertEqual(come, sent)

    def test_gone(self) -> None:
        self.far.close()
        self.assertRaises(ConnectionRefusedError, self.batches.send, [b"lost"])
