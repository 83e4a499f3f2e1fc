"""
Cgroups of version 2, to which the program is attached, and the file system of BPF, which keeps it.

See cgroups(7), proc_pid_mountinfo(5) and mount(2).
"""

from __future__ import annotations

import ctypes
import os
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Final, NamedTuple

from txrdma.smc.signalling.option.reasons import OptionUnavailable

_NOSUID, _NODEV, _NOEXEC = 2, 4, 8
_DETACH: Final = 2
_ESCAPE: Final = re.compile(r"\\([0-7]{3})")
_NO_CGROUPS: Final = (
    "no cgroups of version 2 are mounted: mount -t cgroup2 none /sys/fs/cgroup (systemd does it by default)"
)

_library = ctypes.CDLL(None, use_errno=True)


class Mount(NamedTuple):
    """
    A file system that this process sees, and where.

    @ivar root: the directory of that file system that is seen at C{point}.
    """

    root: str
    point: Path
    kind: str


def parseMounts(text: str) -> Iterator[Mount]:
    """The mounts in C{/proc/self/mountinfo}; lines that are not understood are left out."""
    for line in text.splitlines():
        fields, _, behind = line.partition(" - ")
        words = fields.split(" ")
        if len(words) >= 6 and behind:
            yield Mount(_plain(words[3]), Path(_plain(words[4])), behind.split(" ")[0])


def _plain(escaped: str) -> str:
    """Spaces and the like stand as octal numbers there."""
    return _ESCAPE.sub(lambda found: chr(int(found[1], 8)), escaped)


def _mounts() -> list[Mount]:
    return list(parseMounts(_told("mountinfo")))


def _told(name: str) -> str:
    """
    A file of C{/proc/self}.

    @raise OptionUnavailable: there is none, as in the directories of C{twistd --chroot}.
    """
    path = Path("/proc/self") / name
    try:
        return path.read_text()
    except OSError as error:
        raise OptionUnavailable(f"can't read {path}: {error.strerror}") from error


def cgroupRoot() -> Path:
    """
    The directory of the topmost cgroup of version 2 that this process can see.

    @raise OptionUnavailable: no such cgroups are mounted.
    """
    for mount in _mounts():
        if mount.kind == "cgroup2":
            return mount.point
    raise OptionUnavailable(_NO_CGROUPS)


def ownCgroup() -> Path:
    """
    The directory of this process's cgroup of version 2.

    @raise OptionUnavailable: it is not to be seen from here.
    """
    for line in _told("cgroup").splitlines():
        if line.startswith("0::"):
            return findCgroup(line[3:], _mounts())
    raise OptionUnavailable(_NO_CGROUPS)


def findCgroup(name: str, mounts: list[Mount]) -> Path:
    """
    The directory of a cgroup.

    @param name: as in C{/proc/self/cgroup}, from the root of the cgroup namespace.
    @raise OptionUnavailable: it is not to be seen by way of these mounts.
    """
    isMounted = False
    for mount in mounts:
        if mount.kind == "cgroup2":
            isMounted = True
            if name == mount.root or name.startswith(mount.root.rstrip("/") + "/"):
                return mount.point / name[len(mount.root.rstrip("/")) :].lstrip("/")
    if isMounted:
        raise OptionUnavailable(f"the cgroup {name} of this process is not mounted here")
    raise OptionUnavailable(_NO_CGROUPS)


def cgroupByNumber(number: int) -> Path | None:
    """The directory of a cgroup by the number of its inode; None when it can't be seen."""
    for mount in _mounts():
        if mount.kind == "cgroup2":
            for folder, _below, _files in os.walk(mount.point):
                try:
                    if os.stat(folder).st_ino == number:
                        return Path(folder)
                except OSError:
                    continue  # it has just been removed
    return None


def needCgroup(folder: Path) -> None:
    """
    Make sure that a directory is a cgroup of version 2.

    @raise OptionUnavailable: it is none.
    """
    if not folder.is_dir():
        raise OptionUnavailable(f"there is no cgroup {folder}")
    if _kindOf(folder) != "cgroup2":
        raise OptionUnavailable(f"{folder} is no cgroup of version 2")


def isBPF(folder: Path) -> bool:
    """Whether an existing directory is in a file system of BPF."""
    return _kindOf(folder) == "bpf"


def _kindOf(folder: Path) -> str:
    """The kind of the file system that a directory is in: that of the mount nearest above it."""
    resolved = folder.resolve()
    above = {resolved, *resolved.parents}
    kind = ""
    longest = -1
    for mount in _mounts():
        parts = len(mount.point.parts)
        if mount.point in above and parts >= longest:  # of two at one point the later is seen
            kind, longest = mount.kind, parts
    return kind


def mountBPF(folder: Path) -> None:
    """
    Mount a file system of BPF, which only root can enter at first.

    @raise OSError: it can't be done.
    """
    flags = ctypes.c_ulong(_NOSUID | _NODEV | _NOEXEC)
    if _library.mount(b"bpf", os.fsencode(folder), b"bpf", flags, b"mode=0700") != 0:
        code = ctypes.get_errno()
        raise OSError(code, os.strerror(code))


def unmount(folder: Path) -> None:
    """
    Unmount the file system that is mounted at a directory.

    @raise OSError: it can't be done.
    """
    if _library.umount2(os.fsencode(folder), _DETACH) != 0:
        code = ctypes.get_errno()
        raise OSError(code, os.strerror(code))
