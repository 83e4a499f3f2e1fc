"""
Runs a program's two processes over one route, and collects the client's result, exit codes and logs.
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
from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import count
from pathlib import Path
from typing import Any, Final, IO

from txrdma.test.support.processes import CHECKOUT
from txrdma.testing.streams.certificate import makeCertificate
from txrdma.testing.streams.provider import Provider

PATIENCE_SECONDS: Final = 60.0
_addresses: Iterator[int] = count(1)
_ERRORS: Final = re.compile(r"^\s*Traceback|Warning:", re.MULTILINE)


@dataclass
class Played:
    """
    The result of a program.

    @ivar saw: the client's result, or None if it did not return one.
    @ivar servedBy: the routes of its connections, at both ends.
    @ivar ends: exit codes of the processes, or negative signal numbers.
    @ivar logs: the logs of the processes.
    """

    saw: object = None
    servedBy: set[str] = field(default_factory=set)
    ends: dict[str, int] = field(default_factory=dict)
    logs: dict[str, str] = field(default_factory=dict)

    @property
    def errors(self) -> dict[str, int]:
        """Return the number of lines with errors in each log."""
        return {name: len(_ERRORS.findall(log)) for name, log in self.logs.items()}


class _Process:
    def __init__(self, name: str, what: str, string: str, folder: Path) -> None:
        environment = {**os.environ, "PYTHONPATH": str(CHECKOUT)}
        words = ["-m", "txrdma.test.system.foreign.running", name, what, string, str(folder)]
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


def play(name: str, provider: Provider) -> Played:
    """Run a program over one route."""
    number = next(_addresses)
    address = f"127.{os.getpid() % 199 + 20}.{number // 250}.{number % 250 + 1}"
    played = Played()
    with tempfile.TemporaryDirectory() as made:
        folder = Path(made)
        (folder / "server.pem").write_bytes(makeCertificate())
        server = _Process(name, "serve", provider.listen.format(address=address), folder)
        reading = server.output()
        port = None
        for output in reading:
            if "port" in output:
                port = output["port"]
                break
        if port is not None:
            string = provider.connect.format(address=address, port=port)
            client = _Process(name, "use", string, folder)
            for output in client.output():
                if "servedBy" in output:
                    played.servedBy.add(output["servedBy"])
                else:
                    played.saw = output["saw"]
            played.ends["use"], played.logs["use"] = client.end()
        reader = threading.Thread(
            target=lambda: played.servedBy.update(
                output["servedBy"] for output in reading if "servedBy" in output
            )
        )
        reader.start()
        played.ends["serve"], played.logs["serve"] = server.end(signal.SIGTERM)
        reader.join()
    return played


def differences(ours: Played, tcp: Played, route: Provider) -> list[str]:
    """Return a description of the differences between a route and TCP."""
    found = []
    if tcp.saw is None:
        found.append(f"over TCP it fails, too: {tcp.logs.get('use', '')[-2000:]}")
    if ours.saw != tcp.saw:
        log = ours.logs.get("use", ours.logs["serve"])[-2000:]
        found.append(f"the client saw {ours.saw!r:.500}; over TCP {tcp.saw!r:.500}; its log: {log}")
    if ours.ends != tcp.ends:
        found.append(f"the processes ended so: {ours.ends}; over TCP {tcp.ends}")
    for name, number in ours.errors.items():
        if number > tcp.errors[name]:
            found.append(f"errors in the log of {name}: {ours.logs[name][-2000:]}")
    if route.served not in ours.servedBy:
        found.append(f"it was served by {sorted(ours.servedBy)}, not by {route.served}")
    return found
