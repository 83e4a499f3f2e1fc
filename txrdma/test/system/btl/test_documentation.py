"""
The pages on the byte transfer layer: their programs run, and their figures, tables and names are correct.
"""

from __future__ import annotations

import re
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path
from unittest import SkipTest

from twisted.trial.unittest import SynchronousTestCase

from txrdma.btl.aio import Connection
from txrdma.btl.core.assembly import LONGEST, MOST_BYTES, MOST_MESSAGES
from txrdma.btl.core.module import COMMAND_MTU
from txrdma.btl.core.receiving import WINDOW
from txrdma.btl.core.window import GIVE_UP
from txrdma.btl.module import COMMAND_DEPTHS, DATA_DEPTHS
from txrdma.btl.transport import BTLMessageTransport, LARGEST_TAG
from txrdma.btl.wire import HEADER_LENGTH, SegmentKind
from txrdma.test.support.processes import CHECKOUT


class PageTests(SynchronousTestCase):
    def setUp(self) -> None:
        paths = [CHECKOUT / "docs" / f"{name}.md" for name in ("btl", "btl-protocol")]
        if not paths[0].exists():
            raise SkipTest("not a checkout")
        self.text = "\n".join(path.read_text() for path in paths)

    def test_program(self) -> None:
        """The first page's program runs and prints the documented output."""
        (program,) = re.findall(r"^```python\n(.*?)^```", self.text, re.M | re.S)
        self.assertPrints(program, "sum 95.5\n")

    def test_asyncio(self) -> None:
        """The program for asyncio runs on any port, and a connection has the methods that the page lists."""
        _before, _heading, section = self.text.partition("\n## asyncio\n")
        program = section.partition("```{code-block} python\n")[2].partition("```")[0]
        self.assertEqual(program.count('"127.0.0.1", 4000'), 2)
        program = program.replace('serve, "127.0.0.1", 4000', 'serve, "127.0.0.1", 0')
        self.assertPrints(program.replace(", 4000", ", server.address.port"), "b'hello'\n")
        listed = section.partition("A connection has")[2].partition("Everything else")[0]
        names = set(re.findall(r"`(\w+)(?:\(\))?`", listed)) - {"wait_for"}
        self.assertEqual(names, {name for name in vars(Connection) if name[0] != "_"} - {"end", "hasEnded"})

    def assertPrints(self, program: str, output: str) -> None:
        """Run a program, and assert that it prints this and no errors."""
        done = subprocess.run(
            [sys.executable, "-c", program], cwd=CHECKOUT, capture_output=True, text=True, timeout=60
        )
        self.assertEqual((done.stdout, done.stderr), (output, ""))

    def test_methods(self) -> None:
        """The table of methods names methods of the transport."""
        rows = re.findall(r"^\| (`.*?) \|", self.text.partition("\n## ")[0], re.M)
        names = re.findall(r"`(\w+)", " ".join(rows))
        self.assertGreaterEqual(len(names), 10)
        for name in names:
            self.assertTrue(hasattr(BTLMessageTransport, name), name)

    def test_kinds(self) -> None:
        """The table of kinds is complete."""
        rows = re.findall(r"^\| `([A-Z_]+)` \|", self.text, re.M)
        self.assertEqual(sorted(rows), sorted(kind.name for kind in SegmentKind))

    def test_numbers(self) -> None:
        """Numbers on the page equal the constants of the code."""
        self.assertIn(f"up to {LARGEST_TAG:#X}".replace("0X", "0x"), self.text)
        self.assertIn(f"up to {COMMAND_MTU - HEADER_LENGTH} bytes", self.text)
        self.assertIn(f"of which {WINDOW} can", self.text)
        self.assertIn(f"{MOST_MESSAGES} messages of one peer,\n", self.text)
        self.assertIn(f"\n{MOST_BYTES >> 20} MiB of all peers, {LONGEST >> 20} MiB each", self.text)
        self.assertEqual(GIVE_UP, 180.0)
        for sends, receives in (COMMAND_DEPTHS, DATA_DEPTHS):
            self.assertRegex(self.text, rf"\b{sends} / {receives}\b")

    def test_picture(self) -> None:
        """The diagram has the lost packet, its retransmission, and all messages."""
        folder = str(CHECKOUT / "docs" / "_extensions")
        program = "from btlrecorded import loss\nfor step in loss(): print(step.kind, step.source, step.text)"
        done = subprocess.run(
            [sys.executable, "-c", f"import sys; sys.path[:0] = [{folder!r}, {str(CHECKOUT)!r}]\n{program}"],
            capture_output=True, text=True, timeout=60,
        )  # fmt: skip
        if "No module named 'docutils'" in done.stderr or "No module named 'sphinx'" in done.stderr:
            raise SkipTest("Sphinx is not installed")
        self.assertEqual(done.stderr, "")
        lines = [re.sub(r" \d+ us:", "", line) for line in done.stdout.splitlines()]
        self.assertEqual([line for line in lines if line.startswith("lost")], ["lost alice FRAG 3"])
        self.assertIn("message bob ACK up to 2, and 4, 5", lines)
        self.assertEqual(lines.count("message alice FRAG 3, again"), 1)
        self.assertEqual(sum(line.startswith("note bob message") for line in lines), 5)


class ProgramTests(SynchronousTestCase):
    """The first programs of other pages, each in a file of a new folder, started as the page says."""

    slowBecause = "several processes start, which import NumPy or Dask"

    def play(self, page: str, package: str, *launcher: str) -> str:
        """Run the program of a page that needs a package; return its output."""
        path = CHECKOUT / "docs" / f"{page}.md"
        if not path.exists() or find_spec(package) is None:
            raise SkipTest(f"not a checkout, or {package} is not installed")
        program, *_others = re.findall(
            r"^```(?:{code-block} )?python\n(.*?)^```", path.read_text(), re.M | re.S
        )
        file = Path(self.mktemp()) / "program.py"
        file.parent.mkdir()
        file.write_text(program)
        command = [sys.executable, *launcher, file.name]
        done = subprocess.run(command, cwd=file.parent, capture_output=True, text=True, timeout=100)
        self.assertEqual(done.returncode, 0, done.stderr)
        return done.stdout

    def test_groups(self) -> None:
        output = self.play("groups", "numpy", "-m", "txrdma", "btl-run", "-n", "4")
        self.assertEqual(output, "sum of 4 arrays: [6. 6. 6. ... 6. 6. 6.]\n")

    def test_dask(self) -> None:
        self.assertEqual(self.play("dask", "distributed"), "45\n")

    def test_torch(self) -> None:
        output = self.play("btl-torch", "torch", "-m", "txrdma", "btl-run", "-n", "4")
        # Python without buffers, as in containers, writes the ends of lines separately.
        self.assertEqual(output.replace("\n", ""), "tensor([6., 6., 6.,  ..., 6., 6., 6.])" * 4)
