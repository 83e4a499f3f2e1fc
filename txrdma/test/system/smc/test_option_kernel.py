"""
SMC's TCP option by this machine's kernel: two TCP sockets, and the packets between them.
"""

from __future__ import annotations

import ctypes
import json
import os
import select
import shutil
import socket
import struct
import tempfile
from pathlib import Path

from twisted.trial.unittest import SynchronousTestCase

from txrdma.error import InvalidRequest
from txrdma.smc.signalling.option.bpf import ARRAY, BPFMap
from txrdma.smc.signalling.option.carrier import openCarrier, OptionCarrier, SAVE_SYN, takeSYN
from txrdma.smc.signalling.option.filesystems import mountBPF, unmount
from txrdma.smc.signalling.option.installing import countersIn, inspect, install, remove, Users
from txrdma.smc.signalling.option.reasons import (
    effectiveCapabilities,
    isOlder,
    missingCapabilities,
    OptionUnavailable,
)
from txrdma.test.support.smc.option_program import sawOption
from txrdma.test.support.smc.optionworlds import (
    asUser,
    Capture,
    carrying,
    commands,
    connecting,
    Facts,
    FRIENDS,
    inWorld,
    IPV4,
    IPV6,
    listening,
    Meddler,
    Pair,
    pair,
    PATIENCE,
    reported,
    stored,
    withCapabilities,
    works,
)

_ATTACH_FILTER, _DETACH_FILTER = 26, 27


def seen(carrier: OptionCarrier, joined: Pair) -> list[bool]:
    """Return whether the client and the server of a connection have seen the peer's option."""
    return [carrier.peerHasOption(each) for each in (joined.client, joined.server)]


class WorldCase(SynchronousTestCase):
    """Each test runs in a process with its own namespaces and cgroup."""

    if os.geteuid() != 0 or missingCapabilities(effectiveCapabilities()):
        skip = "needs root, with CAP_BPF and CAP_NET_ADMIN"
    elif isOlder(os.uname().release):
        skip = "needs Linux 5.10"

    def assertOption(self, capture: Capture, *expected: bool) -> None:
        """Assert which of the SYNs and SYN-ACKs since the last call had the option."""
        self.assertEqual([each.hasOption for each in capture.taken()], [*expected])


class MapTests(WorldCase):
    def test_valuesOfOtherLengthAreRefused(self) -> None:
        numbers = BPFMap.create("txrdma_test", ARRAY, 1 << 15, 1)
        self.addCleanup(numbers.close)
        for size in (8, 1 << 16):
            self.assertRaises(OSError, numbers.get, 0, size)
            self.assertRaises(OSError, numbers.set, 0, bytes(size))
        value = bytes(range(256)) * 128
        numbers.set(0, value)
        self.assertEqual(numbers.get(0, 1 << 15), value)


class WireTests(WorldCase):
    """The option is in the requested segments, and in no others."""

    @inWorld
    def test_combinations(self, cgroup: Path) -> None:
        """SYNs of marked clients have it, and SYN-ACKs of marked listeners to these; both ends detect it."""
        capture = Capture()
        with carrying(cgroup) as (carrier, loaded):
            for place in (IPV4, IPV6):
                for isClient in (False, True):
                    for isListener in (False, True):
                        both = isClient and isListener
                        joined = pair(carrier if isListener else None, carrier if isClient else None, place)
                        self.assertEqual(seen(carrier, joined), [both, both])
                        self.assertEqual(sawOption(joined.server), both)
                        self.assertOption(capture, isClient, both)
                        self.assertTrue(works(joined))
                        joined.close()
            expected = {"synsMarked": 4, "synAcksMarked": 2, "synAcksSeen": 2, "synsSeen": 2}
            self.assertEqual(countersIn(loaded.counters), expected)

    @inWorld
    def test_unmarkedListenerDetectsOptionBySavedSYN(self, cgroup: Path) -> None:
        capture = Capture()
        with carrying(cgroup) as (carrier, _loaded):
            listener = socket.socket()
            listener.setsockopt(socket.IPPROTO_TCP, SAVE_SYN, 1)
            listener.bind(("127.0.0.1", 0))
            listener.listen()
            for by in (carrier, None):
                client = connecting(by, listener)
                server = listener.accept()[0]
                self.assertEqual([sawOption(server), sawOption(server)], [by is carrier, False])
                self.assertFalse(carrier.peerHasOption(client))
            self.assertOption(capture, True, False, False, False)

    @inWorld
    def test_others(self, cgroup: Path) -> None:
        """
        Another program that is called for every segment keeps its calls, and its sockets have no option.

        Its own listener does not answer a SYN with the option, though txrdma's program is called as well.
        """
        meddler = Meddler(cgroup)
        capture = Capture()
        with carrying(cgroup) as (carrier, _loaded):
            for isListener, isClient in ((False, False), (False, True), (True, True)):
                joined = pair(carrier if isListener else None, carrier if isClient else None)
                before = meddler.calls
                self.assertOption(capture, isClient, isListener)
                self.assertTrue(works(joined))
                self.assertGreater(meddler.calls, before)
                self.assertEqual(seen(carrier, joined), [isListener] * 2)
                joined.close()

    @inWorld
    def test_programIsNotCalledForUnmarkedSegments(self, cgroup: Path) -> None:
        watcher = Meddler(cgroup, asks=False)
        with carrying(cgroup) as (carrier, _loaded):
            for by in (None, carrier):
                before = watcher.calls
                joined = pair(by, by)
                opened = watcher.calls
                self.assertEqual(opened > before, by is carrier)
                for _ in range(10):
                    works(joined)
                self.assertEqual(watcher.calls, opened)
                joined.close()

    @inWorld
    def test_cookies(self, cgroup: Path) -> None:
        """With SYN cookies the kernel stores no SYN, so the SYN-ACK has no option, and both ends use TCP."""
        Path("/proc/sys/net/ipv4/tcp_syncookies").write_text("2")
        capture = Capture()
        with carrying(cgroup) as (carrier, _loaded):
            joined = pair(carrier, carrier)
            self.assertOption(capture, True, False)
            self.assertEqual(seen(carrier, joined), [False, False])
            self.assertEqual(takeSYN(joined.server), b"")
            self.assertTrue(works(joined))

    @inWorld
    def test_unansweredSYNIsRepeatedWithoutOption(self, cgroup: Path) -> None:
        _meddler = Meddler(cgroup, asks=False, hurries=True)
        with carrying(cgroup) as (carrier, _loaded):
            full = listening(None, backlog=0)
            waiting = connecting(None, full)
            capture = Capture()
            client = connecting(carrier, full, isBlocking=False)
            self.assertEqual([each.hasOption for each in capture.until(3)], [True, True, False])
            client.close()
            waiting.close()

    @inWorld
    def test_answeredAgain(self, cgroup: Path) -> None:
        """A SYN-ACK that is repeated, because the first was dropped, has the option; both ends detect it."""
        _meddler = Meddler(cgroup, asks=False, hurries=True)
        with carrying(cgroup) as (carrier, _loaded):
            listener = listening(carrier)
            capture = Capture()
            client = socket.socket()
            # return 0: drop the packet
            drop = ctypes.create_string_buffer(struct.pack("HBBI", 0x06, 0, 0, 0))
            client.setsockopt(
                socket.SOL_SOCKET, _ATTACH_FILTER, struct.pack("HxxxxxxP", 1, ctypes.addressof(drop))
            )
            carrier.markBeforeConnect(client)
            client.setblocking(False)
            client.connect_ex(listener.getsockname())
            answers: list[bool] = []
            while len(answers) < 2 and (more := capture.until(1)):
                answers += [each.hasOption for each in more if each.isAnswer]
            client.setsockopt(socket.SOL_SOCKET, _DETACH_FILTER, 0)
            server = listener.accept()[0]
            select.select([], [client], [], PATIENCE)
            self.assertGreaterEqual(len(answers), 2)
            self.assertEqual(set(answers), {True})
            joined = Pair(listener, client, server)
            self.assertEqual((seen(carrier, joined), works(joined)), ([True, True], True))


class MemoryTests(WorldCase):
    """A closed socket leaves nothing."""

    @inWorld
    def test_manyConnectionsLeaveNoStorage(self, cgroup: Path) -> None:
        count = 2000
        with carrying(cgroup) as (carrier, loaded):
            listener = listening(carrier, backlog=count)
            port = listener.getsockname()[1]
            for _ in range(count):
                joined = Pair(listener, connecting(carrier, listener), listener.accept()[0])
                self.assertEqual(seen(carrier, joined), [True, True])
                joined.client.close()
                joined.server.close()
            for left in (b"\1", b""):
                self.assertEqual(loaded.listeners.get(port, 8).strip(b"\0"), left)
                listener.close()
            for _ in range(10):  # these reuse descriptors of marked sockets
                with socket.socket() as fresh:
                    self.assertFalse(stored(loaded, fresh))
            self.assertEqual(set(countersIn(loaded.counters).values()), {count})

    @inWorld
    def test_forget(self, cgroup: Path) -> None:
        """A forgotten connection has no storage and no saved SYN; a listener refuses to be forgotten."""
        with carrying(cgroup) as (carrier, loaded):
            joined = pair(carrier, carrier)
            for isStored in (True, False):
                ends = (joined.client, joined.server)
                self.assertEqual([stored(loaded, each) for each in ends], [isStored, isStored])
                for _ in range(2):
                    for each in ends:
                        carrier.forget(each)
            self.assertEqual(takeSYN(joined.server), b"")
            self.assertTrue(works(joined))
            self.assertRaises(InvalidRequest, carrier.forget, joined.listener)


class InstalledTests(WorldCase):
    """The program is installed once, for users who cannot load it."""

    def folder(self) -> Path:
        """Create a folder that other users can read."""
        folder = Path(tempfile.mkdtemp())
        folder.chmod(0o755)
        return folder

    @inWorld
    def test_users(self, cgroup: Path) -> None:
        """
        Users of the group can use but not remove it; other users and cgroups get the reason.

        After removal, users with open maps get connections without the option.
        """
        folder = self.folder()
        pins = folder / "pins"

        def deed() -> Facts:
            carrier = openCarrier(pins)
            if not carrier.isAvailable:
                return {"why": carrier.why}
            facts: Facts = {"seen": seen(carrier, pair(carrier, carrier))}
            facts["status"] = json.loads(reported("status", "--json", "--pins", str(pins)))
            try:
                remove(pins)
            except OptionUnavailable:
                return {**facts, "removed": False}
            return {**facts, "removed": True}

        try:
            install(pins, cgroup, Users(FRIENDS))
            friend = asUser([FRIENDS], deed)
            self.assertEqual((friend["seen"], friend["removed"]), ([True, True], False))
            status = friend["status"]
            self.assertEqual((status["mode"], status["isUsable"], status["cgroup"]), ("0660", True, None))
            self.assertEqual(set(status["counters"].values()), {1})
            why = asUser([], deed)["why"]
            self.assertIn("--group", why)
            self.assertIn("lacks CAP_BPF and CAP_NET_ADMIN", why)
            again = reported("install", "--cgroup", str(cgroup), "--pins", str(pins))
            self.assertIn("already installed at", again)
            carrier = openCarrier(pins, mayLoad=False)
            (cgroup.parent / "cgroup.procs").write_text(str(os.getpid()))
            outside = openCarrier(pins, mayLoad=False).why
            self.assertIn("not attached to a cgroup of this process", outside)
            (cgroup / "cgroup.procs").write_text(str(os.getpid()))
            remove(pins)
            joined = pair(carrier, carrier)
            self.assertFalse(carrier.peerHasOption(joined.client))
            self.assertTrue(works(joined))
            self.assertFalse(pins.exists())
        finally:
            shutil.rmtree(folder, ignore_errors=True)

    @inWorld
    def test_places(self, cgroup: Path) -> None:
        """A missing cgroup is reported; an existing BPF file system remains mounted after removal."""
        folder = self.folder()
        pins, mounted, part = folder / "pins", folder / "mounted", cgroup / "part"
        part.mkdir()
        mounted.mkdir()
        mountBPF(mounted)
        mounted.chmod(0o755)
        within = mounted / "smc"
        try:
            install(pins, part, Users())
            part.rmdir()
            self.assertIn("its cgroup is gone", inspect(pins).why)
            remove(pins)
            before = set(mounted.iterdir())
            install(within, cgroup, Users(isEveryone=True))
            self.assertEqual(asUser([], lambda: {"usable": inspect(within).isUsable}), {"usable": True})
            remove(within)
            self.assertEqual((set(mounted.iterdir()), set(folder.iterdir())), (before, {mounted}))
            self.assertTrue(os.path.ismount(mounted))
        finally:
            unmount(mounted)
            shutil.rmtree(folder, ignore_errors=True)

    @inWorld
    def test_processWithTwoCapabilitiesLoadsProgram(self, cgroup: Path) -> None:
        nowhere = Path(tempfile.gettempdir(), f"nothing-{os.getpid()}")

        def deed() -> Facts:
            carrier = openCarrier(nowhere)
            if not carrier.isAvailable:
                return {"why": carrier.why}
            return {"seen": seen(carrier, pair(carrier, carrier))}

        bpf, network = 1 << 39, 1 << 12
        self.assertEqual(withCapabilities(bpf | network, deed), {"seen": [True, True]})
        for bits, missing in ((bpf, "CAP_NET_ADMIN"), (network, "CAP_BPF")):
            self.assertIn(f"this process lacks {missing}", withCapabilities(bits, deed)["why"])

    @inWorld
    def test_commandInstallsShowsAndRemovesProgram(self, cgroup: Path) -> None:
        facts = commands(cgroup)
        self.assertIn("nothing is installed at", facts["before"])
        self.assertIn("txrdma smc-option: nothing is installed at", facts["removed early"])
        self.assertIn("is not a cgroup of version 2", facts["nowhere"])
        self.assertIn(facts["cgroup"], facts["installed"])
        status = facts["status"]
        self.assertEqual((status["cgroup"], status["mode"], status["why"]), (facts["cgroup"], "0600", ""))
        self.assertTrue(status["isInstalled"] and status["isUsable"])
        self.assertEqual(set(status["counters"].values()), {1})
        self.assertIn("nothing is installed at", facts["removed"])
        self.assertEqual(facts["left"], [])
        self.assertIn("name another directory", facts["taken"])
        self.assertEqual(facts["left then"], ["taken"])
