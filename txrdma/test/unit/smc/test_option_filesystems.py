"""
Where SMC's TCP option is installed, and why it may be unavailable.
"""

from __future__ import annotations

import errno
import os
import socket
from pathlib import Path

from twisted.trial.unittest import SynchronousTestCase

from txrdma.smc.signalling.option.bpf import BPFMap, numberFor
from txrdma.smc.signalling.option.carrier import openCarrier, OptionCarrier, pinnedError
from txrdma.smc.signalling.option.filesystems import (
    cgroupRoot,
    findCgroup,
    Mount,
    parseMounts,
    requireCgroup,
)
from txrdma.smc.signalling.option.installing import inspect, remove, Users
from txrdma.smc.signalling.option.reasons import explained, isOlder, missingCapabilities, OptionUnavailable

MOUNTS = r"""
22 1 0:21 / / rw,relatime shared:1 - ext4 /dev/vda1 rw
30 22 0:26 / /sys/fs/cgroup rw,nosuid shared:9 - cgroup2 cgroup2 rw,nsdelegate
31 22 0:27 / /run/with\040space rw - bpf bpf rw,mode=700
32 22 0:28 /user.slice /mnt/part rw,nosuid master:1 propagate_from:2 - cgroup2 none rw
broken
"""

ALL = (1 << 41) - 1
BPF, NETWORK, SYSTEM = 1 << 39, 1 << 12, 1 << 21


class MountTests(SynchronousTestCase):
    """Parsing of C{/proc/self/mountinfo}."""

    def test_mountsAreParsed(self) -> None:
        self.assertEqual(
            list(parseMounts(MOUNTS)),
            [
                Mount("/", Path("/"), "ext4"),
                Mount("/", Path("/sys/fs/cgroup"), "cgroup2"),
                Mount("/", Path("/run/with space"), "bpf"),
                Mount("/user.slice", Path("/mnt/part"), "cgroup2"),
            ],
        )

    def test_nonUTF8MountPointHidesNoOthers(self) -> None:
        mounts = b"22 1 0:21 / /m\xfc rw - ext4 none rw\n30 22 0:26 / /sys/fs/cgroup rw - cgroup2 none rw\n"
        self.patch(Path, "read_bytes", lambda path: mounts)
        self.patch(Path, "read_text", lambda path: mounts.decode())
        self.assertEqual(cgroupRoot(), Path("/sys/fs/cgroup"))

    def test_firstMountOfCgroup(self) -> None:
        mounts = list(parseMounts(MOUNTS))
        self.assertEqual(findCgroup("/", mounts), Path("/sys/fs/cgroup"))
        self.assertEqual(findCgroup("/user.slice/a", mounts), Path("/sys/fs/cgroup/user.slice/a"))
        self.assertEqual(findCgroup("/user.slice/a", mounts[3:]), Path("/mnt/part/a"))
        self.assertEqual(findCgroup("/user.slice", mounts[3:]), Path("/mnt/part"))

    def test_unmountedCgroups(self) -> None:
        mounts = list(parseMounts(MOUNTS))
        error = self.assertRaises(OptionUnavailable, findCgroup, "/user.slicer", mounts[3:])
        self.assertEqual(str(error), "the cgroup /user.slicer of this process is not mounted here")
        error = self.assertRaises(OptionUnavailable, findCgroup, "/", mounts[:1])
        self.assertIn("mount -t cgroup2 none /sys/fs/cgroup", str(error))

    def test_otherDirectoriesAreRefused(self) -> None:
        folder = Path(self.mktemp())
        error = self.assertRaises(OptionUnavailable, requireCgroup, folder)
        self.assertEqual(str(error), f"there is no cgroup {folder}")
        self.assertRaises(OptionUnavailable, requireCgroup, Path("/" + "x" * 300))  # it cannot be searched
        folder.mkdir()
        error = self.assertRaises(OptionUnavailable, requireCgroup, folder)
        self.assertEqual(str(error), f"{folder} is not a cgroup of version 2")


class ReasonTests(SynchronousTestCase):
    """Errors of bpf(2) are explained."""

    def reported(self, code: int, release: str = "6.1.0-18-amd64", effective: int = ALL) -> str:
        return str(explained(OSError(code, os.strerror(code)), "do it", release, effective))

    def test_missingCapabilitiesAreNamed(self) -> None:
        self.assertEqual(missingCapabilities(0), ["CAP_BPF", "CAP_NET_ADMIN"])
        self.assertEqual(missingCapabilities(BPF), ["CAP_NET_ADMIN"])
        self.assertEqual(missingCapabilities(NETWORK), ["CAP_BPF"])
        self.assertEqual(missingCapabilities(BPF | NETWORK), [])
        self.assertEqual(missingCapabilities(SYSTEM), [])
        reported = self.reported(errno.EPERM, effective=NETWORK)
        self.assertEqual(reported, "can't do it: this process lacks CAP_BPF")

    def test_otherProhibitionsAreNamed(self) -> None:
        self.assertIn("lockdown", self.reported(errno.EPERM))

    def test_unsupportedKernelsAreNamed(self) -> None:
        self.assertIn("CONFIG_BPF_SYSCALL", self.reported(errno.ENOSYS))
        reported = self.reported(errno.EINVAL, "5.4.0-150-generic")
        self.assertEqual(
            reported, "can't do it: this requires Linux 5.10 or newer, and the kernel is 5.4.0-150-generic"
        )

    def test_otherErrorsAreUnchanged(self) -> None:
        self.assertEqual(self.reported(errno.ENOMEM), f"can't do it: {os.strerror(errno.ENOMEM)}")

    def test_releasesCompareAsNumbers(self) -> None:
        self.assertEqual(
            [
                isOlder(release)
                for release in ("4.19.0", "5.9.16-rc1", "5.10", "5.10.0-8", "6.1", "odd", "7-x")
            ],
            [True, True, False, False, False, False, False],
        )

    def test_reasonOfUnreadableMap(self) -> None:
        reported = [
            pinnedError(OSError(code, ""), Path("/x"))
            for code in (errno.ENOENT, errno.EACCES, errno.EPERM, errno.EIO)
        ]
        for word, text in zip(
            ("nothing is installed at /x", "--group", "5.19", "/x/sockets"), reported, strict=True
        ):
            self.assertIn(word, text)

    def test_systemCallNumberByMachine(self) -> None:
        known = [("x86_64", 8, 321), ("x86_64", 4, 357), ("aarch64", 8, 280), ("aarch64", 4, 386)]
        known += [("s390x", 8, 351), ("ppc64le", 8, 361), ("riscv64", 8, 280)]
        for machine, pointer, number in known:
            self.assertEqual(numberFor(machine, pointer), number, machine)
        error = self.assertRaises(OptionUnavailable, numberFor, "vax", 4)
        self.assertIn("vax", str(error))


class UnavailableTests(SynchronousTestCase):
    """Without an installed program all functions report that, and have no other effect."""

    def setUp(self) -> None:
        self.pins = Path(self.mktemp())

    def test_unavailableCarrierRaisesItsReason(self) -> None:
        carrier = openCarrier(self.pins, mayLoad=False)
        self.assertFalse(carrier.isAvailable)
        self.assertIn(f"nothing is installed at {self.pins}", carrier.why)
        with socket.socket() as unused:
            for deed in (carrier.markBeforeConnect, carrier.markBeforeListen, carrier.peerHasOption):
                error = self.assertRaises(OptionUnavailable, deed, unused)
                self.assertEqual(str(error), carrier.why)
        carrier.close()
        carrier.close()

    def test_closedCarrierIsUnavailable(self) -> None:
        reading, writing = os.pipe()
        self.addCleanup(os.close, writing)
        carrier = OptionCarrier(BPFMap(reading))
        carrier.close()
        self.assertEqual((carrier.isAvailable, carrier.why), (False, "the carrier is closed"))
        self.assertRaises(OSError, os.fstat, reading)

    def test_status(self) -> None:
        found = inspect(self.pins)
        self.assertEqual((found.isInstalled, found.isUsable, found.counters), (False, False, None))

    def test_nothingToRemove(self) -> None:
        error = self.assertRaises(OptionUnavailable, remove, self.pins)
        self.assertEqual(str(error), f"nothing is installed at {self.pins}")
        self.pins.mkdir()
        self.assertRaises(OptionUnavailable, remove, self.pins)
        self.assertTrue(self.pins.is_dir())

    def test_modesOfMap(self) -> None:
        modes = [users.mode(6) for users in (Users(), Users(7), Users(isEveryone=True))]
        self.assertEqual(modes, [0, 0o060, 0o066])
