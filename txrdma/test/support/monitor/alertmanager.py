"""A Prometheus Alertmanager for tests on loopback, with a temporary folder."""

from __future__ import annotations

import atexit
import json
import shutil
import subprocess
import tempfile
from pathlib import Path
from typing import Any
from urllib.request import urlopen

from txrdma.test.support.monitor.prometheus import freeAddress, PATIENCE_SECONDS, startServer

_PROGRAM = "prometheus-alertmanager"
_CONFIG = "route: {receiver: nobody}\nreceivers: [{name: nobody}]\n"


def why() -> str:
    """Return the reason why none can be started; C{""} if one can."""
    return "" if shutil.which(_PROGRAM) else f"Alertmanager is not here: apt-get install {_PROGRAM}"


class Alertmanager:
    """
    An Alertmanager, which ends with this process at the latest.

    @ivar url: URL to post alerts to.
    """

    def __init__(self) -> None:
        self._folder = Path(tempfile.mkdtemp(prefix="txrdma-alertmanager-"))
        address = freeAddress()
        self._base = f"http://{address}"
        self.url = f"{self._base}/api/v2/alerts"
        config = self._folder / "alertmanager.yml"
        config.write_text(_CONFIG)
        self._words = [
            *(_PROGRAM, f"--config.file={config}", f"--storage.path={self._folder / 'data'}"),
            *(f"--web.listen-address={address}", "--cluster.listen-address=", "--log.level=error"),
        ]
        self._process: subprocess.Popen[bytes] | None = None
        atexit.register(self.close)
        self.start()

    def start(self) -> None:
        """Start the server, and wait until it is ready."""
        self._process = startServer(self._words, self._base, subprocess.DEVNULL)

    def kill(self) -> None:
        """Kill the server, and wait until its process has ended. Idempotent."""
        if self._process is not None:
            self._process.kill()
            self._process.wait()
            self._process = None

    def alerts(self) -> list[dict[str, Any]]:
        """Return the alerts that are firing."""
        with urlopen(self.url, timeout=PATIENCE_SECONDS) as response:
            found: list[dict[str, Any]] = json.load(response)
            return found

    def close(self) -> None:
        """Kill the server, and remove its files. Idempotent."""
        self.kill()
        shutil.rmtree(self._folder, ignore_errors=True)
