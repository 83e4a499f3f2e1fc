"""
The REST interface, verified by schemathesis.
"""

from __future__ import annotations

import os
import sys
from importlib.util import find_spec
from typing import Any

from twisted.internet import reactor as theReactor
from twisted.internet.task import deferLater
from twisted.internet.utils import getProcessOutputAndValue
from twisted.trial.unittest import TestCase

from txrdma.monitor.config import parseConfig
from txrdma.tap.monitor import MonitorService

reactor: Any = theReactor

SCHEMATHESIS = "schemathesis is not installed: the extra browser brings it"


WITNESSED = """
port = "sim:fattree:4:traffic=100000"
history.file = "{history}"

[web]
listen = "tcp:0:interface=127.0.0.1"

[poll]
interval = 0.5
notices = false
"""


class SchemathesisTests(TestCase):
    """Requests that schemathesis generates from the description."""

    slowBecause = "schemathesis sends hundreds of requests to a running monitor"

    if find_spec("schemathesis") is None:
        skip = SCHEMATHESIS
    timeout = 300

    async def test_witness(self) -> None:
        """Every answer conforms to the description, and no request causes an error of the monitor."""
        service = MonitorService(reactor, parseConfig(WITNESSED.format(history=self.mktemp())))
        listening: Any = service.services[0]
        service.startService()
        while not service.poller.statistics.turns:
            await deferLater(reactor, 0.05)
        port = listening._waitingForPort.result.getHost().port
        command = [
            *("-m", "schemathesis.cli", "run", f"http://127.0.0.1:{port}/api/v1/openapi.json"),
            *("--exclude-path", "/events", "--max-examples", "15", "--seed", "1", "--no-color"),
            *("--phases", "examples,coverage,fuzzing", "--generation-database", "none"),
        ]
        out, err, code = await getProcessOutputAndValue(sys.executable, command, os.environ)
        await service.stopService()
        self.assertEqual(code, 0, (out + err).decode("utf-8", "replace"))
