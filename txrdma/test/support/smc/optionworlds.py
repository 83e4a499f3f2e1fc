"""
Tests of SMC's TCP option on this machine's kernel, each in a process with its own namespaces and cgroup.

A test has a network namespace, a mount namespace and a cgroup, so that sockets of other processes never meet
the BPF program.
"""

from __future__ import annotations

import ctypes
import fcntl
import io
import json
import os
import select
import shutil
import signal
import socket
import struct
import sys
import tempfile
import time
import traceback
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, redirect_stdout
from functools import wraps
from pathlib import Path
from typing import Any, cast, NamedTuple

from twisted.trial.unittest import SkipTest, SynchronousTestCase

from txrdma.command import run, TxrdmaOptions
from txrdma.commands.common.options import IReactor
from txrdma.commands.dissect.tcp import segmentIn, TCPHeader
from txrdma.smc.signalling.option import bpf
from txrdma.smc.signalling.option.carrier import openCarrier, OptionCarrier
from txrdma.smc.signalling.option.filesystems import processCgroup
from txrdma.smc.signalling.option.program import load, LoadedProgram, relocate, STORAGE_BYTES
from txrdma.smc.signalling.option.reasons import OptionUnavailable
from txrdma.test.support.smc.option_program import hasOption, tool

Facts = dict[str, Any]
IPV4, IPV6 = (socket.AF_INET, "127.0.0.1"), (socket.AF_INET6, "::1")
PATIENCE = 30.0
TEST_SECONDS = 120
"""Seconds after which the process of a test is killed."""

NOBODY, FRIENDS = 65534, 54321

_NEW_MOUNTS, _NEW_NETWORK = 0x00020000, 0x40000000
_PRIVATE, _RECURSIVE = 1 << 18, 1 << 14
_SET_FLAGS, _UP = 0x8914, 0x1
_EVERY_PROTOCOL = 3
_SYN, _ACK = 2, 16
_CAPABILITY_VERSION_3 = 0x20080522

_library = ctypes.CDLL(None, use_errno=True)


# The namespaces and the cgroup


def _checked(result: int) -> None:
    if result != 0:
        code = ctypes.get_errno()
        raise OSError(code, os.strerror(code))


@contextmanager
def world() -> Iterator[Path]:
    """Create namespaces and a cgroup for this process, and yield the cgroup's directory."""
    _checked(_library.unshare(_NEW_MOUNTS | _NEW_NETWORK))
    _checked(_library.mount(b"none", b"/", None, ctypes.c_ulong(_PRIVATE | _RECURSIVE), None))
    with socket.socket() as unused:
        fcntl.ioctl(unused, _SET_FLAGS, struct.pack("16sh14x", b"lo", _UP))
    try:
        before = processCgroup()
    except OptionUnavailable:
        before = Path(tempfile.mkdtemp())
        _checked(_library.mount(b"none", os.fsencode(before), b"cgroup2", ctypes.c_ulong(0), None))
    own = before / f"txrdma-test-{os.getpid()}"
    own.mkdir()
    try:
        (own / "cgroup.procs").write_text(str(os.getpid()))
        try:
            yield own
        finally:
            (before / "cgroup.procs").write_text(str(os.getpid()))
    finally:
        own.rmdir()


@contextmanager
def carrying(cgroup: Path) -> Iterator[tuple[OptionCarrier, LoadedProgram]]:
    """Attach the option's program to the cgroup, and yield a carrier that uses it."""
    loaded = load(cgroup)
    carrier = OptionCarrier(loaded.sockets, loaded)
    try:
        yield carrier, loaded
    finally:
        carrier.close()


def inWorld(method: Callable[[Any, Path], None]) -> Callable[[SynchronousTestCase], None]:
    """Run a test in a child process, in a L{world} whose cgroup is passed to it."""

    def inside(test: SynchronousTestCase) -> Facts:
        inside = world()
        try:
            cgroup = inside.__enter__()
        except OSError as error:
            return {"skip": f"no separate namespaces and cgroups are available here: {error}"}
        try:
            method(test, cgroup)
        except BaseException:
            return {"failed": traceback.format_exc()}
        finally:
            inside.__exit__(None, None, None)
        return {"passed": True}

    @wraps(method)
    def isolated(test: SynchronousTestCase) -> None:
        facts = forked(lambda: signal.alarm(TEST_SECONDS), lambda: inside(test))
        if "skip" in facts:
            raise SkipTest(facts["skip"])
        test.assertEqual(facts, {"passed": True}, facts.get("failed"))

    return isolated


class Segment(NamedTuple):
    """A captured SYN or SYN-ACK."""

    isAnswer: bool
    port: int
    """Port of the listener."""
    hasOption: bool


class Capture:
    """Captures TCP segments on the loopback interface."""

    def __init__(self) -> None:
        self._socket = socket.socket(socket.AF_PACKET, socket.SOCK_DGRAM, socket.htons(_EVERY_PROTOCOL))
        self._socket.bind(("lo", _EVERY_PROTOCOL))
        self._socket.setblocking(False)

    def taken(self) -> list[Segment]:
        """Return the SYNs and SYN-ACKs since the last call."""
        found: list[Segment] = []
        while True:
            try:
                packet, address = self._socket.recvfrom(65536)
            except BlockingIOError:
                return found
            if address[2] != socket.PACKET_OUTGOING:
                continue
            header = TCPHeader.decode(segmentIn(packet))
            if header.flags & _SYN:
                isAnswer = bool(header.flags & _ACK)
                port = header.source if isAnswer else header.destination
                found.append(Segment(isAnswer, port, hasOption(packet)))

    def until(self, count: int) -> list[Segment]:
        """Wait for at least this number of SYNs and SYN-ACKs, up to C{PATIENCE} seconds, and return them."""
        found: list[Segment] = []
        end = time.monotonic() + PATIENCE
        while len(found) < count and time.monotonic() < end:
            select.select([self._socket], [], [], end - time.monotonic())
            found += self.taken()
        return found


class Meddler:
    """
    Another program on the same cgroup, which may request calls for every segment of every socket.

    @ivar calls: number of calls for a segment.
    """

    def __init__(self, cgroup: Path, asks: bool = True, hurries: bool = False) -> None:
        """
        @param asks: whether the program requests calls, or only counts them.
        @param hurries: whether it shortens the timeout of SYNs, so that they are retransmitted early.
        """
        self._counts = bpf.BPFMap.create("meddler", bpf.ARRAY, 8, 1)
        code = tool()["assemble"](f"""
            r6 = r1
            r0 = *(u32 *)(r1 + 0)
            if r0 == 3 goto ask
            if r0 == 11 goto ask
            if r0 == 1 goto hurry
            if r0 == 14 goto count
        end:
            r0 = 1
            exit
        ask:
            r2 = *(u32 *)(r6 + 84)
            r2 |= {0x40 * asks}
            r1 = r6
            call 59
            goto end
        hurry:
            r1 = 20                 ; jiffies
            {"*(u32 *)(r6 + 4) = r1" if hurries else ""}
            goto end
        count:
            ld_pseudo r1, 2, 0
            r2 = 1
            lock *(u64 *)(r1 + 0) += r2
            goto end
        """)
        program = bpf.loadProgram("meddler", relocate(code, [self._counts.fileno()]))
        self._link = bpf.BPFLink.create(program, cgroup)

    @property
    def calls(self) -> int:
        return int.from_bytes(self._counts.get(0, 8), sys.byteorder)


class Pair(NamedTuple):
    """A connection, and the listener that accepted it."""

    listener: socket.socket
    client: socket.socket
    server: socket.socket

    def close(self) -> None:
        for each in (self.client, self.server, self.listener):
            each.close()

    @property
    def port(self) -> int:
        return cast(int, self.listener.getsockname()[1])


def listening(
    carrier: OptionCarrier | None, place: tuple[int, str] = IPV4, backlog: int = 10
) -> socket.socket:
    """Return a listening socket, marked by the carrier if there is one."""
    listener = socket.socket(place[0])
    listener.bind((place[1], 0))
    if carrier is not None:
        carrier.markBeforeListen(listener)
    listener.listen(backlog)
    return listener


def connecting(
    carrier: OptionCarrier | None, listener: socket.socket, isBlocking: bool = True
) -> socket.socket:
    """Return a connecting socket, marked by the carrier if there is one."""
    client = socket.socket(listener.family)
    if carrier is not None:
        carrier.markBeforeConnect(client)
    client.setblocking(isBlocking)
    client.settimeout(PATIENCE if isBlocking else 0)
    try:
        client.connect(listener.getsockname())
    except BlockingIOError:
        pass
    return client


def pair(
    forListener: OptionCarrier | None, forClient: OptionCarrier | None, place: tuple[int, str] = IPV4
) -> Pair:
    """Connect two sockets, which the carriers mark if there are any."""
    listener = listening(forListener, place)
    client = connecting(forClient, listener)
    return Pair(listener, client, listener.accept()[0])


def works(joined: Pair) -> bool:
    """Return whether the connection transfers data."""
    joined.client.sendall(b"ping")
    return joined.server.recv(4) == b"ping"


def stored(loaded: LoadedProgram, sock: socket.socket) -> bool:
    """Return whether the program's map has storage of a socket."""
    try:
        loaded.sockets.get(sock.fileno(), STORAGE_BYTES)
    except FileNotFoundError:
        return False
    return True


def asUser(groups: Sequence[int], deed: Callable[[], Facts]) -> Facts:
    """Call a function in a process of an unprivileged user with only these groups, and return its result."""

    def become() -> None:
        os.setgroups(groups)
        os.setgid(NOBODY)
        os.setuid(NOBODY)

    return forked(become, deed)


def withCapabilities(retained: int, deed: Callable[[], Facts]) -> Facts:
    """Call a function in a process with only these capabilities (a bit mask), and return its result."""

    def become() -> None:
        head = ctypes.create_string_buffer(struct.pack("=Ii", _CAPABILITY_VERSION_3, 0))
        low, high = retained & 0xFFFFFFFF, retained >> 32
        sets = ctypes.create_string_buffer(struct.pack("=6I", low, low, 0, high, high, 0))
        _checked(_library.capset(head, sets))

    return forked(become, deed)


def forked(become: Callable[[], object], deed: Callable[[], Facts]) -> Facts:
    """Call C{become}, then C{deed} in a child process, and return the result of C{deed}."""
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            become()
            os.write(writing, json.dumps(deed()).encode())
        finally:
            os._exit(0)
    os.close(writing)
    with open(reading, "rb") as answer:
        facts = json.loads(answer.read() or b'{"nothing": "was answered"}')
    os.waitpid(child, 0)
    return cast(Facts, facts)


def reported(*words: str) -> str:
    """Run C{txrdma smc-option}, and return its output or its error message."""
    options = TxrdmaOptions()
    options.parseOptions(["smc-option", *words])
    printed = io.StringIO()
    failures: list[str] = []
    with redirect_stdout(printed):
        run(cast(IReactor, None), options).addErrback(lambda failure: failures.append(str(failure.value)))
    return failures[0] if failures else printed.getvalue()


def commands(cgroup: Path) -> Facts:
    """Run the actions of C{txrdma smc-option} before, during and after an installation."""
    folder = Path(tempfile.mkdtemp())
    pins = folder / "pins"
    at = ("--pins", str(pins))
    try:
        facts: Facts = {"before": reported("status", *at), "removed early": reported("remove", *at)}
        facts["nowhere"] = reported("install", "--cgroup", str(folder), *at)
        facts["installed"] = reported("install", "--cgroup", str(cgroup), *at)
        carrier = openCarrier(pins, mayLoad=False)
        pair(carrier, carrier).close()
        facts["status"] = json.loads(reported("status", "--json", *at))
        facts["removed"] = reported("remove", *at)
        facts["left"] = [each.name for each in folder.iterdir()]
        (folder / "taken").mkdir()
        facts["taken"] = reported("install", "--cgroup", str(cgroup), "--pins", str(folder / "taken"))
        facts["left then"] = [each.name for each in folder.iterdir()]
        return {**facts, "cgroup": str(cgroup)}
    finally:
        shutil.rmtree(folder, ignore_errors=True)
