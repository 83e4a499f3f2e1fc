"""Running a monitor: reloading, systemd, files for schedulers, and the terminal."""

from __future__ import annotations

import io
import json
import os
import signal
import socket
from pathlib import Path
from typing import Any

from twisted.internet import reactor as theReactor
from twisted.internet.defer import Deferred
from twisted.internet.task import Clock
from twisted.logger import capturedLogs, formatEvent
from twisted.python import usage
from twisted.trial.unittest import SynchronousTestCase, TestCase

from txrdma.commands import monitor as command
from txrdma.monitor.config import MonitorConfig, parseConfig
from txrdma.tap.monitor import MonitorService
from txrdma.tap.systemd import SystemNotifier
from txrdma.test.support.monitor.fetching import fetch
from txrdma.testing.reactors import waitUntil

reactor: Any = theReactor


class Listener:
    """A notification socket like systemd's."""

    def __init__(self, case: SynchronousTestCase, address: str) -> None:
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        self._socket.bind("\0" + address[1:] if address.startswith("@") else address)
        self._socket.setblocking(False)
        case.addCleanup(self._socket.close)

    def output(self) -> list[str]:
        found = []
        while True:
            try:
                found.append(self._socket.recv(4096).decode())
            except BlockingIOError:
                return found


class SystemTests(SynchronousTestCase):
    isAlive = True

    def reported(self, address: str, **environment: str) -> tuple[Listener, SystemNotifier, Clock]:
        listener, clock = Listener(self, address), Clock()
        environment["NOTIFY_SOCKET"] = address
        notifier = SystemNotifier(clock, environment, lambda: self.isAlive)
        notifier.start()
        return listener, notifier, clock

    def test_life(self) -> None:
        """Start, status, each reload and the end are sent once, and nothing after the end."""
        listener, notifier, _clock = self.reported(
            str(Path(self.mktemp()).absolute())[-90:].replace("/", "-")
        )
        self.assertEqual(listener.output(), [])
        notifier.ready("5 nodes")
        notifier.ready("5 nodes")
        notifier.ready("4 nodes")
        self.assertEqual(listener.output(), ["READY=1\nSTATUS=5 nodes", "STATUS=4 nodes"])
        notifier.reloading()
        notifier.ready("")
        first, second = listener.output()
        self.assertRegex(first, r"^RELOADING=1\nMONOTONIC_USEC=\d+$")
        self.assertEqual(second, "READY=1")
        notifier.stop()
        notifier.ready("3 nodes")
        notifier.reloading()
        notifier.ready("")
        notifier.stop()
        self.assertEqual(listener.output(), ["STOPPING=1"])

    def test_watchdog(self) -> None:
        """The watchdog is fed three times per interval, also on an abstract socket, while work is done."""
        name = f"@txrdma-test-{os.getpid()}"
        listener, notifier, clock = self.reported(name, WATCHDOG_USEC="30000000")
        clock.pump([1.0] * 60)
        printed = listener.output()
        self.assertEqual((set(printed), len(printed)), ({"WATCHDOG=1"}, 7))
        for self.isAlive, expected in ((False, []), (True, ["WATCHDOG=1"])):
            clock.advance(10.0)
            self.assertEqual(listener.output(), expected)
        notifier.stop()
        self.assertEqual(clock.getDelayedCalls(), [])

    def test_withoutSystemd(self) -> None:
        """Without systemd, with another process's watchdog or with invalid variables, nothing is sent."""
        for environment in (
            {},
            {"NOTIFY_SOCKET": "/nonexistent", "WATCHDOG_USEC": "1000000", "WATCHDOG_PID": "1"},
            {"NOTIFY_SOCKET": "/nonexistent", "WATCHDOG_USEC": "often"},
        ):
            clock = Clock()
            notifier = SystemNotifier(clock, environment)
            notifier.start()
            notifier.ready("well")
            self.assertEqual(clock.getDelayedCalls(), [])
            notifier.stop()


class ReloadTests(TestCase):
    async def test_hup(self) -> None:
        """SIGHUP reloads the file: changeable settings change, and an invalid file changes nothing."""
        text = 'port = "sim:fattree:4"\n[web]\nlisten = ""\n[poll]\ninterval = 0.1\nnotices = false\n'
        more = text.replace("0.1", "0.2") + '[findings]\nignored = ["width"]\n'
        texts = iter([text + "nonsense = 1\n", more.replace("fattree:4", "fattree:8")])
        service = MonitorService(reactor, parseConfig(text))
        read = []

        def again() -> Any:
            read.append(1)
            return parseConfig(next(texts))

        service.reloadBy(again)
        service.startService()
        try:
            await waitUntil(reactor, lambda: service.poller.statistics.turns > 1)
            meters = service.poller.meters
            os.kill(os.getpid(), signal.SIGHUP)
            await waitUntil(reactor, lambda: len(read) == 1)
            self.assertEqual(service.config.settings.intervalSeconds, 0.1)
            os.kill(os.getpid(), signal.SIGHUP)
            await waitUntil(reactor, lambda: service.config.settings.intervalSeconds == 0.2)
            turns = service.poller.statistics.turns
            await waitUntil(reactor, lambda: service.poller.statistics.turns > turns + 1)
            self.assertIs(service.poller.meters, meters)
            self.assertEqual(service.config.rules.ignored, {"width"})
        finally:
            await service.stopService()
        self.assertEqual(signal.getsignal(signal.SIGHUP), signal.SIG_DFL)

    async def test_tokens(self) -> None:
        """Tokens are reloaded, too: a removed token is refused."""
        path = Path(self.mktemp())

        def holding(token: str) -> MonitorConfig:
            path.write_text(token)
            path.chmod(0o600)
            return parseConfig(f'port = "sim:fattree:4"\n[web]\nlisten = ""\ntokens = "{path}"\n')

        service = MonitorService(reactor, holding("first-first-first"))
        self.addCleanup(service.stopService)
        factory = service.site.factory

        def fetchable(token: str) -> bool:
            return fetch(factory, "/metrics", authorization=f"Bearer {token}").code == 200

        self.assertTrue(fetchable("first-first-first"))
        service.reloadBy(lambda: holding("other-other-other"))
        self.assertTrue(service.reload())
        self.assertEqual(service.poller.findings.journal.changes[-1].kind, "operator-reloaded")
        self.assertFalse(fetchable("first-first-first"))
        self.assertTrue(fetchable("other-other-other"))
        service.reloadBy(lambda: parseConfig('port = "sim:fattree:4"\n[web]\nlisten = ""\n'))
        self.assertTrue(service.reload())
        self.assertTrue(fetchable("other-other-other"))  # a removed line does not give access to everybody
        self.assertFalse(fetchable("first-first-first"))

    def test_sections(self) -> None:
        """A file with sections of several fabrics, which need a restart, is not applied to the only one."""
        text = 'port = "sim:fattree:4"\n[web]\nlisten = ""\n[poll]\ninterval = 1\n'
        service = MonitorService(reactor, parseConfig(text))
        self.addCleanup(service.stopService)
        sections = text.replace("1", "2") + "[files]\nslurm = '{fabric}'\n[fabrics.north]\n"
        service.reloadBy(lambda: parseConfig(sections))
        with capturedLogs() as logs:
            self.assertFalse(service.reload())
        self.assertIn("needs a restart", formatEvent(logs[-1]))
        self.assertEqual((service.config.settings.intervalSeconds, service.config.files.slurm), (1.0, ""))

    def test_changedBack(self) -> None:
        """Settings that need a restart are reported while they differ from the running ones."""
        text = 'port = "sim:fattree:4"\n[web]\nlisten = ""\n'
        texts = iter([text.replace("4", "8"), f"{text}[poll]\nnotices = false\n", text])
        service = MonitorService(reactor, parseConfig(text))
        self.addCleanup(service.stopService)
        service.reloadBy(lambda: parseConfig(next(texts)))
        reportedNow: list[int] = []
        for _ in range(3):
            with capturedLogs() as logs:
                service.reload()
            reportedNow.append(sum("needs a restart" in event["log_format"] for event in logs))
        self.assertEqual(reportedNow, [1, 1, 0])


class CommandTests(TestCase):
    async def test_json(self) -> None:
        """With JSON each round is a line, and the command ends after the last one."""
        options = command.CommandOptions()
        options.parseOptions(["-d", "sim:fattree:4", "-i", "0.1", "--rounds", "2", "--json"])
        out = io.StringIO()
        self.patch(__import__("sys"), "stdout", out)
        await command.run(reactor, options)
        lines = [json.loads(line) for line in out.getvalue().splitlines()]
        self.assertEqual([line["statistics"]["turns"] for line in lines], [1, 2])

    def test_headOnly(self) -> Deferred[None]:
        """The command ends when its output is closed."""
        options = command.CommandOptions()
        options.parseOptions(["-d", "sim:fattree:4", "-i", "0.1", "--json"])

        def broken(text: str) -> int:
            raise BrokenPipeError

        out = io.StringIO()
        self.patch(out, "write", broken)
        self.patch(__import__("sys"), "stdout", out)
        done = Deferred.fromCoroutine(command.run(reactor, options))
        done.addTimeout(20.0, reactor)
        return self.assertFailure(done, BrokenPipeError)

    def test_wrong(self) -> None:
        self.assertRaises(usage.UsageError, command.CommandOptions().parseOptions, ["-i", "0.001"])
