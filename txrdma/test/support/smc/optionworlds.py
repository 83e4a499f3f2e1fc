"""
Scenarios of SMC's TCP option on this machine's kernel, each in a process with its own namespaces and cgroup.

A scenario has a network namespace, a mount namespace and a cgroup, so that sockets of other processes never
meet the BPF program.

Run as C{python -m txrdma.test.support.smc.optionworlds SCENARIO}, as root. The facts that the scenario finds
are printed as JSON; if namespaces or cgroups are not available, C{{"skip": reason}} is printed.
"""

from __future__ import annotations

import ctypes
import fcntl
import io
import json
import os
import select
import shutil
import socket
import struct
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, redirect_stdout
from pathlib import Path
from typing import Any, cast, NamedTuple

from txrdma.command import run, TxrdmaOptions
from txrdma.commands.common.options import IReactor
from txrdma.commands.dissect.tcp import segmentIn, TCPHeader
from txrdma.error import RDMAError
from txrdma.smc.signalling.option import bpf
from txrdma.smc.signalling.option.carrier import openCarrier, OptionCarrier, SAVE_SYN, takeSYN
from txrdma.smc.signalling.option.filesystems import mountBPF, processCgroup, unmount
from txrdma.smc.signalling.option.installing import countersIn, inspect, install, remove, Users
from txrdma.smc.signalling.option.program import load, LoadedProgram, relocate, STORAGE_BYTES
from txrdma.smc.signalling.option.reasons import OptionUnavailable
from txrdma.test.support.smc.option_program import hasOption, sawOption, tool

Facts = dict[str, Any]
IPV4, IPV6 = (socket.AF_INET, "127.0.0.1"), (socket.AF_INET6, "::1")
PATIENCE = 30.0
NOBODY, FRIENDS = 65534, 54321

_NEW_MOUNTS, _NEW_NETWORK = 0x00020000, 0x40000000
_PRIVATE, _RECURSIVE = 1 << 18, 1 << 14
_SET_FLAGS, _UP = 0x8914, 0x1
_EVERY_PROTOCOL = 3
_SYN, _ACK = 2, 16
_ATTACH_FILTER, _DETACH_FILTER = 26, 27
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


# Scenarios


def combinations(cgroup: Path) -> Facts:
    """Return what both ends and a capture see, for marked and unmarked ends over IPv4 and IPv6."""
    facts: Facts = {}
    capture = Capture()
    with carrying(cgroup) as (carrier, loaded):
        for name, place in (("IPv4", IPV4), ("IPv6", IPV6)):
            for ends in ("", "client", "listener", "client listener"):
                forListener = carrier if "listener" in ends else None
                forClient = carrier if "client" in ends else None
                joined = pair(forListener, forClient, place)
                facts[f"{name} {ends}".strip()] = {
                    "seen": [carrier.peerHasOption(joined.client), carrier.peerHasOption(joined.server)],
                    "saved": sawOption(joined.server),
                    "wire": [each.hasOption for each in capture.taken()],
                    "works": works(joined),
                }
                joined.close()
        facts["counters"] = countersIn(loaded.counters)
    return facts


def savedSYN(cgroup: Path) -> Facts:
    """Connect to an unmarked listener that reads the saved SYN: it finds the option without answering it."""
    capture = Capture()
    with carrying(cgroup) as (carrier, _loaded):
        listener = socket.socket()
        listener.setsockopt(socket.IPPROTO_TCP, SAVE_SYN, 1)
        listener.bind(("127.0.0.1", 0))
        listener.listen()
        facts: Facts = {}
        for name, by in (("marked", carrier), ("unmarked", None)):
            client = connecting(by, listener)
            server = listener.accept()[0]
            facts[name] = [sawOption(server), sawOption(server), carrier.peerHasOption(client)]
        return {**facts, "wire": [each.hasOption for each in capture.taken()]}


def others(cgroup: Path) -> Facts:
    """Attach another program: its sockets do not get the option, and it still gets its own calls."""
    meddler = Meddler(cgroup)
    capture = Capture()
    facts: Facts = {}
    with carrying(cgroup) as (carrier, _loaded):
        for name, ends in (
            ("none", (None, None)),
            ("client", (None, carrier)),
            ("both", (carrier, carrier)),
        ):
            joined = pair(*ends)
            before = meddler.calls
            facts[name] = {
                "wire": [each.hasOption for each in capture.taken()],
                "works": works(joined),
                "called": meddler.calls > before,
                "seen": [carrier.peerHasOption(joined.client), carrier.peerHasOption(joined.server)],
            }
            joined.close()
    return facts


def quiet(cgroup: Path) -> Facts:
    """Count the calls of programs: none for segments of established connections, marked or unmarked."""
    watcher = Meddler(cgroup, asks=False)
    facts: Facts = {}
    with carrying(cgroup) as (carrier, _loaded):
        for name, by in (("unmarked", None), ("marked", carrier)):
            before = watcher.calls
            joined = pair(by, by)
            opened = watcher.calls
            for _ in range(10):
                works(joined)
            facts[name] = [opened > before, watcher.calls - opened]
            joined.close()
    return facts


def cookies(cgroup: Path) -> Facts:
    """Connect with SYN cookies: the kernel does not store the SYN, so the SYN-ACK has no option."""
    Path("/proc/sys/net/ipv4/tcp_syncookies").write_text("2")
    capture = Capture()
    with carrying(cgroup) as (carrier, _loaded):
        joined = pair(carrier, carrier)
        return {
            "wire": [each.hasOption for each in capture.taken()],
            "seen": [carrier.peerHasOption(joined.client), carrier.peerHasOption(joined.server)],
            "saved": len(takeSYN(joined.server)),
            "works": works(joined),
        }


def many(cgroup: Path, count: int = 2000) -> Facts:
    """Open and close many connections, and return what remains of them in maps."""
    seen = 0
    with carrying(cgroup) as (carrier, loaded):
        listener = listening(carrier, backlog=count)
        port = listener.getsockname()[1]
        for _ in range(count):
            client = connecting(carrier, listener)
            server = listener.accept()[0]
            seen += carrier.peerHasOption(client) + carrier.peerHasOption(server)
            client.close()
            server.close()

        def listeners() -> int:
            return int.from_bytes(loaded.listeners.get(port, 8), sys.byteorder)

        facts: Facts = {"seen": seen, "listeners": [listeners()]}
        listener.close()
        facts["listeners"].append(listeners())
        facts["stored"] = 0
        for _ in range(10):  # these reuse descriptors of marked sockets
            with socket.socket() as fresh:
                facts["stored"] += stored(loaded, fresh)
        facts["counters"] = countersIn(loaded.counters)
    return facts


def stored(loaded: LoadedProgram, sock: socket.socket) -> bool:
    """Return whether the program's map has storage of a socket."""
    try:
        loaded.sockets.get(sock.fileno(), STORAGE_BYTES)
    except FileNotFoundError:
        return False
    return True


def forgetting(cgroup: Path) -> Facts:
    """Forget a connection, which removes its storage and its saved SYN; a listener can't be forgotten."""
    with carrying(cgroup) as (carrier, loaded):
        joined = pair(carrier, carrier)
        before = [stored(loaded, joined.client), stored(loaded, joined.server)]
        for _ in range(2):
            carrier.forget(joined.client)
            carrier.forget(joined.server)
        facts: Facts = {
            "stored": [before, [stored(loaded, joined.client), stored(loaded, joined.server)]],
            "saved": len(takeSYN(joined.server)),
            "works": works(joined),
        }
        try:
            carrier.forget(joined.listener)
        except RDMAError as error:
            facts["refused"] = type(error).__name__
        return facts


def swallowed(cgroup: Path) -> Facts:
    """Let SYNs be retransmitted without an answer: the third one does not have the option."""
    _meddler = Meddler(cgroup, asks=False, hurries=True)
    with carrying(cgroup) as (carrier, _loaded):
        full = listening(None, backlog=0)
        waiting = connecting(None, full)
        capture = Capture()
        client = connecting(carrier, full, isBlocking=False)
        facts = {"wire": [each.hasOption for each in capture.until(3)]}
        client.close()
        waiting.close()
    return facts


def answeredAgain(cgroup: Path) -> Facts:
    """Drop a SYN-ACK: the retransmitted one has the option too, and both ends detect it."""
    _meddler = Meddler(cgroup, asks=False, hurries=True)
    with carrying(cgroup) as (carrier, _loaded):
        listener = listening(carrier)
        capture = Capture()
        client = socket.socket()
        drop = ctypes.create_string_buffer(struct.pack("HBBI", 0x06, 0, 0, 0))  # return 0: drop the packet
        client.setsockopt(
            socket.SOL_SOCKET, _ATTACH_FILTER, struct.pack("HxxxxxxP", 1, ctypes.addressof(drop))
        )
        carrier.markBeforeConnect(client)
        client.setblocking(False)
        client.connect_ex(listener.getsockname())
        segments: list[Segment] = []
        while sum(each.isAnswer for each in segments) < 2:
            more = capture.until(1)
            if not more:
                break
            segments += more
        client.setsockopt(socket.SOL_SOCKET, _DETACH_FILTER, 0)
        server = listener.accept()[0]
        select.select([], [client], [], PATIENCE)
        return {
            "answers": [each.hasOption for each in segments if each.isAnswer],
            "seen": [carrier.peerHasOption(client), carrier.peerHasOption(server)],
            "works": works(Pair(listener, client, server)),
        }


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


def forked(become: Callable[[], None], deed: Callable[[], Facts]) -> Facts:
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


def users(cgroup: Path) -> Facts:
    """Install the option for a group: only its members can use it, and after the removal nobody can."""
    folder = Path(tempfile.mkdtemp())
    folder.chmod(0o755)
    pins = folder / "pins"

    def deed() -> Facts:
        carrier = openCarrier(pins)
        if not carrier.isAvailable:
            return {"why": carrier.why}
        joined = pair(carrier, carrier)
        seen = [carrier.peerHasOption(joined.client), carrier.peerHasOption(joined.server)]
        status = reported("status", "--json", "--pins", str(pins))
        try:
            remove(pins)
        except OptionUnavailable:
            return {"seen": seen, "status": json.loads(status), "removed": False}
        return {"seen": seen, "removed": True}

    try:
        install(pins, cgroup, Users(FRIENDS))
        facts: Facts = {"friend": asUser([FRIENDS], deed)}
        facts["stranger"] = asUser([], deed)
        facts["again"] = reported("install", "--cgroup", str(cgroup), "--pins", str(pins))
        carrier = openCarrier(pins, mayLoad=False)
        (cgroup.parent / "cgroup.procs").write_text(str(os.getpid()))
        facts["outside"] = openCarrier(pins, mayLoad=False).why
        (cgroup / "cgroup.procs").write_text(str(os.getpid()))
        remove(pins)
        joined = pair(carrier, carrier)
        facts["after"] = [carrier.peerHasOption(joined.client), works(joined), pins.exists()]
        return facts
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def capabilities(cgroup: Path) -> Facts:
    """Return what a process can load itself, by its capabilities."""
    nowhere = Path(tempfile.gettempdir(), f"nothing-{os.getpid()}")

    def deed() -> Facts:
        carrier = openCarrier(nowhere)
        if not carrier.isAvailable:
            return {"why": carrier.why}
        joined = pair(carrier, carrier)
        return {"seen": [carrier.peerHasOption(joined.client), carrier.peerHasOption(joined.server)]}

    bpf, network = 1 << 39, 1 << 12
    retained = {"both": bpf | network, "bpf": bpf, "network": network}
    return {name: withCapabilities(bits, deed) for name, bits in retained.items()}


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


def places(cgroup: Path) -> Facts:
    """Remove a cgroup with an attached program, and install in a BPF file system that is already mounted."""
    folder = Path(tempfile.mkdtemp())
    folder.chmod(0o755)
    pins, mounted = folder / "pins", folder / "mounted"
    part = cgroup / "part"
    part.mkdir()
    mounted.mkdir()
    mountBPF(mounted)
    mounted.chmod(0o755)
    within = mounted / "smc"
    try:
        install(pins, part, Users())
        part.rmdir()
        facts: Facts = {"gone": inspect(pins).why}
        remove(pins)
        before = set(mounted.iterdir())
        install(within, cgroup, Users(isEveryone=True))
        facts["stranger"] = asUser([], lambda: {"usable": inspect(within).isUsable})["usable"]
        remove(within)
        left = [*(set(mounted.iterdir()) - before), *(set(folder.iterdir()) - {mounted})]
        return {**facts, "left": [str(each) for each in left], "stays": os.path.ismount(mounted)}
    finally:
        unmount(mounted)
        shutil.rmtree(folder, ignore_errors=True)


SCENARIOS: dict[str, Callable[[Path], Facts]] = {
    each.__name__: each
    for each in (
        combinations,
        savedSYN,
        others,
        quiet,
        cookies,
        many,
        forgetting,
        swallowed,
        answeredAgain,
        users,
        capabilities,
        places,
        commands,
    )
}


def main(name: str) -> None:
    """Run a scenario, and print its facts."""
    try:
        inside = world()
        cgroup = inside.__enter__()
    except OSError as error:
        print(json.dumps({"skip": f"no namespaces and cgroups of our own here: {error}"}))
        return
    try:
        facts = SCENARIOS[name](cgroup)
    finally:
        inside.__exit__(None, None, None)
    print(json.dumps(facts))


if __name__ == "__main__":
    main(sys.argv[1])
