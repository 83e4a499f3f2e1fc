"""
A control group of Linux that limits the processor time of the processes of a measurement.

See Documentation/admin-guide/cgroup-v2.rst of Linux (C{cpu.max}), and for version 1
Documentation/scheduler/sched-bwc.rst (C{cpu.cfs_quota_us}).
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

ROOT: Final = Path("/sys/fs/cgroup")
_PERIOD_US: Final = 100_000


class NoControlGroup(Exception):
    """No control group can limit processor time here."""


@contextmanager
def limitedGroup(share: float, root: Path = ROOT) -> Iterator[Path]:
    """
    Create a control group whose processes get this share of one processor, and remove it with the block.

    @return: its file C{cgroup.procs}, to which process IDs are written.
    @raise NoControlGroup: the controller is missing, or not writable.
    """
    quota = round(share * _PERIOD_US)
    try:
        if (root / "cgroup.controllers").exists():
            (root / "cgroup.subtree_control").write_text("+cpu")
            group = root / f"txrdma-bench-{os.getpid()}"
            limits = {"cpu.max": f"{quota} {_PERIOD_US}"}
        else:
            group = root / "cpu" / f"txrdma-bench-{os.getpid()}"
            limits = {"cpu.cfs_period_us": f"{_PERIOD_US}", "cpu.cfs_quota_us": f"{quota}"}
        group.mkdir()
    except OSError as error:
        raise NoControlGroup(f"no control group can be created: {error}") from error
    try:
        try:
            for name, text in limits.items():
                (group / name).write_text(text)
        except OSError as error:
            raise NoControlGroup(f"processor time cannot be limited: {error}") from error
        yield group / "cgroup.procs"
    finally:
        group.rmdir()  # empty: its processes have ended
