"""
Runs the two processes of programs over one route, and collects the clients' results, exit codes and logs.
"""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import tempfile
import threading
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import count
from pathlib import Path
from typing import Any, Final, IO

from txrdma.test.support.processes import CHECKOUT
from txrdma.testing.streams.certificate import makeCertificate
from txrdma.testing.streams.provider import Provider

PATIENCE_SECONDS: Final = 120.0
_addresses: Iterator[int] = count(1)
_ERRORS: Final = re.compile(r"^\s*Traceback|Warning:", re.MULTILINE)


@dataclass
class Played:
    """
    The results of programs.

    @ivar saw: the result of each client that returned one, by the program's name.
    @ivar servedBy: the routes of the connections of each program, at both ends.
    @ivar ends: exit codes of the processes, or negative signal numbers.
    @ivar logs: the logs of the processes.
    """

    saw: dict[str, object] = field(default_factory=dict)
    servedBy: defaultdict[str, set[str]] = field(default_factory=lambda: defaultdict(set))
    ends: dict[str, int] = field(default_factory=dict)
    logs: dict[str, str] = field(default_factory=dict)

    @property
    def errors(self) -> dict[str, int]:
        """Return the number of lines with errors in each log."""
        return {name: len(_ERRORS.findall(log)) for name, log in self.logs.items()}


class _Process:
    def __init__(self, what: str, folder: Path, strings: dict[str, str]) -> None:
        environment = {**os.environ, "PYTHONPATH": str(CHECKOUT)}
        words = ["-m", "txrdma.test.system.foreign.running", what, str(folder), json.dumps(strings)]
        self._log = open(folder / f"{what}.log", "w+")
        self._process = subprocess.Popen(
            [sys.executable, *words], stdout=subprocess.PIPE, stderr=self._log, env=environment, text=True
        )
        self._timer = threading.Timer(PATIENCE_SECONDS, self._process.kill)
        self._timer.start()

    def output(self) -> Iterator[dict[str, Any]]:
        """Return what the process prints until it ends."""
        out: IO[str] | None = self._process.stdout
        assert out is not None
        for line in out:
            if line.startswith("{"):
                yield json.loads(line)

    def end(self, number: int | None = None) -> tuple[int, str]:
        """Wait for the end of the process, after a signal if one is given; return exit code and log."""
        if number is not None and self._process.poll() is None:
            self._process.send_signal(number)
        code = self._process.wait()
        self._timer.cancel()
        assert self._process.stdout is not None
        self._process.stdout.close()
        with self._log as log:
            log.seek(0)
            return code, log.read()


def play(names: Sequence[str], provider: Provider) -> Played:
    """Run programs over one route: all servers in one process, and one client after the other in another."""
    number = next(_addresses)
    address = f"127.{os.getpid() % 199 + 20}.{number // 250}.{number % 250 + 1}"
    played = Played()
    with tempfile.TemporaryDirectory() as made:
        folder = Path(made)
        (folder / "server.pem").write_bytes(makeCertificate())
        server = _Process("serve", folder, dict.fromkeys(names, provider.listen.format(address=address)))
        reading = server.output()
        ports: dict[str, int] = next((output["ports"] for output in reading if "ports" in output), {})
        if ports:
            strings = {
                name: provider.connect.format(address=address, port=port) for name, port in ports.items()
            }
            client = _Process("use", folder, strings)
            for output in client.output():
                if "servedBy" in output:
                    played.servedBy[output["program"]].add(output["servedBy"])
                else:
                    played.saw[output["program"]] = output["saw"]
            played.ends["use"], played.logs["use"] = client.end()
        rest: list[dict[str, Any]] = []
        reader = threading.Thread(target=lambda: rest.extend(reading))
        reader.start()
        played.ends["serve"], played.logs["serve"] = server.end(signal.SIGTERM)
        reader.join()
        for output in rest:
            played.servedBy[output["program"]].add(output["servedBy"])
    return played


def differences(ours: Played, tcp: Played, route: Provider, names: Sequence[str]) -> list[str]:
    """Return a description of the differences between a route and TCP."""
    found = []
    log = ours.logs.get("use", ours.logs["serve"])[-2000:]
    for name in names:
        if name not in tcp.saw:
            found.append(f"over TCP {name} fails, too: {tcp.logs.get('use', '')[-2000:]}")
        one, other = ours.saw.get(name), tcp.saw.get(name)
        if one != other:
            found.append(f"the client of {name} saw {one!r:.500}; over TCP {other!r:.500}; its log: {log}")
        if route.served not in ours.servedBy[name]:
            found.append(f"{name} was served by {sorted(ours.servedBy[name])}, not by {route.served}")
    if ours.ends != tcp.ends:
        found.append(f"the processes ended so: {ours.ends}; over TCP {tcp.ends}")
    for what, number in ours.errors.items():
        if number > tcp.errors[what]:
            found.append(f"errors in the log of {what}: {ours.logs[what][-2000:]}")
    return found
