"""
The program that sets SMC's TCP option equals what the tool assembles.
"""

from __future__ import annotations

from twisted.trial.unittest import SynchronousTestCase

from txrdma.smc.signalling.option.program import CODE, relocate
from txrdma.test.support.smc.option_program import NO_TOOL, tool


class ToolTests(SynchronousTestCase):
    """C{tools/smcoption.py} assembles the source of the program."""

    skip = NO_TOOL

    def test_packagedBytesMatchSource(self) -> None:
        self.assertEqual(tool()["assemble"](), CODE)

    def test_instructionEncoding(self) -> None:
        source = """
            start:
            r0 = -1
            if r0 == 2 goto end  ; a comment
            ld_pseudo r2, 1, 1
            r1 = be32 r1
            *(u16 *)(r10 - 4) = r1
            goto start
            end:
            exit
        """
        expected = """
            b700 0000 ffffffff
            1500 0500 02000000
            1812 0000 01000000 0000000000000000
            dc01 0000 20000000
            6b1a fcff 00000000
            0500 f9ff 00000000
            9500 0000 00000000
        """
        self.assertEqual(tool()["assemble"](source), bytes.fromhex(expected))

    def test_invalidLineIsRefused(self) -> None:
        error = self.assertRaises(ValueError, tool()["assemble"], "r1 = r2 + r3")
        self.assertEqual(str(error), "no instruction: r1 = r2 + r3")


class RelocationTests(SynchronousTestCase):
    """Instructions refer to maps by the process' descriptors."""

    CODE = bytes.fromhex("1812 0000 01000000 0000000000000000 6b1a fcff 02000000")

    def test_littleEndianRelocation(self) -> None:
        expected = bytes.fromhex("1812 0000 09000000 0000000000000000 6b1a fcff 02000000")
        self.assertEqual(relocate(self.CODE, [7, 9], "little"), expected)

    def test_bigEndianRelocation(self) -> None:
        expected = bytes.fromhex("1821 0000 00000009 0000000000000000 6ba1 fffc 00000002")
        self.assertEqual(relocate(self.CODE, [7, 9], "big"), expected)
