"""
The program that sets SMC's TCP option, as bytes: the assembler's, and those that LLVM reads.
"""

from __future__ import annotations

import shutil
import subprocess
import sys
from typing import Any

from twisted.trial.unittest import SynchronousTestCase

from txrdma.smc.carriers.option._assembler import Assembler, Jump, Register
from txrdma.smc.carriers.option._btf import encodeTypes
from txrdma.smc.carriers.option._program import assembleProgram, OPTION

R0, R1, R2, R10 = Register.R0, Register.R1, Register.R2, Register.R10
LITTLE = None if sys.byteorder == "little" else "the bytes here are those of a little-endian machine"

SPECIMEN = """
    r6 = r1
    r0 = *(u32 *)(r6 + 212)
    r2 = *(u64 *)(r6 + 184)
    r3 = *(u16 *)(r6 + 2)
    r4 = *(u8 *)(r6 + 1)
    r0 &= 2
    r1 |= r8
    r2 += -16
    r1 <<= 8
    r8 >>= 8
    r2 = -69
    if r0 == 0 goto +9
    if r9 != 0 goto +8
    if r0 >= 2 goto +7
    if r0 s< 0 goto +6
    *(u32 *)(r10 - 16) = r0
    *(u16 *)(r10 - 4) = r1
    *(u64 *)(r7 + 0) = r8
    lock *(u64 *)(r0 + 0) += r1
    call 107
    goto -20
    exit
"""
"""One of each instruction, as LLVM writes them."""


def specimen() -> bytes:
    """The same, by the assembler."""
    code = Assembler()
    code.move(Register.R6, R1)
    code.label("again")
    code.load(R0, Register.R6, 212)
    code.load(R2, Register.R6, 184, 8)
    code.load(Register.R3, Register.R6, 2, 2)
    code.load(Register.R4, Register.R6, 1, 1)
    code.keepBits(R0, 2)
    code.setBits(R1, Register.R8)
    code.add(R2, -16)
    code.shiftLeft(R1, 8)
    code.shiftRight(Register.R8, 8)
    code.move(R2, -69)
    code.jumpIf(R0, Jump.EQUAL, 0, "end")
    code.jumpIf(Register.R9, Jump.NOT_EQUAL, 0, "end")
    code.jumpIf(R0, Jump.AT_LEAST, 2, "end")
    code.jumpIf(R0, Jump.LESS_SIGNED, 0, "end")
    code.store(R10, -16, R0)
    code.store(R10, -4, R1, 2)
    code.store(Register.R7, 0, Register.R8, 8)
    code.addAtomically(R0, 0, R1)
    code.call(107)
    code.jump("again")
    code.label("end")
    code.exit()
    return code.assemble()


def disassembled(code: bytes) -> list[str]:
    """What LLVM makes of a program."""
    text = " ".join(f"{byte:#04x}" for byte in code)
    words = ["llvm-mc", "--disassemble", "--triple=bpf"]
    done = subprocess.run(words, input=text, capture_output=True, text=True, check=True)
    if done.stderr:
        raise AssertionError(done.stderr.splitlines()[0])
    return [line.strip() for line in done.stdout.splitlines() if line.strip() not in ("", ".text")]


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


class DisassembledTests(SynchronousTestCase):
    """LLVM, which knows nothing of the assembler, reads its instructions as they are meant."""

    if shutil.which("llvm-mc") is None:
        skip = "needs llvm-mc: apt-get install llvm"

    def test_each(self) -> None:
        """Each kind of instruction is what LLVM takes it for."""
        self.assertEqual(disassembled(specimen()), [line.strip() for line in SPECIMEN.strip().splitlines()])

    def test_program(self) -> None:
        """The whole program is read without an error, ends, and calls the helpers that it should."""
        lines = disassembled(assembleProgram(11, 12, 13))
        self.assertIn("exit", lines)
        helpers = {int(line.split()[1]) for line in lines if line.startswith("call ")}
        self.assertEqual(helpers, {1, 59, 107, 142, 143, 144})
        before = [lines[at - 1] for at, line in enumerate(lines) if line == "*(u32 *)(r10 - 8) = r1"]
        option = int.from_bytes(OPTION[:4], sys.byteorder)
        self.assertEqual({int(line.removeprefix("r1 = ")) & 0xFFFFFFFF for line in before}, {option})


class TypesTests(SynchronousTestCase):
    """Type information for the kernel."""

    skip = LITTLE

    def test_bytes(self) -> None:
        """It is as clang writes it for a program whose only type is C{int}, but for the sign."""
        header = "9feb 01 00 18000000 00000000 10000000 10000000 05000000"
        integer = "01000000 00000001 04000000 20000000"
        self.assertEqual(encodeTypes(), bytes.fromhex(header + integer) + b"\0int\0")
