"""
C{txrdma verify} changes nothing on the host that it checks.

It runs as root, which could change everything, in namespaces of its own, where nobody else does.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from twisted.trial.unittest import SkipTest, SynchronousTestCase

from txrdma.test.support.namespaces import reasonToSkip

COUNTERS = ("fs/aio-nr", "fs/dentry-state", "fs/file-nr", "fs/inode-", "kernel/ns_last_pid", "kernel/random/")
"""Beginnings of the files below C{/proc/sys} that are no settings: the kernel counts in them."""

FOLDERS = ("/tmp", "/run", "/dev/shm")

NAMESPACES = ("unshare", "--mount", "--net", "--ipc", "--propagation", "private", "--")


def settings() -> dict[str, bytes]:
    """Return the contents of C{/proc/sys}."""
    found = {}
    root = Path("/proc/sys")
    for path in root.rglob("*"):
        name = str(path.relative_to(root))
        if path.is_file() and not name.startswith(COUNTERS):
            try:
                found[name] = path.read_bytes()
            except OSError:
                continue  # some can only be written
    return found


def state() -> dict[str, object]:
    """Return what programs can change on a host: settings, networks, mounts, RDMA devices, and files."""
    commands = {
        "addresses": ("ip", "-details", "address"),
        "routes": ("ip", "route", "show", "table", "all"),
        "routes of IPv6": ("ip", "-6", "route", "show", "table", "all"),
        "rules": ("ip", "rule"),
        "neighbours": ("ip", "neighbour"),
    }
    found: dict[str, object] = {
        name: subprocess.run(words, capture_output=True, check=True, text=True).stdout
        for name, words in commands.items()
    }
    mounts = Path("/proc/self/mounts").read_text().splitlines()
    # Without network namespaces, which other processes create and remove.
    found["mounts"] = [line for line in mounts if not line.startswith("nsfs ")]
    found["modules"] = sorted(os.listdir("/sys/module"))
    found["settings"] = settings()
    found["files"] = sorted(str(path) for folder in FOLDERS for path in Path(folder).rglob("*"))
    return found


def main() -> None:
    """Mount empty folders, run the command, and print what it has changed."""
    for folder in FOLDERS:
        subprocess.run(("mount", "-t", "tmpfs", "tmpfs", folder), check=True)
    subprocess.run(("ip", "link", "set", "lo", "up"), check=True)
    before = state()
    command = (sys.executable, "-m", "txrdma", "verify", "--quick", "--output", "-")
    done = subprocess.run(command, cwd="/", capture_output=True, text=True)
    after = state()
    print(done.stdout, done.stderr, sep="\n")
    changed = {name: (before[name], after[name]) for name in before if before[name] != after[name]}
    print("changed:", changed)
    sys.exit(done.returncode or bool(changed))


class UnchangedTests(SynchronousTestCase):
    """Addresses, routes, mounts, modules, settings of the kernel, and files are the same afterwards."""

    slowBecause = "the command checks the whole package"

    def test_unchanged(self) -> None:
        if reason := reasonToSkip():
            raise SkipTest(reason)
        path = os.pathsep.join(filter(None, map(os.path.abspath, sys.path)))
        done = subprocess.run(
            (*NAMESPACES, sys.executable, "-m", __name__),
            env={**os.environ, "PYTHONPATH": path},
            capture_output=True,
            text=True,
        )
        self.assertEqual(done.returncode, 0, done.stdout + done.stderr)
        self.assertRegex(done.stdout, r"(?m)^changed: \{\}$")
        for part in ("verbs", "rdma", "btl", "mad", "streams", "peer"):
            self.assertRegex(done.stdout, rf"(?m)^{part} +[1-9]\d* +0 ")


if __name__ == "__main__":
    main()
