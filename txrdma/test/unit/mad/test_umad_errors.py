"""
Management ports of the kernel when something is amiss, and the numbers by which it is called.
"""

from __future__ import annotations

import errno
import struct
from typing import Any, cast

from twisted.internet.defer import Deferred

from txrdma.error import DeviceUnavailable, InvalidRequest, ResourceExhausted
from txrdma.iba.path import IBPath
from txrdma.iba.types import GID
from txrdma.mad.agent import MADAgent
from txrdma.mad.core.frames import frame
from txrdma.mad.layouts.attributes import Method
from txrdma.mad.layouts.pma import PortCounters
from txrdma.mad.layouts.sa import MultiPathRecord, NodeRecord
from txrdma.mad.ports import registration
from txrdma.mad.ports.umad import UmadPort
from txrdma.test.support.mad.fakekernel import MOST_AGENTS
from txrdma.test.unit.mad.test_umad import ADMINISTRATION, PERFORMANCE, UmadCase

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
        self.assertEqual((self.kernel.sent, port._asked), ([], {}))

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
    def calls(self, agent: MADAgent) -> list[Deferred[Any]]:
        path, nobody = IBPath(dgid=NOWHERE), [NOWHERE] * 50
        return [
            *(agent.PerformanceGet(PortCounters, path, number) for number in range(20)),
            agent.SubnAdmGetTable(NodeRecord, path),
            agent.SubnAdmGet(NodeRecord, path),
            agent.SubnAdmGetMulti(MultiPathRecord.between(nobody, nobody), path),
        ]

    def gone(self, agent: MADAgent, calls: list[Deferred[Any]]) -> None:
        self.wait(lambda: all(call.called for call in calls))
        for call in (*calls, agent.PerformanceGet(PortCounters, self.path)):
            error = self.failureResultOf(call, DeviceUnavailable).value
            self.assertIn("umad:roce0/1 is gone", str(error))
        port = cast("UmadPort", agent.port)
        self.assertEqual(self.clock.readers, [])
        self.assertEqual(port.fileno(), -1)
        self.assertRaises(DeviceUnavailable, port.send, bytes(256), self.path)
        self.assertEqual(self.clock.getDelayedCalls(), [])

    def test_reading(self) -> None:
        for rmpp in (True, False):
            agent = self.agent("roce0", rmpp)
            calls = self.calls(agent)
            self.kernel.isGone = True
            self.gone(agent, calls)
            self.kernel.isGone = False

    def test_oldKernel(self) -> None:
        agent = self.agent("roce0")
        calls = self.calls(agent)
        self.kernel.vanish("umad0")
        self.sysfs.remove("class/infiniband_mad/umad0")
        self.gone(agent, calls)

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
