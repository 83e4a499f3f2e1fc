"""The two processes of the demonstration: a web server and a downloader."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

_LISTENING = re.compile(r"Site starting on (\d+)")
_TICKS = os.sysconf("SC_CLK_TCK")

Statuses = dict[str, Any]
"""Decoded JSON object, whose structure its reader knows."""


class ProcessFailed(Exception):
    """A process of the demonstration has ended unexpectedly."""


@contextmanager
def running(command: list[str], **kwargs: Any) -> Iterator[subprocess.Popen[str]]:  # those of Popen
    """Run a process that is ended when the block is left."""
    # In a separate session, so that Ctrl-C interrupts only this process, which ends the other in good order.
    process = subprocess.Popen(command, text=True, start_new_session=True, **kwargs)
    try:
        yield process
    finally:
        if process.stdin is not None:
            with suppress(BrokenPipeError):
                process.stdin.close()  # the downloader ends at the end of its input
            _waited(process, 2)
        process.terminate()
        if not _waited(process, 5):
            process.kill()
            process.wait()
        if process.stdout is not None:
            process.stdout.close()


def _waited(process: subprocess.Popen[str], seconds: float) -> bool:
    """Wait for the end of a process, and return whether it has ended in time."""
    try:
        process.wait(seconds)
    except subprocess.TimeoutExpired:
        return False
    return True


class ServerProcess:
    """A running C{twistd web} process."""

    def __init__(self, process: subprocess.Popen[str], port: int) -> None:
        self._process = process
        self.pid = process.pid
        self.port = port

    def cpuSeconds(self) -> float:
        """CPU time of the process so far, in user and in kernel mode."""
        # proc(5): fields 14 and 15, counted after the command name, which may contain any character
        fields = Path(f"/proc/{self.pid}/stat").read_text().rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / _TICKS

    def connections(self) -> list[Statuses]:
        """Return the process's connections as reported by C{txrdma connections}."""
        command = [sys.executable, "-m", "txrdma", "connections", "--json"]
        output = subprocess.run(command, capture_output=True, text=True, timeout=30, check=True)
        return [counters for counters in json.loads(output.stdout) if counters["pid"] == self.pid]


@contextmanager
def serving(folder: Path, log: Path, listen: str, reactor: str | None = None) -> Iterator[ServerProcess]:
    """Run C{twistd web} for a folder, at an endpoint string with port 0."""
    command = [str(Path(sys.executable).with_name("twistd"))]
    command += ["--reactor", reactor] if reactor else []
    command += ["--nodaemon", "--pidfile=", "web", "--path", str(folder), "--listen", listen]
    with log.open("a") as out, running(command, stdout=out, stderr=out, cwd=log.parent) as process:
        yield ServerProcess(process, _port(process, log))


def _port(process: subprocess.Popen[str], log: Path) -> int:
    """Wait until the server's log contains its port."""
    while process.poll() is None:
        found = _LISTENING.search(log.read_text())
        if found:
            return int(found[1])
        try:
            process.wait(0.02)
        except subprocess.TimeoutExpired:
            continue
    raise ProcessFailed(f"twistd web ended with {process.returncode}:\n{log.read_text()}")


class Downloader:
    """A running downloader, which fetches files in turns."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        self._process = process

    def turn(self, names: list[str], onProgress: Callable[[int], None]) -> Statuses:
        """Download these files, and return the results. C{onProgress} is called with the bytes so far."""
        answer: Statuses = self._ask(names, onProgress)
        return answer

    def connections(self) -> list[Statuses]:
        """Return the status of the downloader's connections."""
        answer: list[Statuses] = self._ask("connections")
        return answer

    def hashes(self) -> dict[str, str]:
        """Return the SHA-256 of each downloaded file by name."""
        answer: dict[str, str] = self._ask("hashes")
        return answer

    def _ask(self, order: object, onProgress: Callable[[int], None] = lambda _: None) -> Any:  # decoded JSON
        assert self._process.stdin is not None and self._process.stdout is not None
        try:
            print(json.dumps(order), file=self._process.stdin, flush=True)
        except BrokenPipeError:
            raise ProcessFailed(f"the download exited with status {self._process.wait()}") from None
        for line in self._process.stdout:
            output = json.loads(line)
            if "answer" in output:
                return output["answer"]
            onProgress(output["progress"])
        raise ProcessFailed(f"the download exited with status {self._process.wait()}")


@contextmanager
def downloading(kind: str, port: int, parallel: int, reactor: str | None = None) -> Iterator[Downloader]:
    """Run a downloader for a server on this host."""
    command = [sys.executable, "-m", "txrdma.demo.download", *([reactor] if reactor else [])]
    orders = {"kind": kind, "base": f"http://127.0.0.1:{port}", "parallel": parallel}
    with running(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdin is not None
        print(json.dumps(orders), file=process.stdin, flush=True)
        yield Downloader(process)
