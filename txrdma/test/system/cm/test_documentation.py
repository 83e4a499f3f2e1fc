"""
The pages on connections of the communication manager: their programs run, and diagrams and names are correct.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Callable
from runpy import run_path
from typing import cast, IO
from unittest import SkipTest

from twisted.trial.unittest import SynchronousTestCase

from txrdma.cm.connection import CMConnection
from txrdma.cm.connections.transport import RDMATransport
from txrdma.cm.manager import ConnectionManager
from txrdma.test.support.processes import CHECKOUT, groupAddress, loopbackAddress, printed, started


class PageTests(SynchronousTestCase):
    """Messages, streams, and the manager."""

    slowBecause = "runs the examples in processes"

    def setUp(self) -> None:
        paths = [CHECKOUT / "docs" / f"{name}.md" for name in ("cm", "rsockets", "cm-manager")]
        if not paths[0].exists():
            raise SkipTest("not a checkout")
        self.pages = "\n".join(path.read_text() for path in paths)

        addresses = ("127.0.0.2", "127.0.0.3", "127.0.1.2", "127.0.1.3")
        self.others = {address: loopbackAddress() for address in addresses}
        self.others["239.1.2.3"] = groupAddress()
        programs = re.findall(r"^```python\n(.*?)^```$", self.pages, re.MULTILINE | re.DOTALL)
        self.share, self.use, self.server, self.client, *rest = map(self.elsewhere, programs)
        self.datagrams, self.group, self.stream, self.mapped, self.manager, self.migration = rest

    def elsewhere(self, program: str) -> str:
        """Return the program with other loopback addresses, which are probably unused."""
        for address, other in self.others.items():
            program = program.replace(address, other)
        return program

    def run_(self, program: str) -> str:
        """Run a program; return its output."""
        done = printed(program)
        self.assertEqual((done.returncode, done.stderr), (0, ""))
        return done.stdout

    def test_datagrams(self) -> None:
        """The example of a datagram service finds it and gets an answer."""
        self.assertEqual(self.run_(self.datagrams), "welcome\nHELLO\n")

    def test_group(self) -> None:
        """Each member of the example receives the datagram, the sender, too."""
        self.assertEqual(self.run_(self.group), "to all\nto all\n")

    def served(self, program: str) -> IO[str]:
        """Run a server until the end of the test; return its output after it listens."""
        process = started(self, "-c", program)
        assert process.stdout is not None
        self.assertEqual(process.stdout.readline(), "listening\n")
        return process.stdout

    def test_sharedMemory(self) -> None:
        """The client reads the server's memory, whose bytes are unchanged at the end."""
        output = self.served(self.share)
        self.assertEqual(self.run_(self.use), "b'hello'\n")
        self.assertEqual(output.readline(), f"{bytes(b'hello' + bytes(4) + b'world')!r}\n")

    def test_messages(self) -> None:
        """The client gets an answer, and both ends report the end."""
        output = self.served(self.server)
        self.assertEqual(self.run_(self.client), "welcome\nHELLO 7\n")
        self.assertEqual(output.readline(), f"a client at {self.others['127.0.0.3']}\n")
        self.assertEqual(output.readline(), "Connection was closed cleanly.\n")

    def test_stream(self) -> None:
        """The stream's client gets its text in capitals, and closes in order."""
        self.assertEqual(self.run_(self.stream), "Connection was closed cleanly.\nHELLO, RSOCKETS\n")

    def test_mapped(self) -> None:
        """The server's memory has what its client wrote, and the connection closes in order."""
        self.assertEqual(self.run_(self.mapped), "look: mapped\nConnection was closed cleanly.\n")

    def test_migration(self) -> None:
        """The connection of the walk-through continues on the other path, and loads the first one again."""
        expected = f"b'carried on'\nnow by {self.others['127.0.1.3']}\nready for {self.others['127.0.0.3']}\n"
        self.assertEqual(self.run_(self.migration), expected)

    def test_manager(self) -> None:
        """The program without protocols connects over loopback, and closes."""
        output = self.run_(self.manager)
        self.assertRegex(output, r"\Awelcome\n<CMConnection 0x[0-9a-f]+ ESTABLISHED>\n\Z")

    def test_names(self) -> None:
        """The requests in the tables are methods."""
        kinds = {"manager": ConnectionManager, "connection": CMConnection, "transport": RDMATransport}
        for owner, names in re.findall(r"`(manager|connection|transport)\.([a-zA-Z]+)", self.pages):
            kind = kinds[owner]
            declared = {name for each in kind.__mro__ for name in getattr(each, "__annotations__", ())}
            self.assertTrue(hasattr(kind, names) or names in declared, names)

    def test_pictures(self) -> None:
        """Each diagram of the pages can be drawn."""
        extensions = CHECKOUT / "docs" / "_extensions"
        self.patch(sys, "path", [*sys.path, str(extensions)])  # they import each other
        try:
            module = run_path(str(extensions / "fromcode.py"))
        except ImportError as error:
            raise SkipTest(str(error)) from None
        graph = cast("Callable[[str], str]", module["connectionGraph"])
        parts = re.findall(r"\{connection-machine\} (\w+)", self.pages)
        self.assertEqual(set(parts), set(module["_CM"]))
        self.assertIn('"REQ_SENT" -> "REP_RCVD" [label="replied"];', graph("active"))
        self.assertIn('"REP_SENT" -> "ESTABLISHED" [label="confirmed"];', graph("passive"))
        self.assertNotIn("REP_SENT", graph("active").replace("MRA_REP_SENT", ""))
