"""
The program that sets SMC's TCP option, as bytes: the assembler's, and those that LLVM reads.
"""

from __future__ import annotations

import shutil
import subprocess
import sys

from twisted.trial.unittest import SynchronousTestCase

from txrdma.smc.signalling.option._assembler import Assembler, Jump, Register
from txrdma.smc.signalling.option._program import assembleProgram, OPTION
from txrdma.test.support.smc.option_program import R0, R1, R2, R10

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
