"""Installs the program of the C{option} carrier for other processes, by names in a BPF file system."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from txrdma.smc.signalling.option import bpf
from txrdma.smc.signalling.option.carrier import openCarrier, SOCKETS
from txrdma.smc.signalling.option.filesystems import cgroupByInode, isBPF, mountBPF, requireCgroup, unmount
from txrdma.smc.signalling.option.program import COUNTERS, load, LoadedProgram
from txrdma.smc.signalling.option.reasons import OptionUnavailable

_LINK: Final = "link"
_COUNTERS: Final = "counters"
NAMES: Final = (_LINK, SOCKETS, _COUNTERS)
"""Names of pinned objects. The link is removed first, so that the program is detached."""


@dataclass(frozen=True, slots=True)
class Users:
    """Users besides root that may mark their sockets: a group, or everyone."""

    group: int | None = None
    isEveryone: bool = False

    def mode(self, permissions: int) -> int:
        """Return the bits of a file's mode that grant permissions (0 to 7) to the users."""
        if self.isEveryone:
            return permissions << 3 | permissions
        return 0 if self.group is None else permissions << 3

    def grant(self, path: Path, owner: int, users: int) -> None:
        """Set the permissions (0 to 7) of root and of the users for a file."""
        os.chown(path, 0, 0 if self.group is None else self.group)
        os.chmod(path, owner << 6 | self.mode(users))


def install(pins: Path, cgroup: Path, users: Users) -> None:
    """
    Load the program, attach it to a cgroup, and pin it for users until L{remove}.

    @param pins: the directory to create. A BPF file system is mounted there if it is not in one.
    @param cgroup: a directory of cgroup version 2.
    @raise OptionUnavailable: the installation failed; nothing is left behind.
    """
    requireCgroup(cgroup)
    if _isInstalled(pins):
        raise OptionUnavailable(f"the program is already installed at {pins}: see txrdma smc-option remove")
    if os.path.exists(pins):
        raise OptionUnavailable(f"{pins} exists, and remove would delete it: name another directory")
    loaded = load(cgroup)
    try:
        pins.mkdir(0o700)
        try:
            _pin(loaded, pins, users)
        except BaseException:
            _clear(pins)
            raise
    except OSError as error:
        raise OptionUnavailable(f"can't install at {pins}: {error}") from error
    finally:
        loaded.close()


def _pin(loaded: LoadedProgram, pins: Path, users: Users) -> None:
    """Give the program's objects names in a BPF file system, and rights to their users."""
    if not isBPF(pins):
        try:
            mountBPF(pins)
        except OSError as error:
            raise OptionUnavailable(
                f"can't mount a BPF file system at {pins}: {error.strerror}; without CAP_SYS_ADMIN name a "
                "directory in an existing one, such as --pins /sys/fs/bpf/txrdma"
            ) from error
    loaded.link.pin(pins / _LINK)
    loaded.sockets.pin(pins / SOCKETS)
    loaded.counters.pin(pins / _COUNTERS)
    users.grant(pins / SOCKETS, 6, 6)
    users.grant(pins / _COUNTERS, 6, 4)
    users.grant(pins, 7, 5)


def _isInstalled(pins: Path) -> bool:
    return any(os.path.lexists(pins / name) for name in NAMES)


def remove(pins: Path) -> None:
    """Undo L{install}; existing connections are not affected. Raises L{OptionUnavailable}."""
    try:
        if not _isInstalled(pins):
            raise OptionUnavailable(f"nothing is installed at {pins}")
        _clear(pins)
    except OSError as error:
        raise OptionUnavailable(f"can't remove {pins}: {error}") from error


def _detach(path: Path) -> None:
    try:
        link = bpf.BPFLink.pinned(path)
    except FileNotFoundError:
        return  # an earlier remove was interrupted
    try:
        link.detach()
    finally:
        link.close()


def _clear(pins: Path) -> None:
    _detach(pins / _LINK)
    for name in NAMES:
        (pins / name).unlink(missing_ok=True)
    if os.path.ismount(pins):
        unmount(pins)
    pins.rmdir()


@dataclass(frozen=True, slots=True)
class Installation:
    """
    The status of an installed program. Attributes that this user has no permission to read are None.

    @ivar pins: the directory.
    @ivar isInstalled: whether at least a part of it is installed.
    @ivar program: its number in the kernel, for C{bpftool prog show id}.
    @ivar cgroup: the directory of the cgroup.
    @ivar group: the number of the group whose users may use it.
    @ivar mode: permissions of the map of sockets, as C{"0660"}.
    @ivar counters: see L{COUNTERS}.
    @ivar isUsable: whether sockets of this process can use the option.
    @ivar why: why they can't.
    """

    pins: str
    isInstalled: bool
    program: int | None
    cgroup: str | None
    group: int | None
    mode: str | None
    counters: dict[str, int] | None
    isUsable: bool
    why: str


def inspect(pins: Path) -> Installation:
    """Return what is installed at a directory, and whether this process can use it."""
    program, cgroup, why = _attached(pins / _LINK)
    group = mode = None
    try:
        status = (pins / SOCKETS).stat()
        isInstalled, group, mode = True, status.st_gid, f"{status.st_mode & 0o777:04o}"
    except PermissionError:
        isInstalled = True  # the directory exists
    except OSError:
        isInstalled = os.path.lexists(pins / _LINK)
    carrier = openCarrier(pins, mayLoad=False)
    isUsable = carrier.isAvailable
    why = "" if isUsable else why or carrier.why
    carrier.close()
    counters = readCounters(pins)
    return Installation(str(pins), isInstalled, program, cgroup, group, mode, counters, isUsable, why)


def _attached(path: Path) -> tuple[int | None, str | None, str]:
    """Return the program's number and the cgroup's directory if they are visible, and an error or C{''}."""
    try:
        link = bpf.BPFLink.pinned(path)
    except OSError:
        return None, None, ""
    try:
        program, inode = link.information()
    except OSError:
        return None, None, ""
    finally:
        link.close()
    folder = cgroupByInode(inode)
    if folder is None:  # a removed cgroup may keep its inode for some time
        why = "its cgroup is gone or not mounted: run txrdma smc-option remove, then install for another"
        return program, None, why
    return program, str(folder), ""


def readCounters(pins: Path) -> dict[str, int] | None:
    """Return the counters of an installed program; None if there is none, or without permission."""
    try:
        counters = bpf.BPFMap.pinned(pins / _COUNTERS, bpf.READ_ONLY)
    except OSError:
        return None
    try:
        return countersIn(counters)
    except OSError:
        return None  # they are of another version
    finally:
        counters.close()


def countersIn(counters: bpf.BPFMap) -> dict[str, int]:
    """Read the counters of a program from its map, by the names of L{COUNTERS}."""
    numbers = memoryview(counters.get(0, 8 * len(COUNTERS))).cast("Q")
    return dict(zip(COUNTERS, numbers, strict=True))
