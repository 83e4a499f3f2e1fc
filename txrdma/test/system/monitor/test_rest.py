"""The REST interface, verified by schemathesis."""

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

TABLES = "^/(nodes|ports|links|cables|changes|history)"
"""Paths that take about half of the requests."""

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

    async def conforms(self, *selection: str) -> None:
        """Check that every answer conforms to the description, and that no request causes an error."""
        service = MonitorService(reactor, parseConfig(WITNESSED.format(history=self.mktemp())))
        listening: Any = service.services[0]
        service.startService()
        while not service.poller.statistics.turns:
            await deferLater(reactor, 0.05)
        port = listening._waitingForPort.result.getHost().port
        command = [
            *("-m", "schemathesis.cli", "run", f"http://127.0.0.1:{port}/api/v1/openapi.json"),
            *(*selection, "--max-examples", "4", "--seed", "1", "--no-color"),
            *("--phases", "examples,coverage,fuzzing", "--generation-database", "none"),
        ]
        out, err, code = await getProcessOutputAndValue(sys.executable, command, os.environ)
        await service.stopService()
        self.assertEqual(code, 0, (out + err).decode("utf-8", "replace"))

    async def test_tables(self) -> None:
        """Tables of what the fabric has and had conform."""
        await self.conforms("--include-path-regex", TABLES)

    async def test_others(self) -> None:
        """All other resources do, but the endless stream of events."""
        await self.conforms("--exclude-path-regex", TABLES, "--exclude-path", "/events")
