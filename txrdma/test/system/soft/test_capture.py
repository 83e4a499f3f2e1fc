"""
What is recorded of shared memory is what RoCE v2 would have sent, and tshark has nothing to say against it.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from typing import Any, NamedTuple

from twisted.internet.epollreactor import EPollReactor
from twisted.trial.unittest import SkipTest, SynchronousTestCase

from txrdma.iba.headers import (
    AETH,
    AETHKind,
    AtomicAckETH,
    AtomicETH,
    ImmDt,
    NAKCode,
    Opcode,
    RETH,
)
from txrdma.iba.pcap import Datagram, PcapReader
from txrdma.iba.roce import RoCEPacket
from txrdma.iba.types import QPN, RKey
from txrdma.iba.verbs import Operation, Status
from txrdma.soft.device import openSoftDevice
from txrdma.test.support.soft.pairs import End
from txrdma.testing.reactors import RealTime

ANSWERS = {
    Opcode.RC_ACKNOWLEDGE,
    Opcode.RC_RDMA_READ_RESPONSE_FIRST,
    Opcode.RC_RDMA_READ_RESPONSE_MIDDLE,
    Opcode.RC_RDMA_READ_RESPONSE_LAST,
    Opcode.RC_RDMA_READ_RESPONSE_ONLY,
    Opcode.RC_ATOMIC_ACKNOWLEDGE,
}


class Asked(NamedTuple):
    """A request's packet, without what is new each time."""

    opcode: Opcode
    psn: int
    solicited: bool
    offset: int | None
    length: int | None
    immediate: int | None
    numbers: tuple[int, int] | None
    payload: bytes


class Recorded(RealTime, SynchronousTestCase):
    """Two devices in this process, each of which records."""

    slowness = 5.0

    def setUp(self) -> None:
        self.reactor = EPollReactor()

    def open(self, route: str, names: tuple[str | None, str | None]) -> tuple[End, End]:
        """Two ends, each with a file; None for an end that does not record."""
        devices = [openSoftDevice(self.reactor, port=0, route=route, pcap=name) for name in names]
        for device in devices:
            self.addCleanup(device.close)
        one, other = (End(device) for device in devices)
        one.join(other)
        other.join(one)
        self.assertEqual(one.qp.route, route)
        return one, other

    def talk(self, one: End, other: End) -> list[Status]:
        """All kinds of requests, one after the other, both ways."""
        statuses: list[Status] = []
        for end in (one, other):
            end.region.view[:8192] = bytes(index % 251 for index in range(8192))
        requests: list[Callable[[End, End], Any]] = [
            lambda here, there: here.post(1, Operation.SEND, inline=[b"hello"], solicited=True),
            lambda here, there: here.post(1, Operation.SEND, [here.segment(0, 3000)]),
            lambda here, there: here.post(
                1, Operation.SEND_WITH_IMMEDIATE, [here.segment(0, 2500)], immediate=7
            ),
            lambda here, there: here.post(1, Operation.SEND),
            lambda here, there: here.write(there, 1, 0, 2049, 9000),
            lambda here, there: here.write(there, 1, 100, 1, 9000),
            lambda here, there: here.post(
                1,
                Operation.RDMA_WRITE_WITH_IMMEDIATE,
                [here.segment(5, 1024)],
                remoteAddress=there.region.address + 9000,
                rkey=there.region.rkey,
                immediate=0xFFFFFFFF,
            ),
            lambda here, there: here.post(
                1,
                Operation.RDMA_READ,
                [here.segment(20000, 2100)],
                remoteAddress=there.region.address + 100,
                rkey=there.region.rkey,
            ),
            lambda here, there: here.post(
                1,
                Operation.FETCH_AND_ADD,
                [here.segment(30000, 8)],
                remoteAddress=there.region.address + 8184,
                rkey=there.region.rkey,
                operand=-3,
            ),
            lambda here, there: here.post(
                1,
                Operation.COMPARE_AND_SWAP,
                [here.segment(30008, 8)],
                remoteAddress=there.region.address + 8184,
                rkey=there.region.rkey,
                operand=4,
                compare=5,
            ),
            lambda here, there: here.post(1, Operation.SEND, inline=[b"that was all"]),
        ]
        for here, there in ((one, other), (other, one)):
            for request in requests:
                there.receive(2, 100000, 50000)
                request(here, there)

                def done(here: End = here, there: End = there) -> bool:
                    there.poll()
                    found = here.poll()
                    statuses.extend(completion.status for completion in found)
                    return bool(found)

                self.runUntil(done)
        for end in (one, other):
            end.poll()
        return statuses

    def read(self, name: str) -> list[RoCEPacket]:
        """All packets of a file, each with the right ICRC."""
        packets = []
        with open(name, "rb") as file:
            for record in PcapReader(file):
                datagram = Datagram.decode(record.data)
                assert datagram is not None
                packets.append(RoCEPacket.decode(datagram.payload))
        return packets

    def asked(self, packets: list[RoCEPacket], one: End, other: End) -> dict[str, list[Asked]]:
        """The requests of each side, each once: on a busy machine some are sent again."""
        found: dict[str, list[Asked]] = {"one": [], "other": []}
        seen = set()
        for packet in packets:
            if packet.bth.opcode in ANSWERS:
                continue
            there, side = (other, "one") if packet.bth.destination == other.qp.number else (one, "other")
            if (side, packet.bth.psn) in seen:
                continue
            seen.add((side, packet.bth.psn))
            reth, immediate = packet.get(RETH), packet.get(ImmDt)
            atomic = packet.get(AtomicETH)
            found[side].append(
                Asked(
                    packet.bth.opcode,
                    packet.bth.psn,
                    packet.bth.solicited,
                    None if reth is None else reth.address - there.region.address,
                    None if reth is None else reth.length,
                    None if immediate is None else immediate.immediate,
                    None if atomic is None else (atomic.swap, atomic.compare),
                    packet.payload,
                )
            )
        return found

    def answers(self, packets: list[RoCEPacket], to: QPN) -> list[RoCEPacket]:
        return [each for each in packets if each.bth.opcode in ANSWERS and each.bth.destination == to]


class CaptureTests(Recorded):
    """Against what really goes by UDP, and against tshark."""

    def test_asRoCE(self) -> None:
        """Either side's file has the same requests as a recording of RoCE v2."""
        found = {}
        for route in ("rocev2", "shared-memory"):
            names = self.mktemp(), self.mktemp()
            one, other = self.open(route, names)
            self.assertEqual(set(self.talk(one, other)), {Status.SUCCESS})
            for side, name in zip(("one", "other"), names, strict=True):
                packets = self.read(name)
                found[route, side] = self.asked(packets, one, other)
                self.assertEqual(self.acknowledgedAll(packets, one, other), [True, True])
                for end in (one, other):
                    results = {  # on a busy machine one that was asked again is answered again
                        each.bth.psn: each.get(AtomicAckETH)
                        for each in self.answers(packets, end.qp.number)
                        if each.bth.opcode is Opcode.RC_ATOMIC_ACKNOWLEDGE
                    }
                    before = int.from_bytes(bytes(index % 251 for index in range(8184, 8192)), sys.byteorder)
                    self.assertEqual(
                        [*results.values()],
                        [AtomicAckETH(original=before), AtomicAckETH(original=before - 3)],
                    )
        expected = found["rocev2", "one"]
        self.assertEqual([len(each) for each in expected.values()], [17, 17])
        for key, requests in found.items():
            self.assertEqual(requests, expected, key)

    def acknowledgedAll(self, packets: list[RoCEPacket], one: End, other: End) -> list[bool]:
        """Whether the last request of each side is answered."""

        def last(found: list[RoCEPacket]) -> int:
            return max(each.bth.psn - 0xFFFFF0 & 0xFFFFFF for each in found)

        asked = [each for each in packets if each.bth.opcode not in ANSWERS]
        return [
            last(self.answers(packets, here.qp.number))
            == last([each for each in asked if each.bth.destination == there.qp.number])
            for here, there in ((one, other), (other, one))
        ]

    def test_oneRecords(self) -> None:
        """A device that records hears of the writes of one that does not; the other need not know how."""
        name = self.mktemp()
        one, other = self.open("shared-memory", (None, name))
        self.assertEqual(set(self.talk(one, other)), {Status.SUCCESS})
        found = self.asked(self.read(name), one, other)
        self.assertEqual(found["one"], found["other"])
        self.assertIn(Opcode.RC_RDMA_WRITE_MIDDLE, [each.opcode for each in found["one"]])

    def test_refused(self) -> None:
        """A request that is refused is there, with the NAK that hardware would have sent."""
        names = self.mktemp(), self.mktemp()
        one, other = self.open("shared-memory", names)
        one.post(
            1,
            Operation.RDMA_WRITE,
            [one.segment(0, 5)],
            remoteAddress=other.region.address,
            rkey=RKey(other.region.rkey ^ 1),
        )
        self.runUntil(lambda: (other.poll(), one.poll())[1])
        packets = self.read(names[0])
        self.assertEqual(packets[0].bth.opcode, Opcode.RC_RDMA_WRITE_ONLY)
        answer = packets[-1].get(AETH)
        assert answer is not None
        self.assertEqual((answer.kind, answer.value), (AETHKind.NAK, NAKCode.REMOTE_ACCESS_ERROR))

    def test_sameDevice(self) -> None:
        """Between two queue pairs of one device each packet is recorded once."""
        name = self.mktemp()
        device = openSoftDevice(self.reactor, port=0, route="shared-memory", pcap=name)
        self.addCleanup(device.close)
        one, other = End(device), End(device)
        one.join(other)
        other.join(one)
        self.assertEqual(set(self.talk(one, other)), {Status.SUCCESS})
        found = self.asked(self.read(name), one, other)
        self.assertEqual([len(each) for each in found.values()], [17, 17])

    def test_tshark(self) -> None:
        """Tshark dissects every packet, and complains of none."""
        program = shutil.which("tshark")
        if program is None:
            raise SkipTest("tshark is not installed")
        name = self.mktemp()
        one, other = self.open("shared-memory", (name, None))
        self.talk(one, other)
        # It would take every SEND for a beginning of RPC over RDMA, also those too short for one.
        command = [
            program,
            "-n",
            "-r",
            name,
            "--disable-protocol",
            "rpcordma",
            "-o",
            "ip.check_checksum:TRUE",
            "-T",
            "fields",
        ]
        for field in ("infiniband.bth.psn", "_ws.expert.message", "_ws.malformed", "ip.checksum.status"):
            command += ["-e", field]
        done = subprocess.run(
            command, capture_output=True, text=True, timeout=120, env={**os.environ, "LC_ALL": "C.UTF-8"}
        )
        self.assertEqual(done.returncode, 0, done.stderr)
        rows = [line.split("\t") for line in done.stdout.splitlines()]
        self.assertGreater(len(rows), 40)
        for row in rows:
            if row[1].startswith("Possible traceroute"):
                row[1] = ""  # the system gave one of the devices a port of those that traceroute takes
        self.assertEqual([row[1:] for row in rows], [["", "", "1"]] * len(rows))
        self.assertEqual([int(row[0]) for row in rows], [packet.bth.psn for packet in self.read(name)])
