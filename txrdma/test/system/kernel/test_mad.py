"""
Management datagrams between the kernel's ports, by umad and by txrdma's queue pairs.
"""

from __future__ import annotations

import os
import subprocess
import time
from dataclasses import replace
from typing import Any

from zope.interface.verify import verifyObject

from twisted.internet.defer import Deferred

from txrdma.error import DeviceUnavailable, InvalidRequest, ResourceExhausted
from txrdma.iba.path import IBDRPath, IBPath
from txrdma.iba.types import GID, PKey
from txrdma.interfaces import IMADPort
from txrdma.mad.errors import MADError, MADTimeoutError
from txrdma.mad.layouts.attributes import ManagementClass, Method
from txrdma.mad.layouts.messages import ClassPortInfo
from txrdma.mad.layouts.pma import PortCounters
from txrdma.mad.layouts.sa import MultiPathRecord, NodeRecord
from txrdma.mad.layouts.smp import NodeInfo
from txrdma.mad.ports import availableMADPorts, openMADPort
from txrdma.mad.ports.registration import Registry
from txrdma.mad.resolvers import IPPathResolver
from txrdma.test.system.kernel import Box, record, Witness
from txrdma.test.system.kernel.mads import (
    ADMINISTRATION,
    linkLocal,
    MADCase,
    PATIENCE,
    PERFORMANCE,
    run,
    unknown,
)

BOXES = (Box(mtu=4200, timeout=500),)


class UmadTests(MADCase):
    """C{/dev/infiniband/umadN}."""

    witness = Witness("umad port", "kernel MAD layer on rxe", "registration, GMPs both ways, errors")

    def test_port(self) -> None:
        """A port describes itself, and subnet management is refused without queue pair 0."""
        self.assertEqual(
            [n for n in availableMADPorts() if n.startswith("umad")], ["umad:rxe0/1", "umad:rxe1/1"]
        )
        agent = self.open("umad:rxe1/1")
        port = agent.port
        verifyObject(IMADPort, port)
        self.assertEqual(port.endPort.gids[0], self.gids[1])
        self.assertTrue(port.doesRMPP)
        self.assertFalse(port.hasSMI)
        self.failure(agent.SubnGet(NodeInfo, IBDRPath()), InvalidRequest)
        self.assertEqual(openMADPort(self.reactor, "umad").name, "umad:rxe0/1")
        self.assertFalse(openMADPort(self.reactor, "umad:rxe0:rmpp=own").doesRMPP)

    def test_call(self) -> None:
        """A request is answered over the reversed path."""
        client, server = self.open("umad:rxe0"), self.open("umad:rxe1")
        info = ClassPortInfo(baseVersion=1, classVersion=1, capabilityMask=0x1234, responseTimeValue=17)
        served = self.serve(server, PERFORMANCE, lambda request: info)
        self.assertEqual(self.result(client.PerformanceGet(ClassPortInfo, self.pathTo(1))), info)
        (request,) = served.asked
        self.assertEqual((request.path.sgid, request.path.dgid), tuple(self.gids))
        self.assertEqual((request.path.sqpn, request.path.dqpn, request.path.pkey), (1, 1, 0xFFFF))

    def test_oldCall(self) -> None:
        """A request is answered with the ioctl of older kernels."""
        self.patch(Registry, "_register2", unknown)
        self.test_call()
        port = self.open("umad:rxe1").port
        port.serve(ADMINISTRATION, [Method.GET_TABLE, Method.GET])
        other = self.open("umad:rxe1").port
        self.assertRaises(ResourceExhausted, other.serve, ADMINISTRATION, [Method.GET_TABLE])
        other.serve(ADMINISTRATION, [Method.SET])

    def test_many(self) -> None:
        """Hundreds of concurrent requests each get their own answer."""
        client, server = self.open("umad:rxe0"), self.open("umad:rxe1")
        self.serve(server, PERFORMANCE, lambda r: PortCounters(portXmitData=r.header.attributeModifier))
        count, began = 300, time.monotonic()
        calls = [
            client.PerformanceGet(PortCounters, self.pathTo(1), index, timeoutSeconds=PATIENCE)
            for index in range(count)
        ]
        self.runUntil(lambda: all(call.called for call in calls))
        record("requests per second", round(count / (time.monotonic() - began)))
        self.assertEqual([self.successResultOf(call).portXmitData for call in calls], list(range(count)))

    def test_unserved(self) -> None:
        """The peer's kernel answers requests of a class that is not registered."""
        error = self.failure(self.open("umad:rxe0").PerformanceGet(PortCounters, self.pathTo(1)), MADError)
        self.assertEqual(error.status, 0x000C)

    def test_taken(self) -> None:
        """A method of a class has one owner and is free after its end; other classes are refused."""
        self.assertRaises(InvalidRequest, self.open("umad:rxe1").port.serve, 1, [Method.GET])
        first, second = self.open("umad:rxe1"), self.open("umad:rxe1")
        end = first.port.serve(PERFORMANCE, [Method.GET])
        self.assertRaises(ResourceExhausted, second.port.serve, PERFORMANCE, [Method.GET])
        end()
        second.port.serve(PERFORMANCE, [Method.GET])()
        first.port.serve(PERFORMANCE, [Method.GET])
        first.close()
        second.port.serve(PERFORMANCE, [Method.GET])

    def test_kept(self) -> None:
        """Communication management is reserved for the kernel."""
        port = self.open("umad:rxe1").port
        self.assertRaises(
            (InvalidRequest, ResourceExhausted), port.serve, ManagementClass.COMM_MGT, [Method.SEND]
        )

    def test_timeout(self) -> None:
        """The kernel reports a timeout; the request is retried, and fails in the end."""
        client = self.open("umad:rxe0", timeoutSeconds=2.0, retries=1)
        output: list[str] = []
        undeliverable = client.undeliverable

        def receive(datagram: bytes, reason: str) -> None:
            output.append(reason)
            undeliverable(datagram, reason)

        self.patch(client, "undeliverable", receive)
        server = self.open("umad:rxe1")
        self.serve(server, PERFORMANCE, lambda request: None)
        began = time.monotonic()
        self.failure(client.PerformanceGet(PortCounters, self.pathTo(1)), MADTimeoutError)
        record("seconds until two attempts of 2 failed", round(time.monotonic() - began, 2))
        self.assertEqual(output, [os.strerror(110)] * 2)

    def test_unreachable(self) -> None:
        """A request without a route is not sent, and fails with the reason."""
        path = replace(self.pathTo(1), sgid=None, dgid=GID.fromString("2001:db8::1"))
        error = self.failure(self.open("umad:rxe0").PerformanceGet(PortCounters, path), InvalidRequest)
        self.assertIn("the kernel refuses the datagram", str(error))
        record("a destination without a route", str(error).rpartition(": ")[2])

    def test_recovers(self) -> None:
        """A request succeeds if the server answers the second try."""
        client, server = self.open("umad:rxe0", timeoutSeconds=1.0), self.open("umad:rxe1")
        served = self.serve(
            server, PERFORMANCE, lambda request: PortCounters() if len(served.asked) > 1 else None
        )
        self.assertEqual(self.result(client.PerformanceGet(PortCounters, self.pathTo(1))), PortCounters())
        self.assertEqual(len(served.asked), 2)
        self.assertEqual(
            served.asked[0].header.transactionID & 0xFFFFFFFF,
            served.asked[1].header.transactionID & 0xFFFFFFFF,
        )


class VerbsPortTests(MADCase):
    """txrdma's queue pairs, and the kernel's queue pair 1."""

    witness = Witness("vmad port", "kernel MAD layer on rxe", "GMPs by a UD queue pair, both roles")

    def test_asksTheKernel(self) -> None:
        """A request from txrdma's queue pair to queue pair 1 is answered by the registered agent."""
        client, server = self.open("vmad:pyverbs:rxe0"), self.open("umad:rxe1")
        served = self.serve(server, PERFORMANCE, lambda request: PortCounters(portRcvData=9))
        answer = self.result(client.PerformanceGet(PortCounters, self.pathTo(1)))
        self.assertEqual(answer.portRcvData, 9)
        self.assertGreater(served.asked[0].path.sqpn, 1)

    def test_kernelAsks(self) -> None:
        """A request from queue pair 1 reaches txrdma's queue pair, and the kernel accepts the answer."""
        client, server = self.open("umad:rxe0"), self.open("vmad:pyverbs:rxe1")
        served = self.serve(server, PERFORMANCE, lambda request: PortCounters(portRcvData=9))
        qpn = server.port.qpn  # type: ignore[attr-defined]  # of this kind of port
        answer = self.result(client.PerformanceGet(PortCounters, self.pathTo(1, qpn)))
        self.assertEqual(answer.portRcvData, 9)
        self.assertEqual(served.asked[0].path.sqpn, 1)
        self.assertEqual((served.asked[0].path.sgid, served.asked[0].path.dgid), tuple(self.gids))

    def test_overIPv4(self) -> None:
        """txrdma's queue pairs can use IPv4 GIDs."""
        client, server = self.open("vmad:pyverbs:rxe0"), self.open("vmad:pyverbs:rxe1")
        self.serve(server, PERFORMANCE, lambda request: PortCounters(portRcvData=9))
        qpn = server.port.qpn  # type: ignore[attr-defined]  # of this kind of port
        path = IBPath(dgid=GID.fromIP("10.77.0.2"), dqpn=qpn)
        self.assertEqual(self.result(client.PerformanceGet(PortCounters, path)).portRcvData, 9)

    def test_resolvedAddress(self) -> None:
        """The path resolved for an IP address of the other device works."""
        client, server = self.open("vmad:pyverbs:rxe0"), self.open("vmad:pyverbs:rxe1")
        served = self.serve(server, PERFORMANCE, lambda request: PortCounters(portRcvData=9))
        resolver = IPPathResolver(client.port.refresh)
        for address, source in (("10.77.0.2", GID.fromIP("10.77.0.1")), (str(self.gids[1].ip), self.gids[0])):
            path = self.result(resolver.resolve(address))
            self.assertEqual((path.sgid, path.dgid), (source, GID.fromIP(address)))
            path = replace(path, dqpn=server.port.qpn)  # type: ignore[attr-defined]  # of this kind of port
            self.assertEqual(self.result(client.PerformanceGet(PortCounters, path)).portRcvData, 9)
            came = served.asked[-1].path
            self.assertEqual((came.sgid, came.dgid), (source, path.dgid))
        record("calls along paths that IP addresses were resolved to", len(served.asked))

    def test_resolvedForTheKernel(self) -> None:
        """A path resolved for an IPv6 address with a scope works with the kernel's ports."""
        client, server = self.open("umad:rxe0"), self.open("umad:rxe1")
        self.serve(server, PERFORMANCE, lambda request: PortCounters(portRcvData=9))
        path = self.result(IPPathResolver(client.port.endPort).resolve(f"{self.gids[1].ip}%v0"))
        self.assertEqual((path.sgid, path.dgid), tuple(self.gids))
        self.assertEqual(self.result(client.PerformanceGet(PortCounters, path)).portRcvData, 9)

    def test_two(self) -> None:
        """Two queue pairs of one port receive only their own answers and requests."""
        agents = [self.open("vmad:pyverbs:rxe0"), self.open("vmad:pyverbs:rxe0")]
        server = self.open("umad:rxe1")
        self.serve(server, PERFORMANCE, lambda r: PortCounters(portXmitData=r.header.attributeModifier))
        count = 20
        calls = [agents[n % 2].PerformanceGet(PortCounters, self.pathTo(1), n) for n in range(count)]
        self.assertEqual([self.result(call).portXmitData for call in calls], list(range(count)))
        qpns = [agent.port.qpn for agent in agents]  # type: ignore[attr-defined]  # of this kind of port
        self.assertEqual(len(set(qpns)), 2)
        for number, agent in enumerate(agents):
            self.serve(agent, PERFORMANCE, lambda r, n=number: PortCounters(portRcvData=n))  # type: ignore[misc]  # of this turn
        asker = self.open("umad:rxe1")
        answers = [self.result(asker.PerformanceGet(PortCounters, self.pathTo(0, qpn))) for qpn in qpns]
        self.assertEqual([answer.portRcvData for answer in answers], [0, 1])

    def test_otherPartition(self) -> None:
        """Neither kind of port sends to a partition that it does not have."""
        path = replace(self.pathTo(1), pkey=PKey(0x8001))
        for description in ("umad:rxe0", "vmad:pyverbs:rxe0"):
            self.failure(self.open(description).PerformanceGet(PortCounters, path), InvalidRequest)

    def test_wrongQKey(self) -> None:
        """The kernel's queue pair 1 drops datagrams with another Q_Key than its own."""
        client, server = self.open("vmad:pyverbs:rxe0", timeoutSeconds=2.0, retries=0), self.open("umad:rxe1")
        self.serve(server, PERFORMANCE, lambda request: PortCounters())
        path = self.pathTo(1)
        self.assertEqual(self.result(client.PerformanceGet(PortCounters, path)), PortCounters())
        wrong = replace(path, qkey=0x11111111)
        self.failure(client.PerformanceGet(PortCounters, wrong), MADTimeoutError)


class RemovalTests(MADCase):
    """The device is deleted during use."""

    witness = Witness("umad and vmad ports", "rxe", "device deleted under them")

    def vanish(self, description: str) -> None:
        methods = Method.GET_TABLE, Method.GET_MULTI
        self.serve(self.open("umad:rxe0"), PERFORMANCE, lambda request: None)
        self.serve(self.open("umad:rxe0"), ADMINISTRATION, lambda request: None, *methods)
        agent, path = self.open(description, timeoutSeconds=PATIENCE, retries=0), self.pathTo(0)
        question = MultiPathRecord.between([GID(bytes(16))] * 50, [GID(bytes(16))] * 50)
        waiting: list[Deferred[Any]] = [
            *(agent.PerformanceGet(PortCounters, path, number) for number in range(100)),
            agent.SubnAdmGetTable(NodeRecord, path),
            agent.SubnAdmGetMulti(question, path),
        ]
        deleting = subprocess.Popen(["rdma", "link", "del", "rxe1"])

        def restore() -> None:
            agent.close()
            self.assertEqual(deleting.wait(60), 0)
            run("rdma", "link", "add", "rxe1", "type", "rxe", "netdev", "v1")
            linkLocal("rxe1")

        self.addCleanup(restore)
        for call in waiting:
            self.assertIn("gone", str(self.failure(call, DeviceUnavailable)))
        self.failure(agent.PerformanceGet(PortCounters, self.pathTo(0)), DeviceUnavailable)

    def test_umad(self) -> None:
        """Calls fail when the device is deleted, and later ones as well, by umad."""
        self.vanish("umad:rxe1")

    def test_vmad(self) -> None:
        """Calls fail when the device is deleted, and later ones as well, by a queue pair."""
        self.vanish("vmad:pyverbs:rxe1")

    def test_gone(self) -> None:
        """A missing device is reported as unavailable."""
        self.assertRaises(DeviceUnavailable, openMADPort, self.reactor, "umad:rxe9")
