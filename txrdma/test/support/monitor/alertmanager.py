"""A Prometheus Alertmanager for tests on loopback, with a temporary folder."""

from __future__ import annotations

import json
import shutil
from typing import Any
from urllib.request import urlopen

from txrdma.test.support.monitor.prometheus import MonitoringServer, PATIENCE_SECONDS

_PROGRAM = "prometheus-alertmanager"
_CONFIG = "route: {receiver: nobody}\nreceivers: [{name: nobody}]\n"


def why() -> str:
    """Return the reason why none can be started; C{""} if one can."""
    return "" if shutil.which(_PROGRAM) else f"Alertmanager is not here: apt-get install {_PROGRAM}"


class Alertmanager(MonitoringServer):
    """
    An Alertmanager.

    @ivar alertsURL: URL to post alerts to.
    """

    def __init__(self) -> None:
        super().__init__("alertmanager")
        self.alertsURL = f"{self.url}/api/v2/alerts"
        config = self._folder / "alertmanager.yml"
        config.write_text(_CONFIG)
        self._words = [
            *(_PROGRAM, f"--config.file={config}", f"--storage.path={self._folder / 'data'}"),
            *(f"--web.listen-address={self._address}", "--cluster.listen-address=", "--log.level=error"),
        ]
        self.start()

    def alerts(self) -> list[dict[str, Any]]:
        """Return the alerts that are firing."""
        with urlopen(self.alertsURL, timeout=PATIENCE_SECONDS) as response:
            found: list[dict[str, Any]] = json.load(response)
            return found
