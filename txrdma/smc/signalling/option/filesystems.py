"""
Cgroups of version 2, to which the program is attached, and BPF file systems, in which it is pinned.

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
    """A mounted file system: the type C{kind}, and its directory C{root} at C{point}."""

    root: str
    point: Path
    kind: str


def parseMounts(text: str) -> Iterator[Mount]:
    """Parse C{/proc/self/mountinfo}; malformed lines are ignored."""
    for line in text.splitlines():
        fields, _, rest = line.partition(" - ")
        words = fields.split(" ")
        if len(words) >= 6 and rest:
            yield Mount(_unescape(words[3]), Path(_unescape(words[4])), rest.split(" ")[0])


def _unescape(escaped: str) -> str:
    """Decode white space and backslashes, which are escaped as octal numbers."""
    return _ESCAPE.sub(lambda found: chr(int(found[1], 8)), escaped)


def _mounts() -> list[Mount]:
    return list(parseMounts(_readProcess("mountinfo")))


def _readProcess(name: str) -> str:
    """Read a file of C{/proc/self}, which C{twistd --chroot} may hide; raises L{OptionUnavailable}."""
    path = Path("/proc/self") / name
    try:
        return os.fsdecode(path.read_bytes())  # paths may have any bytes
    except OSError as error:
        raise OptionUnavailable(f"can't read {path}: {error.strerror}") from error


def cgroupRoot() -> Path:
    """Return the directory of the root cgroup of version 2; raises L{OptionUnavailable} if not mounted."""
    for mount in _mounts():
        if mount.kind == "cgroup2":
            return mount.point
    raise OptionUnavailable(_NO_CGROUPS)


def processCgroup() -> Path:
    """Return the directory of this process's cgroup of version 2; raises L{OptionUnavailable}."""
    for line in _readProcess("cgroup").splitlines():
        if line.startswith("0::"):
            return findCgroup(line[3:], _mounts())
    raise OptionUnavailable(_NO_CGROUPS)


def findCgroup(name: str, mounts: list[Mount]) -> Path:
    """Return the directory of a cgroup, by its path in C{/proc/self/cgroup}; raises L{OptionUnavailable}."""
    isMounted = False
    for mount in mounts:
        if mount.kind == "cgroup2":
            isMounted = True
            if name == mount.root or name.startswith(mount.root.rstrip("/") + "/"):
                return mount.point / name[len(mount.root.rstrip("/")) :].lstrip("/")
    if isMounted:
        raise OptionUnavailable(f"the cgroup {name} of this process is not mounted here")
    raise OptionUnavailable(_NO_CGROUPS)


def cgroupByInode(inode: int) -> Path | None:
    """Return the directory of the cgroup with an inode, None if it is not mounted."""
    for mount in _mounts():
        if mount.kind == "cgroup2":
            for folder, _below, _files in os.walk(mount.point):
                try:
                    if os.stat(folder).st_ino == inode:
                        return Path(folder)
                except OSError:
                    continue  # it was removed since the directory was listed
    return None


def requireCgroup(folder: Path) -> None:
    """Check that a directory is a cgroup of version 2; raises L{OptionUnavailable}."""
    if not os.path.isdir(folder):  # that of Path raises PermissionError before Python 3.14
        raise OptionUnavailable(f"there is no cgroup {folder}")
    if _fileSystemType(folder) != "cgroup2":
        raise OptionUnavailable(f"{folder} is not a cgroup of version 2")


def isBPF(folder: Path) -> bool:
    """Return whether an existing directory is in a BPF file system."""
    return _fileSystemType(folder) == "bpf"


def _fileSystemType(folder: Path) -> str:
    """Return the type of the file system of a directory: that of the innermost mount that contains it."""
    resolved = folder.resolve()
    above = {resolved, *resolved.parents}
    kind = ""
    longest = -1
    for mount in _mounts():
        parts = len(mount.point.parts)
        if mount.point in above and parts >= longest:  # a later mount at the same point hides the earlier
            kind, longest = mount.kind, parts
    return kind


def mountBPF(folder: Path) -> None:
    """Mount a BPF file system with mode 0700; raises OSError."""
    flags = ctypes.c_ulong(_NOSUID | _NODEV | _NOEXEC)
    if _library.mount(b"bpf", os.fsencode(folder), b"bpf", flags, b"mode=0700") != 0:
        code = ctypes.get_errno()
        raise OSError(code, os.strerror(code))


def unmount(folder: Path) -> None:
    """Unmount the file system at a directory; raises OSError."""
    if _library.umount2(os.fsencode(folder), _DETACH) != 0:
        code = ctypes.get_errno()
        raise OSError(code, os.strerror(code))
