"""Requirements of the lab on this machine, and how to install them."""

from __future__ import annotations

import glob
import os
import platform
import shlex
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path

_QUIETLY = Path(__file__).resolve().parent.parent / "tools" / "quietly"

SEARCHED = os.environ.get("LAB_PATH") or os.environ.get("PATH", os.defpath) + ":/usr/sbin:/sbin"
"""Search path of programs: an unprivileged user's C{PATH} often lacks C{sbin}."""

PROGRAMS = {
    "qemu-system-x86_64": "qemu-system-x86",
    "busybox": "busybox-static",
    "depmod": "kmod",
    "modprobe": "kmod",
    "ip": "iproute2",
    "rdma": "iproute2",
    "tc": "iproute2",
}
"""Programs that a guest requires, and their packages."""

TEST_PROGRAMS = {
    "ibv_devinfo": "ibverbs-utils",
    "ibv_rc_pingpong": "ibverbs-utils",
    "rping": "rdmacm-utils",
    "tcpdump": "tcpdump",
    "cc": "gcc",
    "curl": "curl",
    "iperf3": "iperf3",
    "ib_write_bw": "perftest",
}
TEST_FILES = {
    "/etc/libibverbs.d/rxe.driver": "ibverbs-providers",
    "/usr/lib/python3/dist-packages/pyverbs/__init__.py": "python3-pyverbs",
    "/etc/rdma/modules": "rdma-core",
    "/usr/include/stdio.h": "libc6-dev",
}
"""Files that the suites require, and their packages."""


class Unavailable(Exception):
    """A guest cannot run here; the text is the reason, in one line."""


def find(program: str) -> str:
    """Return the path of a program, or raise L{Unavailable} with its package."""
    found = shutil.which(program, path=SEARCHED)
    if found is None:
        package = PROGRAMS.get(program, program)
        raise Unavailable(f"there is no {program}: apt-get install {package}")
    return found


def output(*command: str | Path, cwd: Path | None = None) -> str:
    """Return the output of a command, or raise L{Unavailable}."""
    words = [str(word) for word in command]
    try:
        done = subprocess.run(words, cwd=cwd, stdin=subprocess.DEVNULL, capture_output=True, text=True)
    except OSError as error:
        raise Unavailable(f"{words[0]}: {error.strerror}") from error
    if done.returncode:
        errors = done.stderr.strip().splitlines()[-1:] or [f"ended with {done.returncode}"]
        raise Unavailable(f"{shlex.join(words[:3])}...: {errors[0]}")
    return done.stdout


def missingPackages() -> list[str]:
    """Return the missing packages of the kernel suites."""
    wanted = {p for name, p in {**PROGRAMS, **TEST_PROGRAMS}.items() if not shutil.which(name, path=SEARCHED)}
    wanted |= {p for pattern, p in TEST_FILES.items() if not glob.glob(pattern)}
    return sorted(wanted)


def install(packages: list[str]) -> None:
    """Install packages by apt, as root; packages that fail remain missing."""
    environment = {**os.environ, "DEBIAN_FRONTEND": "noninteractive"}
    for words in (["update"], ["install", "-y", "--no-install-recommends", *packages]):
        subprocess.run([_QUIETLY, "apt-get", "-qq", *words], stdin=subprocess.DEVNULL, env=environment)


def ensure() -> None:
    """Check all requirements of the kernel suites, or raise L{Unavailable}."""
    if platform.machine() != "x86_64" or platform.system() != "Linux":
        raise Unavailable(f"it wants Linux on x86-64, this is {platform.system()} on {platform.machine()}")
    have(missingPackages)


def have(missingPackages: Callable[[], list[str]]) -> None:
    """Install what is missing, or raise L{Unavailable}."""
    missing = missingPackages()
    hasApt = shutil.which("apt-get") is not None
    if missing and hasApt and os.geteuid() == 0:
        print(f"kernel: installing {' '.join(missing)}", flush=True)
        install(missing)
        missing = missingPackages()
    if missing:
        how = "missing: apt-get install" if hasApt else "missing, in Debian's words:"
        raise Unavailable(" ".join([how, *missing]))
