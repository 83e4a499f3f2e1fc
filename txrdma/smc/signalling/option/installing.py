"""
The program of the C{option} carrier installed for others: pinned in a file system of BPF, for a group.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from txrdma.smc.signalling.option import bpf
from txrdma.smc.signalling.option._program import COUNTERS
from txrdma.smc.signalling.option.carrier import openCarrier, SOCKETS
from txrdma.smc.signalling.option.loading import load, Loaded
from txrdma.smc.signalling.option.places import cgroupByNumber, isBPF, mountBPF, needCgroup, unmount
from txrdma.smc.signalling.option.reasons import OptionUnavailable

_LINK: Final = "link"
_COUNTERS: Final = "counters"
NAMES: Final = (_LINK, SOCKETS, _COUNTERS)
"""Names of what is pinned; the link comes first, so that the program ends with it."""


@dataclass(frozen=True, slots=True)
class Users:
    """
    The users who may mark their sockets, besides root.

    @ivar group: the number of a group, None for no such users.
    @ivar isEveryone: all users may.
    """

    group: int | None = None
    isEveryone: bool = False

    def mode(self, others: int) -> int:
        """The bits of a file's mode that give the users the rights C{others}: 0 to 7."""
        return (others << 3 if self.group is not None or self.isEveryone else 0) | others * self.isEveryone

    def give(self, path: Path, owner: int, others: int) -> None:
        """Give a file to root and the group: C{owner} and C{others} are rights from 0 to 7."""
        os.chown(path, 0, 0 if self.group is None else self.group)
        os.chmod(path, owner << 6 | self.mode(others))


def install(pins: Path, cgroup: Path, users: Users) -> None:
    """
    Load the program, attach it to a cgroup, and keep it under names for users, until L{remove}.

    @param pins: a directory that is made. If it is not in a file system of BPF, one is mounted there.
    @param cgroup: a directory of cgroup version 2.
    @raise OptionUnavailable: it can't be done; then nothing is left of it.
    """
    needCgroup(cgroup)
    if _holdsOurs(pins):
        raise OptionUnavailable(f"something is installed at {pins}: txrdma smc-option remove")
    if pins.exists():
        raise OptionUnavailable(f"{pins} exists, and would be removed in the end: name another directory")
    loaded = load(cgroup)
    try:
        pins.mkdir(0o700)
        try:
            _keep(loaded, pins, users)
        except BaseException:
            _clear(pins)
            raise
    except OSError as error:
        raise OptionUnavailable(f"can't install at {pins}: {error}") from error
    finally:
        loaded.close()


def _keep(loaded: Loaded, pins: Path, users: Users) -> None:
    if not isBPF(pins):
        try:
            mountBPF(pins)
        except OSError as error:
            raise OptionUnavailable(
                f"can't mount a file system of BPF at {pins}: {error.strerror}; without CAP_SYS_ADMIN name a "
                "directory that is to be in one, such as --pins /sys/fs/bpf/txrdma"
            ) from error
    loaded.link.pin(pins / _LINK)
    loaded.sockets.pin(pins / SOCKETS)
    loaded.counters.pin(pins / _COUNTERS)
    users.give(pins / SOCKETS, 6, 6)
    users.give(pins / _COUNTERS, 6, 4)
    users.give(pins, 7, 5)


def _holdsOurs(pins: Path) -> bool:
    return any(os.path.lexists(pins / name) for name in NAMES)


def remove(pins: Path) -> None:
    """
    Undo what L{install} has done there: sockets get no option any more; connections go on as they are.

    @raise OptionUnavailable: nothing is installed there, or it can't be removed.
    """
    try:
        if not _holdsOurs(pins):
            raise OptionUnavailable(f"nothing is installed at {pins}")
        _clear(pins)
    except OSError as error:
        raise OptionUnavailable(f"can't remove {pins}: {error}") from error


def _detach(path: Path) -> None:
    """Take the program off its cgroup, if there is one."""
    try:
        link = bpf.Link.pinned(path)
    except FileNotFoundError:
        return  # a part of it was removed before
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
    An installed program, as far as this user may see it.

    @ivar pins: the directory.
    @ivar isInstalled: something of it is there.
    @ivar program: its number in the kernel, for C{bpftool prog show id}; None when this user may not see it.
    @ivar cgroup: the directory of the cgroup it is attached to; None when this user may not see it.
    @ivar group: the number of the group whose users may use it.
    @ivar mode: rights on the map of sockets, as C{"0660"}.
    @ivar counters: how often it did what, see L{COUNTERS}; None when this user may not see it.
    @ivar isUsable: sockets of this process can have the option by it.
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


def look(pins: Path) -> Installation:
    """Say what is installed at a directory, and whether this process can use it."""
    program, cgroup, why = _attached(pins / _LINK)
    group = mode = None
    try:
        rights = (pins / SOCKETS).stat()
        isInstalled, group, mode = True, rights.st_gid, f"{rights.st_mode & 0o777:04o}"
    except PermissionError:
        isInstalled = True  # as much as one can say: the directory is closed to us
    except OSError:
        isInstalled = os.path.lexists(pins / _LINK)
    carrier = openCarrier(pins, mayLoad=False)
    isUsable = carrier.isAvailable
    why = "" if isUsable else why or carrier.why
    carrier.close()
    counters = readCounters(pins)
    return Installation(str(pins), isInstalled, program, cgroup, group, mode, counters, isUsable, why)


def _attached(path: Path) -> tuple[int | None, str | None, str]:
    """The program's number and the cgroup's directory, as far as they are seen, and what is wrong there."""
    try:
        link = bpf.Link.pinned(path)
    except OSError:
        return None, None, ""
    try:
        program, number = link.information()
    except OSError:
        return None, None, ""
    finally:
        link.close()
    folder = cgroupByNumber(number)
    if folder is None:  # a cgroup keeps its number for a moment when it goes
        why = "its cgroup is gone, or not to be seen here: txrdma smc-option remove, install for another"
        return program, None, why
    return program, str(folder), ""


def readCounters(pins: Path) -> dict[str, int] | None:
    """Counters of an installed program; None when this user may not see them, or it is not there."""
    try:
        counters = bpf.BPFMap.pinned(pins / _COUNTERS, bpf.READ_ONLY)
    except OSError:
        return None
    try:
        return countersIn(counters)
    finally:
        counters.close()


def countersIn(counters: bpf.BPFMap) -> dict[str, int]:
    """Counters of a program, read from its map; the names are those of L{COUNTERS}."""
    numbers = memoryview(counters.get(0, 8 * len(COUNTERS))).cast("Q")
    return dict(zip(COUNTERS, numbers, strict=True))
