"""
Management datagrams between the kernel's ports: umad, and queue pairs of our own, with the kernel as judge.

Ways here are by IPv6 GIDs: over IPv4 ones the kernel matches no answer to its request.
"""

from __future__ import annotations

import errno
import os
import subprocess
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from zope.interface import implementer
from zope.interface.verify import verifyObject

from twisted.internet.defer import Deferred
from twisted.internet.epollreactor import EPollReactor
from twisted.trial.unittest import SynchronousTestCase

from txrdma.error import DeviceUnavailable, InvalidRequest, ResourceExhausted
from txrdma.iba.path import IBDRPath, IBPath
from txrdma.iba.types import GID, LID, QPN
from txrdma.interfaces import IMADHandler, IMADPort
from txrdma.mad.agent import MADAgent
from txrdma.mad.attributes import ManagementClass, Method
from txrdma.mad.errors import MADError, MADRefusal, MADTimeoutError
from txrdma.mad.messages import ClassPortInfo, MADRequest
from txrdma.mad.pma import PortCounters
from txrdma.mad.ports import availableMADPorts, openMADPort
from txrdma.mad.registration import Registry
from txrdma.mad.sa import NodeRecord
from txrdma.mad.serving import MADServer
from txrdma.mad.smp import NodeDescription, NodeInfo
from txrdma.test.kernel import Box, OUTSIDE, record, Witness

BOXES = (Box(mtu=4200, timeout=500),)

PERFORMANCE = ManagementClass.PERFORMANCE
ADMINISTRATION = ManagementClass.SUBN_ADM
PATIENCE = 60.0
"""Seconds; the guest is slow."""

RECORDS = 1200


def run(*words: str) -> None:
    """A program of the system, which succeeds."""
    subprocess.run(words, check=True, capture_output=True, text=True)


def linkLocal(device: str) -> GID:
    """The GID that it has by its MAC address; the kernel makes it in its own time."""
    end = time.monotonic() + PATIENCE
    while time.monotonic() < end:
        try:
            gid = GID.fromString(Path(f"/sys/class/infiniband/{device}/ports/1/gids/0").read_text().strip())
        except OSError:
            gid = GID(bytes(16))
        if gid.isLinkLocal and not _isTentative(device):
            return gid
        time.sleep(0.1)
    raise AssertionError(f"{device} gets no link-local GID")


def _isTentative(device: str) -> bool:
    netdev = f"v{device[-1]}"
    lines = Path("/proc/net/if_inet6").read_text().splitlines()
    return any(line.split()[5] == netdev and int(line.split()[4], 16) & 0x40 for line in lines)


def _unknown(*args: object) -> int:
    raise OSError(errno.ENOTTY, "Inappropriate ioctl for device")


@implementer(IMADHandler)
class Answers:
    """Answers by what the test says."""

    def __init__(self, how: Callable[[MADRequest], object]) -> None:
        self.how = how
        self.asked: list[MADRequest] = []

    def handle(self, request: MADRequest) -> object:
        self.asked.append(request)
        return self.how(request)


class MADCase(SynchronousTestCase):
    """Ports of the kernel's two devices."""

    def setUp(self) -> None:
        self.reactor: Any = EPollReactor()
        self.gids = [linkLocal("rxe0"), linkLocal("rxe1")]

    def open(self, description: str, **more: Any) -> MADAgent:
        """An agent on a port of its own."""
        agent = MADAgent(self.reactor, openMADPort(self.reactor, description), **more)
        self.addCleanup(agent.close)
        return agent

    def pathTo(self, number: int, qpn: int = 1) -> IBPath:
        """To the queue pair of that device."""
        return IBPath(sgid=self.gids[1 - number], dgid=self.gids[number], dqpn=QPN(qpn))

    def serve(
        self,
        agent: MADAgent,
        managementClass: ManagementClass,
        how: Callable[[MADRequest], object],
        *methods: Method,
    ) -> Answers:
        """Answer requests that come to that agent's port."""
        answers = Answers(how)
        MADServer(agent).handle(managementClass, answers, methods or (Method.GET, Method.SET))
        return answers

    def runUntil(self, condition: Callable[[], bool], seconds: float = PATIENCE) -> None:
        """Turn the reactor until then."""
        deadline = time.monotonic() + seconds
        while not condition():
            if time.monotonic() > deadline:
                self.fail(f"{condition} does not hold after {seconds} seconds")
            self.reactor.iterate(0.001)

    def result(self, answer: Deferred[Any], seconds: float = PATIENCE) -> Any:
        """What comes of it."""
        self.runUntil(lambda: answer.called, seconds)
        return self.successResultOf(answer)

    def failure(self, answer: Deferred[Any], kind: type[Exception]) -> Any:
        """Why it fails."""
        self.runUntil(lambda: answer.called)
        return self.failureResultOf(answer, kind).value


class UmadTests(MADCase):
    """C{/dev/infiniband/umadN}."""

    skip = OUTSIDE
    witness = Witness("umad port", "kernel MAD layer on rxe", "registration, GMPs both ways, errors")

    def test_port(self) -> None:
        """A port says what it is; subnet management does not pass where there is no queue pair 0."""
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
        """A request is served, and the way it came leads back."""
        client, server = self.open("umad:rxe0"), self.open("umad:rxe1")
        info = ClassPortInfo(baseVersion=1, classVersion=1, capabilityMask=0x1234, responseTimeValue=17)
        served = self.serve(server, PERFORMANCE, lambda request: info)
        self.assertEqual(self.result(client.PerformanceGet(ClassPortInfo, self.pathTo(1))), info)
        (request,) = served.asked
        self.assertEqual((request.path.sgid, request.path.dgid), tuple(self.gids))
        self.assertEqual((request.path.sqpn, request.path.dqpn, request.path.pkey), (1, 1, 0xFFFF))

    def test_oldCall(self) -> None:
        """The same by the call of older kernels."""
        self.patch(Registry, "_register2", _unknown)
        self.test_call()
        port = self.open("umad:rxe1").port
        port.serve(ADMINISTRATION, [Method.GET_TABLE, Method.GET])
        other = self.open("umad:rxe1").port
        self.assertRaises(ResourceExhausted, other.serve, ADMINISTRATION, [Method.GET_TABLE])
        other.serve(ADMINISTRATION, [Method.SET])

    def test_many(self) -> None:
        """Hundreds at once, each with its own answer."""
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
        """What nobody serves is answered by the peer's kernel."""
        error = self.failure(self.open("umad:rxe0").PerformanceGet(PortCounters, self.pathTo(1)), MADError)
        self.assertEqual(error.status, 0x000C)

    def test_taken(self) -> None:
        """Methods of a class belong to one, and are free again after its end; there are no other classes."""
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
        """Communication management is the kernel's own."""
        port = self.open("umad:rxe1").port
        self.assertRaises(
            (InvalidRequest, ResourceExhausted), port.serve, ManagementClass.COMM_MGT, [Method.SEND]
        )

    def test_timeout(self) -> None:
        """Where nobody is the kernel says so after a while; then it is asked again, in the end it fails."""
        client = self.open("umad:rxe0", timeoutSeconds=2.0, retries=1)
        said: list[str] = []
        undeliverable = client.undeliverable

        def hear(datagram: bytes, reason: str) -> None:
            said.append(reason)
            undeliverable(datagram, reason)

        self.patch(client, "undeliverable", hear)
        server = self.open("umad:rxe1")
        self.serve(server, PERFORMANCE, lambda request: None)
        began = time.monotonic()
        self.failure(client.PerformanceGet(PortCounters, self.pathTo(1)), MADTimeoutError)
        record("seconds until two attempts of 2 failed", round(time.monotonic() - began, 2))
        self.assertEqual(said, [os.strerror(110)] * 2)

    def test_recovers(self) -> None:
        """A server that answers only the second time is heard."""
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


class RMPPCase(MADCase):
    """Tables from one end to the other, by the end's port strings."""

    client = server = ""

    def records(self, count: int) -> list[NodeRecord]:
        """Each of them different."""
        return [
            NodeRecord(
                lid=LID(number % 0xBFFF + 1),
                nodeDescription=NodeDescription(nodeString=f"host {number}".encode().ljust(64, b"\0")),
            )
            for number in range(count)
        ]

    def fetch(self, count: int, **more: Any) -> None:
        """They come as they are."""
        client, server = self.open(self.client), self.open(self.server)
        records = self.records(count)
        self.serve(server, ADMINISTRATION, lambda request: records, Method.GET_TABLE)
        qpn = getattr(server.port, "qpn", 1)
        began = time.monotonic()
        found: Sequence[NodeRecord] = self.result(
            client.SubnAdmGetTable(NodeRecord, self.pathTo(1, qpn), timeoutSeconds=PATIENCE, **more)
        )
        record(f"seconds for {count} records", round(time.monotonic() - began, 2))
        self.assertEqual([r.encode() for r in found], [r.encode() for r in records])


class KernelToKernelTests(RMPPCase):
    """Both by the kernel."""

    skip = OUTSIDE
    witness = Witness("umad port", "kernel MAD layer on rxe", "RMPP by the kernel, both ends")
    client, server = "umad:rxe0", "umad:rxe1"

    def test_empty(self) -> None:
        """An empty table."""
        self.fetch(0)

    def test_one(self) -> None:
        """A table of one record."""
        self.fetch(1)

    def test_long(self) -> None:
        """One that is longer than the first buffer."""
        self.fetch(RECORDS)

    def test_refused(self) -> None:
        """An error instead of a table."""
        client = self.open(self.client)

        def refuse(request: MADRequest) -> object:
            raise MADRefusal(0x0300)

        self.serve(self.open(self.server), ADMINISTRATION, refuse, Method.GET_TABLE)
        path = self.pathTo(1)
        error = self.failure(client.SubnAdmGetTable(NodeRecord, path, timeoutSeconds=PATIENCE), MADError)
        self.assertEqual(error.status, 0x0300)


class WeFetchTests(KernelToKernelTests):
    """The kernel sends, we join, by a queue pair of ours."""

    witness = Witness("own RMPP, vmad", "kernel MAD layer on rxe", "RMPP: the kernel sends, we receive")
    client, server = "vmad:pyverbs:rxe0", "umad:rxe1"


class WeFetchByUmadTests(KernelToKernelTests):
    """The kernel sends, we join what umad brings."""

    witness = Witness("own RMPP, umad", "kernel MAD layer on rxe", "RMPP: the kernel sends, we receive")
    client, server = "umad:rxe0:rmpp=own", "umad:rxe1"


class WeServeTests(RMPPCase):
    """We cut, by a queue pair of ours; the kernel joins."""

    skip = OUTSIDE
    witness = Witness("own RMPP, vmad", "kernel MAD layer on rxe", "RMPP: we send, the kernel receives")
    client, server = "umad:rxe0", "vmad:pyverbs:rxe1"

    def test_empty(self) -> None:
        """An empty table."""
        self.fetch(0)

    def test_one(self) -> None:
        """A table of one record."""
        self.fetch(1)

    def test_long(self) -> None:
        """One that is longer than the first buffer."""
        self.fetch(RECORDS)


class WeServeByUmadTests(WeServeTests):
    """We cut what umad takes; the kernel joins."""

    witness = Witness("own RMPP, umad", "kernel MAD layer on rxe", "RMPP: we send, the kernel receives")
    client, server = "umad:rxe0", "umad:rxe1:rmpp=own"


class LossTests(RMPPCase):
    """The same on a wire that loses."""

    skip = OUTSIDE
    witness = Witness("own RMPP, vmad", "kernel MAD layer on rxe", "RMPP both ways, 3 % loss")

    def setUp(self) -> None:
        super().setUp()
        for netdev in ("v0", "v1"):
            run("tc", "qdisc", "add", "dev", netdev, "root", "netem", "loss", "3%")
            self.addCleanup(run, "tc", "qdisc", "del", "dev", netdev, "root")

    def test_weFetch(self) -> None:
        """The kernel sends."""
        self.client, self.server = "vmad:pyverbs:rxe0", "umad:rxe1"
        self.fetch(200)

    def test_weServe(self) -> None:
        """We send."""
        self.client, self.server = "umad:rxe0", "vmad:pyverbs:rxe1"
        self.fetch(200)


class VerbsPortTests(MADCase):
    """Queue pairs of our own, and queue pair 1 of the kernel."""

    skip = OUTSIDE
    witness = Witness("vmad port", "kernel MAD layer on rxe", "GMPs by a UD queue pair, both roles")

    def test_asksTheKernel(self) -> None:
        """A request from our queue pair to queue pair 1 is answered, by whom the kernel has given it to."""
        client, server = self.open("vmad:pyverbs:rxe0"), self.open("umad:rxe1")
        served = self.serve(server, PERFORMANCE, lambda request: PortCounters(portRcvData=9))
        answer = self.result(client.PerformanceGet(PortCounters, self.pathTo(1)))
        self.assertEqual(answer.portRcvData, 9)
        self.assertGreater(served.asked[0].path.sqpn, 1)

    def test_kernelAsks(self) -> None:
        """A request from queue pair 1 comes to our queue pair, and the kernel takes our answer."""
        client, server = self.open("umad:rxe0"), self.open("vmad:pyverbs:rxe1")
        served = self.serve(server, PERFORMANCE, lambda request: PortCounters(portRcvData=9))
        qpn = server.port.qpn  # type: ignore[attr-defined]  # of this kind of port
        answer = self.result(client.PerformanceGet(PortCounters, self.pathTo(1, qpn)))
        self.assertEqual(answer.portRcvData, 9)
        self.assertEqual(served.asked[0].path.sqpn, 1)
        self.assertEqual((served.asked[0].path.sgid, served.asked[0].path.dgid), tuple(self.gids))

    def test_overIPv4(self) -> None:
        """Between our own queue pairs IPv4 GIDs do."""
        client, server = self.open("vmad:pyverbs:rxe0"), self.open("vmad:pyverbs:rxe1")
        self.serve(server, PERFORMANCE, lambda request: PortCounters(portRcvData=9))
        qpn = server.port.qpn  # type: ignore[attr-defined]  # of this kind of port
        path = IBPath(dgid=GID.fromIP("10.77.0.2"), dqpn=qpn)
        self.assertEqual(self.result(client.PerformanceGet(PortCounters, path)).portRcvData, 9)


class RemovalTests(MADCase):
    """The device is deleted while it is used."""

    skip = OUTSIDE
    witness = Witness("umad and vmad ports", "rxe", "device deleted under them")

    def vanish(self, description: str) -> None:
        self.serve(self.open("umad:rxe0"), PERFORMANCE, lambda request: None)
        agent = self.open(description)
        waiting = agent.PerformanceGet(PortCounters, self.pathTo(0), timeoutSeconds=PATIENCE, retries=0)
        deleting = subprocess.Popen(["rdma", "link", "del", "rxe1"])

        def restore() -> None:
            agent.close()
            self.assertEqual(deleting.wait(60), 0)
            run("rdma", "link", "add", "rxe1", "type", "rxe", "netdev", "v1")
            linkLocal("rxe1")

        self.addCleanup(restore)
        self.failure(waiting, DeviceUnavailable)
        self.failure(agent.PerformanceGet(PortCounters, self.pathTo(0)), DeviceUnavailable)

    def test_umad(self) -> None:
        """Calls end, and whoever asks later hears it, too."""
        self.vanish("umad:rxe1")

    def test_vmad(self) -> None:
        """The same by a queue pair."""
        self.vanish("vmad:pyverbs:rxe1")

    def test_gone(self) -> None:
        """A device that is not there is told to be unavailable."""
        self.assertRaises(DeviceUnavailable, openMADPort, self.reactor, "umad:rxe9")
