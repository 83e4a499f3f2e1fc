"""
Restrict this process like restricted machines, and execute a command.

C{python -m txrdma.test.support.restrictions NAME... -- COMMAND...}; the names are those of L{RESTRICTIONS}.
Those that change mounts or networks need a new namespace of that kind, which the program creates as root.
"""

from __future__ import annotations

import ctypes
import errno
import os
import platform
import resource
import socket
import struct
import sys
from collections.abc import Callable
from typing import Final

_NEW_MOUNTS: Final = 0x20000
_NEW_NET: Final = 0x40000000
_MS_RDONLY, _MS_REMOUNT, _MS_BIND, _MS_REC, _MS_PRIVATE = 1, 32, 4096, 16384, 1 << 18
_PR_SET_SECCOMP, _PR_SET_NO_NEW_PRIVS, _FILTER = 22, 38, 2

_libc = ctypes.CDLL(None, use_errno=True)


def _check(result: int, what: str) -> None:
    if result:
        code = ctypes.get_errno()
        raise OSError(code, f"{what}: {os.strerror(code)}")


def _mount(source: str, target: str, kind: str, flags: int, data: str = "") -> None:
    words = (each.encode() for each in (source, target, kind))
    _check(_libc.mount(*words, ctypes.c_ulong(flags), data.encode()), f"mount {target}")


def _unshareMounts() -> None:
    _check(_libc.unshare(_NEW_MOUNTS), "unshare")
    _mount("none", "/", "none", _MS_REC | _MS_PRIVATE)


def noProc() -> None:
    """Hide C{/proc}, as in a C{chroot} without it."""
    _unshareMounts()
    _mount("none", "/proc", "tmpfs", _MS_RDONLY)


COVERED: Final = ("/tmp", "/run", "/dev/shm", "/var/tmp")
"""Folders that L{readOnly} replaces by empty ones."""


def readOnly() -> None:
    """Make the root file system and usually writable folders read-only, as with C{docker run --read-only}."""
    _unshareMounts()
    _mount("/", "/", "none", _MS_BIND | _MS_REC)
    os.chroot("/")
    for folder in COVERED:
        if os.path.isdir(folder):
            _mount("none", folder, "tmpfs", _MS_RDONLY)
    _mount("none", "/", "none", _MS_BIND | _MS_REMOUNT | _MS_RDONLY)


def smallShm() -> None:
    """Give C{/dev/shm} 64 KiB, the smallest size that is used with C{docker run --shm-size}."""
    _unshareMounts()
    _mount("none", "/dev/shm", "tmpfs", 0, "size=64k")


def noIPv6() -> None:
    """Disable IPv6 in a new network namespace that has the loopback interface."""
    _check(_libc.unshare(_NEW_NET), "unshare")
    for name in ("all", "default", "lo"):
        with open(f"/proc/sys/net/ipv6/conf/{name}/disable_ipv6", "w") as file:
            file.write("1")
    os.system("ip link set lo up")


def docker() -> None:
    """Deny the system calls that Docker's default seccomp profile denies to containers without privileges."""
    if platform.machine() != "x86_64":
        raise OSError("the numbers of the system calls are those of x86-64")
    refuse(_DENIED)


def noSharedObjects() -> None:
    """Deny memfd_create, eventfd2 and pidfd_open, which strict profiles deny in addition."""
    docker()
    refuse({319: 1, 290: 1, 434: 1})


_DENIED: Final = {
    # number of x86-64: error (1: EPERM, 38: ENOSYS, so that libc falls back)
    **dict.fromkeys((101, 310, 311, 312, 321, 298, 323, 425, 426, 427), 1),
    # ptrace, process_vm_readv and _writev, kcmp, bpf, perf_event_open, userfaultfd, io_uring_*
    **dict.fromkeys((165, 166, 155, 161, 272, 308, 303, 304, 248, 249, 250, 438, 169, 103), 1),
    # mount, umount2, pivot_root, chroot, unshare, setns, name_to_handle_at, open_by_handle_at, *_key, keyctl,
    # pidfd_getfd, reboot, syslog
    **dict.fromkeys((175, 176, 313, 246, 134, 163, 164, 227, 305, 237, 238, 239, 256, 279), 1),
    # *_module, kexec_load, uselib, acct, settimeofday, clock_settime, mbind, *_mempolicy, move_pages
    435: 38,  # clone3
}


def onlyInternet() -> None:
    """Deny sockets of other families than those of IP, as C{RestrictAddressFamilies=} of systemd can do."""
    _install(
        [
            (0x20, 0, 0, 0),  # load the number
            (0x15, 0, 4, 41),  # not socket: allow
            (0x20, 0, 0, 16),  # load the family
            (0x15, 2, 0, socket.AF_INET),
            (0x15, 1, 0, socket.AF_INET6),
            (0x06, 0, 0, 0x50000 | errno.EAFNOSUPPORT),
            _ALLOW,
        ]
    )


_Instruction = tuple[int, int, int, int]
_ALLOW: Final[_Instruction] = (0x06, 0, 0, 0x7FFF0000)


def refuse(denied: dict[int, int]) -> None:
    """Let system calls of these numbers fail with these errors, by a filter of this process."""
    program: list[_Instruction] = [(0x20, 0, 0, 0)]  # load the number
    for number, error in denied.items():
        program += [(0x15, 0, 1, number), (0x06, 0, 0, 0x50000 | error)]
    _install([*program, _ALLOW])


def _install(program: list[_Instruction]) -> None:
    """Install a filter of system calls in this process: instructions of classic BPF."""
    code = ctypes.create_string_buffer(b"".join(struct.pack("=HBBI", *each) for each in program))
    filters = struct.pack("HxxxxxxP", len(program), ctypes.addressof(code))
    _check(_libc.prctl(_PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0), "prctl")
    _check(_libc.prctl(_PR_SET_SECCOMP, _FILTER, filters, 0, 0), "prctl")


def fewDescriptors() -> None:
    """C{ulimit -n 64}."""
    resource.setrlimit(resource.RLIMIT_NOFILE, (64, 64))


def noLockedMemory() -> None:
    """C{ulimit -l 0}."""
    resource.setrlimit(resource.RLIMIT_MEMLOCK, (0, 0))


def bare() -> None:
    """No compiler and no other program on C{PATH}, no home, no terminal and no locale."""
    kept = {name: os.environ[name] for name in ("PYTHONPATH", "RESTRICTED_UID") if name in os.environ}
    os.environ.clear()
    os.environ.update(kept, PATH="/nowhere")


def likePyPy() -> None:
    """Let the program remove what PyPy's standard library lacks."""
    os.environ["RESTRICTED_PYTHON"] = "1"


def unknownUser() -> None:
    """Let the program become a user without an entry in C{/etc/passwd}, and without a home."""
    bare()
    os.environ["RESTRICTED_UID"] = "54321"


RESTRICTIONS: Final[dict[str, Callable[[], None]]] = {
    each.__name__: each
    for each in (
        noProc,
        readOnly,
        smallShm,
        noIPv6,
        docker,
        noSharedObjects,
        fewDescriptors,
        noLockedMemory,
        onlyInternet,
        bare,
        unknownUser,
        likePyPy,
    )
}
"""Restrictions by name."""


def main(words: list[str]) -> None:
    """Apply restrictions, and execute the command behind C{--}."""
    end = words.index("--")
    for name in words[:end]:
        RESTRICTIONS[name]()
    os.execv(words[end + 1], words[end + 1 :])


if __name__ == "__main__":
    main(sys.argv[1:])
