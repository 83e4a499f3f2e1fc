"""
The program that sets SMC's TCP option, as bytes: the assembler's, and those that LLVM reads.
"""

from __future__ import annotations

import sys
from typing import Any

from twisted.trial.unittest import SynchronousTestCase

from txrdma.smc.signalling.option._assembler import Assembler, Jump
from txrdma.smc.signalling.option._btf import encodeTypes
from txrdma.test.support.smc.option_program import R0, R1, R2

LITTLE = None if sys.byteorder == "little" else "the bytes here are those of a little-endian machine"


class AssemblerTests(SynchronousTestCase):
    """The assembler makes instructions as RFC 9669 has them."""

    def test_bytes(self) -> None:
        """The bytes of a small program are those of the specification's tables."""
        code = Assembler()
        code.move(R0, -1)
        code.loadMap(R1, 7)
        code.loadMapValue(R2, 8, 16)
        code.exit()
        expected = (
            "b7 00 0000 ffffffff"
            "18 11 0000 07000000 0000000000000000"
            "18 22 0000 08000000 0000000010000000"
            "95 00 0000 00000000"
        )
        self.assertEqual(code.assemble(), bytes.fromhex(expected))

    def test_jumps(self) -> None:
        """A jump counts the instructions between, also those of two parts, forwards and backwards."""
        code = Assembler()
        code.label("start")
        code.jumpIf(R0, Jump.EQUAL, R1, "end")
        code.loadMap(R1, 7)
        code.jump("start")
        code.label("end")
        code.exit()
        made = code.assemble()
        self.assertEqual(
            (made[:8], made[24:32]), (bytes.fromhex("1d10030000000000"), b"\5\0\xfc\xff\0\0\0\0")
        )

    test_bytes.skip = test_jumps.skip = LITTLE  # type: ignore[attr-defined]  # trial looks there

    def test_refused(self) -> None:
        """What can't be encoded is refused, with its reason."""

        def lost(code: Assembler) -> None:
            code.jump("nowhere")
            code.assemble()

        def twice(code: Assembler) -> None:
            code.label("here")
            code.label("here")

        def far(code: Assembler) -> None:
            code.jump("end")
            for _ in range(1 << 15):
                code.exit()
            code.exit()
            code.label("end")
            code.assemble()

        deeds: list[tuple[Any, str]] = [
            (lost, "label 'nowhere' is not set"),
            (twice, "label 'here' is set twice"),
            (far, "an offset of 32769 does not fit into 16 bits"),
            (lambda code: code.move(R0, 1 << 32), "0x100000000 does not fit into 32 bits"),
            (lambda code: code.load(R0, R1, -40000), "an offset of -40000 does not fit into 16 bits"),
        ]
        for deed, reason in deeds:
            error = self.assertRaises(ValueError, deed, Assembler())
            self.assertEqual(str(error), reason)


class TypesTests(SynchronousTestCase):
    """Type information for the kernel."""

    skip = LITTLE

    def test_bytes(self) -> None:
        """It is as clang writes it for a program whose only type is C{int}, but for the sign."""
        header = "9feb 01 00 18000000 00000000 10000000 10000000 05000000"
        integer = "01000000 00000001 04000000 20000000"
        self.assertEqual(encodeTypes(), bytes.fromhex(header + integer) + b"\0int\0")
