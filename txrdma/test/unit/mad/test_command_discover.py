"""
C{txrdma discover}, and what the commands about fabrics have in common.
"""

from __future__ import annotations

import io
from contextlib import redirect_stderr
from pathlib import Path

from twisted.trial.unittest import SynchronousTestCase

from txrdma.commands.common.progress import ProgressBar
from txrdma.error import InvalidRequest
from txrdma.fabric import nodenames
from txrdma.fabric.nodenames import NodeNames, parseNodeNames, readNodeNames
from txrdma.iba.types import GUID


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


class NodeNamesTests(SynchronousTestCase):
    def test_parse(self) -> None:
        self.assertEqual(
            parseNodeNames("0200 decimal, though it begins with a 0").names.keys(), {GUID.fromInt(200)}
        )
        names = parseNodeNames('\n# x\n0x1 "one"\n  0x00ff  "two words"   # said\n')
        self.assertEqual(names.names, {GUID.fromInt(1): "one", GUID.fromInt(255): "two words"})
        self.assertEqual(list(names.guids("one")), [GUID.fromInt(1)])
        for wrong in ('0x2 "two', "two 0x2", '0x2 "two" or three', "0x2two"):
            error = self.assertRaises(InvalidRequest, parseNodeNames, f'0x1 "one"\n{wrong}\n', "map")
            self.assertIn("map, line 2", str(error))

    def test_asTheirs(self) -> None:
        names = parseNodeNames('0x1 one more # x\n255 "two"\n0x1 "again"\n0x3\n')
        self.assertEqual(names.names, {GUID.fromInt(1): "one more", GUID.fromInt(255): "two"})

    def test_places(self) -> None:
        places = [Path(self.mktemp()) for _ in range(2)]
        self.patch(nodenames, "PLACES", tuple(places))
        self.assertEqual(readNodeNames().names, {})
        places[1].write_text('0x1 "of OpenSM"')
        self.assertEqual(readNodeNames().name(GUID.fromInt(1)), "of OpenSM")
        places[0].write_text('0x1 "ours"')
        self.assertEqual(readNodeNames().name(GUID.fromInt(1)), "ours")

    def test_brokenPlace(self) -> None:
        place = Path(self.mktemp())
        place.write_text("nonsense\n")
        self.patch(nodenames, "PLACES", (place,))
        errors = io.StringIO()
        with redirect_stderr(errors):
            self.assertEqual(readNodeNames().names, {})
        self.assertIn("line 1", errors.getvalue())
        self.assertRaises(InvalidRequest, readNodeNames, str(place))

    def test_descriptions(self) -> None:
        self.assertEqual(NodeNames().name(GUID.fromInt(1), "a\tb\x00"), "a b ")

    def test_missing(self) -> None:
        self.assertRaises(InvalidRequest, readNodeNames, "/no/such/map")


class ProgressTests(SynchronousTestCase):
    def test_terminal(self) -> None:
        for stream, isShown in ((Terminal(), True), (io.StringIO(), False)):
            with ProgressBar("asking", stream) as progress:
                progress._next = 0.0
                progress(3, 10)
                self.assertEqual("3/10" in stream.getvalue(), isShown)

    def test_short(self) -> None:
        stream = Terminal()
        with ProgressBar("asking", stream) as progress:
            progress(1, 2)
        self.assertEqual(stream.getvalue(), "")
