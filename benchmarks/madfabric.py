"""A running ibsim on its own core, with Debian's tools, and counters of sent datagrams."""

from __future__ import annotations

import os
import re
import resource
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from benchmarks.measuring import MeasurementFailed, TIMEOUT_SECONDS
from txrdma.sim.nets.fattree import fatTree

_SENT = re.compile(r"PortXmitPkts:\.*(\d+)")


def missing() -> str:
    """Return why ibsim cannot run here, or an empty text."""
    from txrdma.test.system.ibsim import PROGRAMS  # an installed package has no tests

    path = os.environ.get("PATH", "") + ":/usr/sbin:/sbin"
    without = [name for name in (*PROGRAMS, "perfquery") if shutil.which(name, path=path) is None]
    return f"there is no {without[0]}: see tools/have-ibsim" if without else ""


def cores() -> tuple[int, int]:
    """Return the cores of the simulator and of the measured process."""
    first, second = sorted(os.sched_getaffinity(0))[:2]
    return first, second


@contextmanager
def pinned(core: int) -> Iterator[None]:
    """Pin processes started in this block to one core."""
    before = os.sched_getaffinity(0)
    os.sched_setaffinity(0, {core})
    try:
        yield
    finally:
        os.sched_setaffinity(0, before)


@dataclass(frozen=True)
class Ran:
    """Wall time and CPU time of a command in seconds, and its output."""

    seconds: float
    cpu: float
    output: str


class BenchFabric:
    """
    A fat tree in ibsim, on the first core; it has no subnet manager unless OpenSM is requested.

    @ivar hosts: the nodes to which programs attach.
    """

    def __init__(self, hosts: int, radix: int = 36, isManaged: bool = False) -> None:
        """@param radix: ports of each switch."""
        from txrdma.test.system.ibsim.fabric import Ibsim

        with pinned(cores()[0]):
            self._ibsim = Ibsim(fatTree(hosts, radix).text(), isManaged)
        self.hosts = [f"h{number:05}" for number in range(hosts)]

    def __enter__(self) -> BenchFabric:
        return self

    def __exit__(self, *_: object) -> None:
        self._ibsim.stop()

    def environment(self, host: str) -> dict[str, str]:
        """Return the environment of a program attached to that host."""
        here = str(Path(__file__).parent.parent)
        return {**self._ibsim.environment, "SIM_HOST": host, "PYTHONPATH": here}

    def run(self, command: list[str], host: str) -> Ran:
        """
        Run a command on the second core.

        @raise MeasurementFailed: the command failed.
        """
        program = shutil.which(command[0], path=self._ibsim.environment["PATH"])
        environment = self.environment(host)
        with pinned(cores()[1]), open(self._ibsim.folder / "output", "w+b") as file:
            before = resource.getrusage(resource.RUSAGE_CHILDREN)
            begun = time.perf_counter()
            done = subprocess.run(
                [program or command[0], *command[1:]],
                cwd=self._ibsim.folder,
                env=environment,
                stdin=subprocess.DEVNULL,
                stdout=file,
                stderr=subprocess.PIPE,
                timeout=TIMEOUT_SECONDS,
            )
            seconds = time.perf_counter() - begun
            after = resource.getrusage(resource.RUSAGE_CHILDREN)
            file.seek(0)
            output = file.read().decode(errors="replace")
        if done.returncode:
            complaint = done.stderr.decode(errors="replace").strip()[-200:]
            raise MeasurementFailed(f"{command[0]} ended with {done.returncode}: {complaint}")
        cpu = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
        return Ran(seconds, cpu, output)

    def reference(self, settings: list[str], host: str) -> Ran:
        """Run C{ibnetdiscover}."""
        return self.run(["ibsim-run", "ibnetdiscover", *settings], host)

    def tested(self, host: str, *command: str) -> Ran:
        """Run C{txrdma discover}, or another command."""
        script = Path(sys.executable).with_name("txrdma")
        program = [str(script)] if script.exists() else [sys.executable, "-m", "txrdma"]
        return self.run([*program, *(command or ("discover",)), "--device", "ibsim"], host)

    def name(self, host: str) -> None:
        """Assign a LID to the host's port; its counters are read by LID, and there is no subnet manager."""
        self.tested(host, *"query SubnSet PortInfo --change --yes --modifier 1 lid=1".split())

    def sent(self, host: str) -> int:
        """Return the number of datagrams sent by the host's port, which ibsim counts and perfquery reads."""
        found = _SENT.search(self._ibsim.run("perfquery", "-x", host=host))
        if found is None:
            raise MeasurementFailed("perfquery does not report PortXmitPkts")
        return int(found[1])
