"""
Programs on librdmacm's rsockets, and a TCP program, with txrdma's streams: files, echoes, web pages.
"""

from __future__ import annotations

import struct
import subprocess
import sys
import tempfile
import time
from collections import deque
from collections.abc import Callable
from hashlib import sha256
from pathlib import Path
from random import Random
from typing import Any, Final

from twisted.internet.error import ConnectionDone
from twisted.internet.protocol import connectionDone, Factory, Protocol
from twisted.protocols.wire import Echo
from twisted.python.failure import Failure

from txrdma.cm.rsocket._core import Sizes
from txrdma.cm.rsocket.endpoints import RSocketClientEndpoint, RSocketOptions, RSocketServerEndpoint
from txrdma.test.system.kernel import Box, record, Witness
from txrdma.test.system.kernel.cmworld import CMTestCase, counted, Program, since
from txrdma.test.system.kernel.riostreamer import MappedStreaming
from txrdma.test.system.kernel.world import HERE, NAMESPACE, THERE

BOXES = (Box(rxe=False, timeout=420),)

MiB: Final = 1 << 20
MAPPED_SHAPES: Final = ((64, 1, 20), (1000, 10, 5), (65536, 3, 3), (300_000, 2, 2))
"""Bytes, transfers and iterations of C{riostream}: below and above the size of one message."""
SOURCE: Final = Path(__file__).with_name("tcpclient.c")
PRELOAD: Final = "/usr/lib/x86_64-linux-gnu/rsocket/librspreload.so"

# messages of rcopy: version, command, length, status or mode, ID
_HEADER: Final = struct.Struct("=BBHIQ")
_SIZE: Final = struct.Struct("=Q")
_OPEN, _CLOSE, _WRITE, _ANSWER = 1, 2, 3, 0x80


class Copying(Protocol):
    """Shared by both ends of rcopy's protocol: messages, and the reason of the end."""

    def __init__(self) -> None:
        self.lost: Failure | None = None
        self._held = b""

    def connectionLost(self, reason: Failure = connectionDone) -> None:
        self.lost = reason

    def sendCommand(self, command: int, data: int = 0, rest: bytes = b"") -> None:
        assert self.transport is not None
        self.transport.write(_HEADER.pack(0, command, _HEADER.size + len(rest), data, 0) + rest)

    def dataReceived(self, data: bytes) -> None:
        """Take complete messages."""
        self._held += data
        while len(self._held) >= _HEADER.size:
            _, command, length, data_, _ = _HEADER.unpack_from(self._held)
            if len(self._held) < length:
                break
            rest, self._held = self._held[_HEADER.size : length], self._held[length:]
            self.received(command, data_, rest)

    def received(self, command: int, data: int, rest: bytes) -> None:
        raise NotImplementedError


class CopyServer(Copying):
    """Receives a file, and records its name, length and hash."""

    def __init__(self) -> None:
        super().__init__()
        self.path, self.length, self.hash = b"", 0, sha256()
        self._left = 0

    def dataReceived(self, data: bytes) -> None:
        """Take bytes of the file, or messages."""
        if self._left:
            part, data = data[: self._left], data[self._left :]
            self._take(part)
        if data:
            super().dataReceived(data)

    def _take(self, part: bytes) -> None:
        self.hash.update(part)
        self._left -= len(part)
        if not self._left:
            self.sendCommand(_WRITE | _ANSWER)

    def received(self, command: int, data: int, rest: bytes) -> None:
        if command == _OPEN:
            self.path = rest.rstrip(b"\0")
        if command == _WRITE:
            (self.length,) = _SIZE.unpack(rest)
            self._left = self.length
            first, self._held = self._held, b""
            self._take(first)
        else:
            self.sendCommand(command | _ANSWER)


class CopyClient(Copying):
    """Sends a file, and closes when everything is acknowledged."""

    def __init__(self, path: str, content: bytes) -> None:
        super().__init__()
        self._path, self._content = path.encode(), content
        self.answers: list[tuple[int, int]] = []

    def connectionMade(self) -> None:
        padded = self._path.ljust(len(self._path) + 8 & ~7, b"\0")
        self.sendCommand(_OPEN, 0o644, padded)

    def received(self, command: int, data: int, rest: bytes) -> None:
        self.answers.append((command, data))
        assert self.transport is not None
        if command == _OPEN | _ANSWER:
            self.sendCommand(_WRITE, 0, _SIZE.pack(len(self._content)))
            self.transport.write(self._content)
        elif command == _WRITE | _ANSWER:
            self.sendCommand(_CLOSE)
        else:
            self.transport.loseConnection()


class Ending(Echo):
    """An echo that records the reason of its end."""

    lost: Failure | None = None

    def connectionLost(self, reason: Failure = connectionDone) -> None:
        self.lost = reason


class StreamCase(CMTestCase):
    def setUp(self) -> None:
        super().setUp()
        temporary = tempfile.TemporaryDirectory()
        self.addCleanup(temporary.cleanup)
        self.folder = Path(temporary.name)

    def streamServer(self, port: int, make: Callable[[], Any]) -> None:
        """Listen in the other namespace; C{made} records the protocols."""

        def made() -> Any:
            self.made.append(make())
            return self.made[-1]

        self.listening(RSocketServerEndpoint(self.reactor, port, self.soft), Factory.forProtocol(made))

    def file(self) -> bytes:
        """Create a file of 64 MiB in the folder, and return its contents."""
        content = Random(12).randbytes(MiB) * 64
        (self.folder / "content").write_bytes(content)
        return content

    def untilLost(self, protocol: Any, seconds: float = 6.0) -> None:
        """Run the reactor until a connection has ended in order."""
        self.runUntil(lambda: protocol.lost is not None, seconds)
        self.assertIsNotNone(protocol.lost.check(ConnectionDone), protocol.lost)


class CopyTests(StreamCase):
    witness = Witness("rsocket: over the software device", "rcopy on rxe", "64 MiB each way, equal hashes")
    programs = ("rcopy",)

    def test_toUs(self) -> None:
        """rcopy copies a file to txrdma's server."""
        content = self.file()
        self.streamServer(7427, CopyServer)
        begun = time.monotonic()
        program = self.start("rcopy", str(self.folder / "content"), f"{THERE}:copy")
        self.succeeded(program, 15.0)
        record("MiB/s to txrdma", round(64 / (time.monotonic() - begun), 1))
        [server] = self.made
        self.untilLost(server)
        self.assertEqual((server.path, server.length), (b"copy", 64 * MiB))
        self.assertEqual(server.hash.digest(), sha256(content).digest())

    def test_fromUs(self) -> None:
        """txrdma's client copies a file to rcopy's server."""
        content = self.file()
        server = self.start("rcopy")
        self.expectOutput(server, "waiting")
        client = CopyClient(str(self.folder / "copy"), content)
        begun = time.monotonic()
        endpoint = RSocketClientEndpoint(self.reactor, HERE, 7427, self.soft)
        self.result(endpoint.connect(Factory.forProtocol(lambda: client)))
        self.untilLost(client, 15.0)
        record("MiB/s from txrdma", round(64 / (time.monotonic() - begun), 1))
        self.assertEqual(client.answers, [(kind | _ANSWER, 0) for kind in (_OPEN, _WRITE, _CLOSE)])
        copied = (self.folder / "copy").read_bytes()
        self.assertEqual(sha256(copied).digest(), sha256(content).digest())


class MappingTests(StreamCase):
    """C{riostream} writes into txrdma's mapped memory, and txrdma writes into that of C{riostream}."""

    witness = Witness(
        "rsocket: over the software device", "riostream on rxe", "mapped memory, both ways, verified"
    )
    programs = ("riostream",)

    def options(self, shape: tuple[int, int, int]) -> tuple[str, ...]:
        """Return the program's options for bytes, transfers and iterations, with verification."""
        size, count, iterations = map(str, shape)
        return ("-S", size, "-C", count, "-I", iterations, "-T", "v")

    def check(self, program: Program, played: Any, iterations: int) -> None:
        """Check that both ends have completed and verified."""
        self.assertEqual(self.result(played, 15.0), iterations)
        output = self.succeeded(program)
        self.assertNotIn("verification failed", output)
        self.assertIn("custom", output)

    def test_theirClient(self) -> None:
        """riostream's client completes with txrdma's server."""
        coming = deque(MAPPED_SHAPES)
        self.streamServer(7471, lambda: MappedStreaming(self.reactor, False, *coming.popleft()))
        begun = time.monotonic()
        for number, shape in enumerate(MAPPED_SHAPES):
            program = self.start("riostream", "-s", THERE, *self.options(shape))
            self.untilOutput(program, lambda number=number: len(self.made) > number)  # type: ignore[misc]
            self.check(program, self.made[-1].played, shape[2])
            self.untilLost(self.made[-1])
        record("seconds", round(time.monotonic() - begun, 1))

    def test_theirServer(self) -> None:
        """riostream's server completes with txrdma's client, and exits after one connection."""
        for shape in MAPPED_SHAPES[1:3]:
            program = self.start("riostream", *self.options(shape))
            self.expectOutput(program, "usec/xfer")
            client = MappedStreaming(self.reactor, True, *shape)
            endpoint = RSocketClientEndpoint(self.reactor, HERE, 7471, self.soft)
            self.result(endpoint.connect(Factory.forProtocol(lambda one=client: one)))  # type: ignore[misc]
            self.check(program, client.played, shape[2])
            self.untilLost(client)

    def test_noRoom(self) -> None:
        """riostream fails if txrdma's end offers no entries, and txrdma's server continues."""
        options = RSocketOptions(Sizes(mappings=0))
        endpoint = RSocketServerEndpoint(self.reactor, 7471, self.soft, options)
        self.listening(endpoint, Factory.forProtocol(self.retained))
        for _ in range(2):
            program = self.start("riostream", "-s", THERE, *self.options((64, 1, 1)))
            status, output = self.ends(program)
            self.assertIn("riomap", output)
        self.assertEqual(len(self.made), 2)
        for each in self.made:
            self.untilLost(each)

    def retained(self) -> Ending:
        """Return an echo that C{made} records."""
        retained = Ending()
        self.made.append(retained)
        return retained


class PreloadTests(StreamCase):
    """A TCP program under librspreload."""

    witness = Witness(
        "an echo and twistd web --listen rsocket:", "a C program of TCP under librspreload", "echo, HTTP"
    )

    def setUp(self) -> None:
        super().setUp()
        self.program = self.folder / "tcpclient"
        subprocess.run(["cc", "-o", str(self.program), str(SOURCE)], check=True)

    def preloaded(self, *words: str) -> Program:
        """Start the program with rsockets instead of TCP sockets."""
        return self.start(str(self.program), *words, LD_PRELOAD=PRELOAD)

    def test_echo(self) -> None:
        """txrdma's echo returns all bytes after a half-close, and no TCP connection is used."""
        self.streamServer(7001, Ending)
        before = counted()
        status, output = self.ends(self.preloaded(THERE, "7001", str(MiB)))
        self.assertEqual((status, output), (0, f"echoed {MiB} bytes\n"))
        self.untilLost(self.made[0])
        self.assertEqual(since(before)["tx req"], 1)
        _, output = self.ends(self.start(str(self.program), THERE, "7001", "1"))
        self.assertIn("Connection refused", output)

    def test_web(self) -> None:
        """The program gets a page of C{twistd web --listen rsocket:} as over TCP."""
        self.soft.close()  # the server uses queue pair 1 of the address
        (self.folder / "page").write_bytes(b"a page" * 50_000)
        listen = f"--listen=rsocket:{THERE}:7002"
        words = (sys.executable, "-m", "twisted", "web", listen, f"--path={self.folder}")
        server = self.start("ip", "netns", "exec", NAMESPACE, *words)
        self.expectOutput(server, "starting on")
        request = "GET /page HTTP/1.0\r\n\r\n"
        status, output = self.ends(self.preloaded(THERE, "7002", "0", request))
        self.assertEqual(status, 0, output[:1000])
        head, _, page = output.partition("\n\n")  # read as text
        self.assertRegex(head, r"^HTTP/1\.[01] 200 OK")
        self.assertEqual(page, "a page" * 50_000)
