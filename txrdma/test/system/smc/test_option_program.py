"""
The program that sets SMC's TCP option, disassembled by LLVM.
"""

from __future__ import annotations

import re
import shutil
import subprocess

from twisted.trial.unittest import SynchronousTestCase

from txrdma.smc.signalling.option.program import CODE
from txrdma.test.support.smc.option_program import NO_TOOL, tool


def disassembled(code: bytes) -> list[str]:
    """Disassemble instructions of a little-endian program by LLVM."""
    text = " ".join(f"{byte:#04x}" for byte in code)
    words = ["llvm-mc", "--disassemble", "--triple=bpfel"]
    done = subprocess.run(words, input=text, capture_output=True, text=True, check=True)
    if done.stderr:
        raise AssertionError(done.stderr.splitlines()[0])
    lines = (" ".join(line.split()) for line in done.stdout.splitlines())
    return [line for line in lines if line not in ("", ".text")]


def normalized(text: str) -> str:
    """Format the last number of an instruction like LLVM."""

    def decimal(found: re.Match[str]) -> str:
        number = int(found[0], 0) & 0xFFFFFFFF
        return str(number - ((number >> 31) << 32))

    return re.sub(r"-?0x[0-9a-f]+", decimal, text)


class DisassembledTests(SynchronousTestCase):
    """LLVM's disassembler agrees with the tool's assembler."""

    skip = NO_TOOL if shutil.which("llvm-mc") else "needs llvm-mc: apt-get install llvm"

    def test_eachInstructionIsLineOfSource(self) -> None:
        names = tool()
        instructions, labels = names["lines"](names["SOURCE"])
        expected = []
        for at, text in enumerate(instructions):
            if text:
                target = re.search(r"goto (\w+)$", text)
                if target is not None:
                    text = text[: target.start(1)] + f"{labels[target[1]] - at - 1:+d}"
                expected.append(normalized(text))
        self.assertEqual(disassembled(CODE), expected)
