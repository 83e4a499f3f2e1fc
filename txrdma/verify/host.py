"""Reads a host's files below a root folder: C{/sys}, C{/proc}, C{/dev}. Nothing is written."""

from __future__ import annotations

import os
import re
from collections.abc import Callable
from pathlib import Path
from typing import Final

from txrdma.error import DeviceUnavailable
from txrdma.ports import devices, RDMADevice
from txrdma.verbs.pyverbs.bindings import loadPyverbs

UNLIMITED: Final = 1 << 63
"""The value of a limit that is not set."""

_CONTAINERS: Final = (".dockerenv", "run/.containerenv")
_LIBRARIES: Final = ("usr/lib", "usr/lib64", "lib", "lib64", "usr/lib/*-linux-*")
_PYTHONS: Final = ("usr/lib/python3/dist-packages", "usr/lib*/python3.*/site-packages")
_INSTALLERS: Final = (
    ("usr/bin/apt-get", "sudo apt-get install python3-pyverbs ibverbs-providers"),
    ("usr/bin/dnf", "sudo dnf install python3-pyverbs"),
    ("usr/bin/zypper", "sudo zypper install python3-pyverbs"),
)
_LIBRARY: Final = re.compile(r"libibverbs\.so\.1\.\d+\.(\d+)\.")


def openError(path: Path) -> OSError | None:
    """
    Open a device file for reading and writing, close it, and return the error if that fails.

    For verbs, management datagrams and the connection manager this allocates resources until it is closed.
    """
    try:
        os.close(os.open(path, os.O_RDWR | os.O_CLOEXEC | os.O_NONBLOCK))
    except OSError as error:
        return error
    return None


def pyverbsError() -> str:
    """Return why pyverbs cannot be imported; empty if it can."""
    try:
        loadPyverbs()
    except DeviceUnavailable as error:
        return str(error.__cause__ or error)
    return ""


class Host:
    """
    A host's configuration, read from files below a root folder.

    @ivar root: C{/}, or a folder with a recorded tree.
    @ivar openError: returns the error of opening a device file, or None.
    @ivar pyverbsError: returns why pyverbs cannot be imported, or an empty text.
    """

    def __init__(
        self,
        root: Path = Path("/"),
        openError: Callable[[Path], OSError | None] = openError,
        pyverbsError: Callable[[], str] = pyverbsError,
        environment: dict[str, str] | None = None,
    ) -> None:
        self.root = root
        self.openError = openError
        self.pyverbsError = pyverbsError
        self.environment = dict(os.environ) if environment is None else environment

    def text(self, path: str) -> str:
        """Return the text of a file, stripped; empty if it cannot be read."""
        try:
            return (self.root / path).read_text(errors="replace").strip()
        except OSError:
            return ""

    def number(self, path: str) -> int | None:
        """Return the decimal number in a file; None if there is none."""
        text = self.text(path)
        return int(text) if text.isdecimal() else None

    def has(self, path: str) -> bool:
        """Return whether a file or folder exists."""
        return os.path.lexists(self.root / path)

    def names(self, path: str) -> list[str]:
        """Return the sorted names in a folder; none if it cannot be read."""
        try:
            return sorted(os.listdir(self.root / path))
        except OSError:
            return []

    def devices(self) -> list[RDMADevice]:
        """Return the RDMA devices of the kernel."""
        return devices(self.root / "sys")

    @property
    def release(self) -> tuple[int, ...]:
        """The first two numbers of the kernel's release; empty if unknown."""
        found = re.match(r"(\d+)\.(\d+)", self.text("proc/sys/kernel/osrelease"))
        return tuple(map(int, found.groups())) if found else ()

    @property
    def isContainer(self) -> bool:
        return any(self.has(path) for path in _CONTAINERS)

    def limit(self, name: str) -> int | None:
        """Return a soft limit of this process by its name in C{/proc/self/limits}; None if unknown."""
        for line in self.text("proc/self/limits").splitlines():
            if line.startswith(name):
                value = line[len(name) :].split()[0]
                return UNLIMITED if value == "unlimited" else int(value)
        return None

    def status(self, name: str) -> str:
        """Return a field of C{/proc/self/status}; empty if unknown."""
        for line in self.text("proc/self/status").splitlines():
            if line.startswith(f"{name}:"):
                return line.partition(":")[2].strip()
        return ""

    @property
    def user(self) -> int | None:
        """The effective user ID of this process."""
        fields = self.status("Uid").split()
        return int(fields[1]) if len(fields) > 1 else None

    @property
    def capabilities(self) -> int:
        """The effective capabilities of this process; 0 if unknown."""
        return int(self.status("CapEff") or "0", 16)

    @property
    def memoryLimit(self) -> int | None:
        """The smallest C{memory.max} of this process's control group (version 2) and its ancestors."""
        line = next(
            (each for each in self.text("proc/self/cgroup").splitlines() if each.startswith("0::")), ""
        )
        folder = Path("sys/fs/cgroup", line.removeprefix("0::").strip("/"))
        limits = [self.number(str(each / "memory.max")) for each in (folder, *folder.parents)]
        return min((limit for limit in limits if limit is not None), default=None)

    @property
    def verbsRelease(self) -> int | None:
        """The release of rdma-core of the installed libibverbs; None if it is unknown."""
        releases = [
            int(found[1])
            for pattern in _LIBRARIES
            for path in self.root.glob(f"{pattern}/libibverbs.so.1.*")
            if (found := _LIBRARY.match(path.name))
        ]
        return max(releases, default=None)

    @property
    def hasDistributionsPyverbs(self) -> bool:
        """Whether pyverbs is installed for the distribution's Python."""
        return any(True for pattern in _PYTHONS for _ in self.root.glob(f"{pattern}/pyverbs"))

    @property
    def installCommand(self) -> str:
        """The command that installs pyverbs."""
        for path, command in _INSTALLERS:
            if self.has(path):
                return command
        return "pip install 'txrdma[verbs]'"
