"""Monitors of two fabrics in processes, and the process of a front end: one of them is killed and returns."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final
from urllib.error import HTTPError, URLError
from urllib.request import build_opener, HTTPRedirectHandler, Request

from twisted.trial.unittest import SynchronousTestCase

from txrdma.test.support.monitor.prometheus import freeAddress
from txrdma.test.support.processes import CHECKOUT

PATIENCE_SECONDS: Final = 60.0
TOKEN: Final = "a token of this test"

SHARD: Final = """
poll = {{interval = 1, settle = 0.1, survey = 0, notices = false}}
[web]
listen = "tcp:{port}:interface={host}"
tokens = '{folder}/tokens'
[fabrics.{name}]
port = "sim:fattree:{hosts}"
"""

FRONT: Final = """
[web]
listen = "tcp:{port}:interface={host}"
[fabrics.north]
url = "http://{north}/fabrics/north"
authorization-file = '{folder}/authorization'
[fabrics.south]
url = "http://{south}/fabrics/south"
authorization-file = '{folder}/authorization'
"""


class _Unfollowed(HTTPRedirectHandler):
    def redirect_request(self, *arguments: Any) -> None:
        return None


class ShardTests(SynchronousTestCase):
    slowBecause = "starts processes, and waits for the intervals at which monitors are read"

    def setUp(self) -> None:
        self.folder = self.mktemp()
        Path(self.folder).mkdir()
        for name, text in (("tokens", TOKEN), ("authorization", f"Bearer {TOKEN}")):
            path = Path(self.folder, name)
            path.write_text(f"{text}\n")
            path.chmod(0o600)
        self.addresses = {name: freeAddress() for name in ("north", "south", "front")}
        self.processes: dict[str, subprocess.Popen[bytes]] = {}
        for name in self.addresses:
            self.begin(name)

    def begin(self, name: str) -> None:
        """Start the process of a monitor, or that of the front end."""
        host, _, port = self.addresses[name].partition(":")
        text = FRONT if name == "front" else SHARD
        folder, hosts = Path(self.folder).resolve(), {"north": 8, "south": 16}.get(name)
        given = {"host": host, "port": port, "folder": folder, "name": name, "hosts": hosts}
        config = folder / f"{name}.toml"
        config.write_text(text.format(**given, **{k: v for k, v in self.addresses.items() if k != name}))
        log = (folder / f"{name}.log").open("ab")
        self.addCleanup(log.close)
        words = [sys.executable, "-m", "twisted", "--log-format", "text", "fabric-monitor", "-c", str(config)]
        process = subprocess.Popen(words, cwd=CHECKOUT, stdout=log, stderr=log)
        self.addCleanup(process.wait)
        self.addCleanup(process.kill)
        self.processes[name] = process

    def get(self, path: str) -> tuple[int, str]:
        """Return the status and the body of an answer of the front end, or the new address."""
        request = Request(f"http://{self.addresses['front']}{path}")
        try:
            with build_opener(_Unfollowed).open(request, timeout=PATIENCE_SECONDS) as answer:
                return answer.status, answer.read().decode()
        except HTTPError as error:
            return error.code, error.headers.get("Location", "")

    def json(self, path: str) -> Any:
        return json.loads(self.get(f"/api/v1/{path}")[1])

    def states(self) -> dict[str, Any]:
        """Return the states of all fabrics; none while the front end does not listen."""
        try:
            return {row["fabric"]: row for row in self.json("fabrics")["rows"]}
        except URLError:
            return {}

    def until(self, isTrue: Callable[[dict[str, Any]], bool]) -> None:
        """Wait for states of the fabrics."""
        end = time.monotonic() + PATIENCE_SECONDS
        while not isTrue(found := self.states()):
            logs = [path.read_text() for path in Path(self.folder).glob("*.log")]
            self.assertLess(time.monotonic(), end, f"{found} {logs}")
            time.sleep(0.2)

    def test_killed(self) -> None:
        """One site shows all; a killed monitor is away with its last state, until it runs again."""
        self.until(lambda found: len(found) == 2 and all(one["isKnown"] for one in found.values()))
        hosts = self.json("nodes?type=host&sort=name")
        self.assertEqual((hosts["total"], hosts["away"]), (24, []))
        fabrics = [row["fabric"] for row in hosts["rows"] if row["name"] == "h00003"]
        self.assertEqual(sorted(fabrics), ["north", "south"])
        text = self.get("/?search=h00003")[1]
        for name in ("north", "south"):
            self.assertIn(f'href="/fabrics/{name}/nodes/0x', text)
        place = f"http://{self.addresses['south']}/fabrics/south/nodes?search=x"
        self.assertEqual(self.get("/fabrics/south/nodes?search=x"), (307, place))
        south = self.processes["south"]
        south.kill()
        south.wait()
        self.until(lambda found: bool(found["south"]["problem"]))
        found = self.states()
        self.assertEqual((found["north"]["problem"], found["south"]["isKnown"]), ("", True))
        hosts = self.json("nodes?type=host")
        self.assertEqual((hosts["total"], [one["fabric"] for one in hosts["away"]]), (8, ["south"]))
        self.assertIn("away", self.get("/")[1])
        self.assertIn('txrdma_monitor_remote_age_seconds{fabric="south"}', self.get("/metrics")[1])
        self.begin("south")
        self.until(lambda found: not found["south"]["problem"] and found["south"]["isKnown"])
        self.assertEqual(self.json("nodes?type=host")["total"], 24)
        self.assertNotIn("away", self.get("/")[1])
