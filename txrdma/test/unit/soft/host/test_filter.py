"""The filter of UDP port 4791, and the destinations of packets for queue pair 1."""

from __future__ import annotations

from collections.abc import Sequence

from twisted.trial.unittest import SynchronousTestCase

from txrdma.soft.host._filter import filterProgram
from txrdma.soft.host._management import Destination, destinationOf
from txrdma.test.support.captures import packets
from txrdma.test.support.soft.management import message, toQueuePair

HOME = 99


def run(program: Sequence[tuple[int, int, int, int]], packet: bytes) -> int:
    """Run a program of classic BPF, by the definitions in the kernel's documentation."""
    accumulator = at = 0
    while True:
        code, true, false, operand = program[at]
        at += 1
        if code in (0x20, 0x28, 0x30):
            size = {0x20: 4, 0x28: 2, 0x30: 1}[code]
            if operand + size > len(packet):
                return 0
            accumulator = int.from_bytes(packet[operand : operand + size], "big")
        elif code == 0x54:
            accumulator &= operand
        elif code == 0x15:
            at += true if accumulator == operand else false
        elif code == 0x05:
            at += operand
        elif code == 0x16:
            return accumulator
        elif code == 0x06:
            return operand
        else:
            raise AssertionError(f"unexpected instruction {code:#x}")


CASES = [
    ("REQ", message(0x10, b"\x05\0\0\1" + bytes(4) + (0x1061D2F).to_bytes(8, "big")), Destination(0x1061D2F)),
    ("MRA", message(0x11, b"\x05\0\0\1\x09\0\0\2"), Destination(None, 9)),
    ("REJ", message(0x12, b"\0\0\0\0\x09\0\0\2"), Destination(None, 9)),
    ("REP", message(0x13, b"\x05\0\0\1\x09\0\0\2"), Destination(None, 9)),
    ("DREP", message(0x16, b"\x05\0\0\1\x09\0\0\2"), Destination(None, 9)),
    ("SIDR_REQ", message(0x17, b"\x05\0\0\1" + bytes(4) + (0x1111).to_bytes(8, "big")), Destination(0x1111)),
    ("SIDR_REP", message(0x18, b"\x09\0\0\1\x20\0\0\0"), Destination(None, 9)),
    ("APR", message(0x1A, b"\x05\0\0\1\x09\0\0\2"), Destination(None, 9)),
    ("PerfMgt", message(0x12, b"\x05\0\0\1\x09\0\0\2", 4), Destination()),
]


class FilterTests(SynchronousTestCase):
    """The program, executed by a small interpreter."""

    def setUp(self) -> None:
        self.program = filterProgram({9: 1, 20: 2, 254: 0}, HOME)

    def test_packetsGoToPositionOfShareOrHome(self) -> None:
        for number, position in (
            (0x090000, 1),
            (0x09FFFF, 1),
            (0x140001, 2),
            (0xFE0000, 0),
            (0x150000, HOME),
        ):
            self.assertEqual((number, run(self.program, toQueuePair(number))), (number, position))

    def test_messages(self) -> None:
        """CM messages go to the share of the remote ID; others go to the home position."""
        for name, packet, destination in CASES:
            position = HOME if destination.share is None else 1
            self.assertEqual((name, run(self.program, packet)), (name, position))

    def test_probeGoesToPositionInItsPayload(self) -> None:
        for position in (0, 3, 253):
            probe = toQueuePair(0, 12) + bytes((position,)) + bytes(15)
            self.assertEqual(run(self.program, probe), position)

    def test_short(self) -> None:
        """Packets that are too short go to the first position."""
        self.assertEqual(run(self.program, b""), 0)
        self.assertEqual(run(self.program, message(0x13, b"")[:40]), 0)

    def test_programForAllDevicesFitsKernelsLimit(self) -> None:
        program = filterProgram({share: share - 1 for share in range(1, 255)}, 0)
        # /proc/sys/net/core/optmem_max; two instructions per device
        self.assertLess(len(program) * 8 * 2, 20480)
        self.assertTrue(all(max(true, false) < 256 for _code, true, false, _operand in program))
        for share in range(1, 255):
            self.assertEqual(run(program, toQueuePair(share << 16)), share - 1)


class DestinationTests(SynchronousTestCase):
    """The destination of a packet for queue pair 1."""

    def test_messages(self) -> None:
        """The destination of requests is a service, of other CM messages a share; other classes have none."""
        for name, packet, destination in CASES:
            self.assertEqual((name, destinationOf(packet)), (name, destination))
            self.assertEqual((name, destinationOf(memoryview(packet))), (name, destination))

    def test_short(self) -> None:
        """A packet without a whole message has no destination."""
        self.assertEqual(destinationOf(CASES[0][1][:59]), Destination())

    def test_kernelsREQGoesToServiceAndREJToConnection(self) -> None:
        request, refusal = (each.payload for each in packets("cm-reject"))
        self.assertEqual(destinationOf(request), Destination(serviceID=0x1060009))
        self.assertEqual(destinationOf(refusal), Destination(share=0x48))

    def test_kernelsMessagesGoToReceiversID(self) -> None:
        found = [each for each in packets("rping") if each.payload[5:8] == b"\0\0\1"]
        request, reply = found[0].payload, found[1].payload
        ids = {found[0].source: request[44], found[1].source: reply[44]}
        for each in found[1:]:
            self.assertEqual(destinationOf(each.payload), Destination(share=ids[each.destination]))
