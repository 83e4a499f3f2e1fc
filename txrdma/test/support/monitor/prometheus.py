"""A Prometheus server for tests on loopback, which receives samples by remote write."""

from __future__ import annotations

import atexit
import os
import shutil
import signal
import socket
import subprocess
import tempfile
import time
from pathlib import Path
from urllib.error import URLError
from urllib.request import urlopen

from txrdma.test.support.monitor.samples import isMissing, MISSING
from txrdma.test.support.processes import loopbackAddress, suspend

PATIENCE_SECONDS = 30.0
_PROGRAM = "prometheus"


def why() -> str:
    """Return the reason why no server can be started; C{""} if one can."""
    if isMissing:
        return MISSING
    return "" if shutil.which(_PROGRAM) else "Prometheus is not here: apt-get install prometheus"


def whyNoSmallDisk() -> str:
    """Return the reason why no server can have a small disk; C{""} if one can."""
    words = ["unshare", "--map-root-user", "--mount", "mount", "-t", "tmpfs", "tmpfs", "/mnt"]
    if shutil.which("unshare") and not subprocess.run(words, capture_output=True).returncode:
        return ""
    return "file systems cannot be mounted in a namespace here"


def freeAddress() -> str:
    """
    Return an address and a port for a server that may be restarted.

    Other programs rarely use this loopback address, and so do not take the port meanwhile.
    """
    host = loopbackAddress()
    with socket.create_server((host, 0)) as taken:
        return f"{host}:{taken.getsockname()[1]}"


class MonitoringServer:
    """
    A server of the Prometheus project with a temporary folder, which ends with this process at the latest.

    @ivar url: its URL.
    """

    _words: list[str]

    def __init__(self, name: str) -> None:
        self._folder = Path(tempfile.mkdtemp(prefix=f"txrdma-{name}-"))
        self._address = freeAddress()
        self.url = f"http://{self._address}"
        self._log = (self._folder / "log").open("wb")
        self.process: subprocess.Popen[bytes] | None = None
        atexit.register(self.close)

    def start(self) -> None:
        """Start the server, and wait until it is ready."""
        self.process = subprocess.Popen(self._words, stdout=self._log, stderr=self._log)
        end = time.monotonic() + PATIENCE_SECONDS
        while True:
            try:
                urlopen(f"{self.url}/-/ready", timeout=1.0).close()
                return
            except (URLError, OSError):
                if time.monotonic() > end or self.process.poll() is not None:
                    self.kill()
                    raise
                time.sleep(0.05)

    def kill(self) -> None:
        """Kill the server, and wait until its process has ended. Idempotent."""
        if self.process is not None:
            self.process.kill()
            self.process.wait()
            self.process = None

    def close(self) -> None:
        """Kill the server, and remove its files. Idempotent."""
        self.kill()
        self._log.close()
        shutil.rmtree(self._folder, ignore_errors=True)


class Prometheus(MonitoringServer):
    """A server that receives samples by remote write."""

    def __init__(self, outOfOrderSeconds: int = 0, diskOctets: int = 0) -> None:
        """
        @param outOfOrderSeconds: age of samples, compared with the newest, that it accepts.
        @param diskOctets: size of a separate disk; 0 for none.
        """
        super().__init__("prometheus")
        self._data = self._folder / "data"
        self._data.mkdir()
        config = self._folder / "prometheus.yml"
        config.write_text(f"storage: {{tsdb: {{out_of_order_time_window: {outOfOrderSeconds}s}}}}\n")
        self._words = [
            *(_PROGRAM, f"--config.file={config}", f"--storage.tsdb.path={self._data}"),
            *(f"--web.listen-address={self._address}", "--web.enable-remote-write-receiver"),
            *("--storage.tsdb.retention.time=100y", "--log.level=error"),
        ]
        if diskOctets:
            mount = f"mount -t tmpfs -o size={diskOctets} tmpfs {self._data} && exec "
            shell = ["unshare", "--map-root-user", "--mount", "sh", "-c", mount + " ".join(self._words)]
            self._words = shell
        self.start()

    def pause(self) -> None:
        """Stop the server's process: it accepts connections, but does not answer until L{resume}."""
        assert self.process is not None
        suspend(self.process.pid)

    def resume(self) -> None:
        """Continue the process."""
        assert self.process is not None
        self.process.send_signal(signal.SIGCONT)

    @property
    def _filler(self) -> Path:
        assert self.process is not None
        return Path(f"/proc/{self.process.pid}/root{self._data}/filler")

    def fill(self) -> None:
        """Fill the disk of the server."""
        with self._filler.open("wb", buffering=0) as file:
            try:
                while True:
                    file.write(bytes(4096))
            except OSError:
                pass

    def free(self) -> None:
        """Free the disk again."""
        os.unlink(self._filler)

    def log(self) -> str:
        """Return what the server has logged."""
        return (self._folder / "log").read_text()
