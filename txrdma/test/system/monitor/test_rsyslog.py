"""A real rsyslog that receives alerts: over UDP, TCP, TLS, and the socket of a host."""

from __future__ import annotations

import json
import os
import shutil
import socket
import subprocess
import tempfile
from glob import glob
from importlib.util import find_spec
from pathlib import Path
from typing import Any
from unittest.mock import patch

from twisted.internet import reactor as theReactor
from twisted.trial.unittest import SkipTest, TestCase

from txrdma.error import DeviceUnavailable
from txrdma.monitor.diagnosis.findinglog import Cleared, Raised
from txrdma.monitor.events import notificationqueue, syslog
from txrdma.monitor.events.alerts import AlertRules
from txrdma.monitor.events.notifier import Notifier
from txrdma.monitor.events.syslog import SyslogChannel, SyslogSettings
from txrdma.test.support.monitor.alerts import alertsOf, entryOf
from txrdma.testing.reactors import waitUntil
from txrdma.testing.streams.certificate import makeCertificate

reactor: Any = theReactor

_PROGRAM = shutil.which("rsyslogd") or shutil.which("/usr/sbin/rsyslogd")
_DRIVERS = ("gtls", "ossl")
_SECONDS = 30.0

_CONFIG = """
module(load="imudp")
module(load="imuxsock" SysSock.Use="off")
module(load="imtcp"{tls})
input(type="imudp" port="{udp}" address="127.0.0.1")
input(type="imtcp" port="{tcp}" address="127.0.0.1")
input(type="imuxsock" Socket="{folder}/socket" CreatePath="on")
template(name="fields" type="list" option.jsonf="on") {{
    property(outname="priority" name="syslogpriority-text" format="jsonf")
    property(outname="facility" name="syslogfacility-text" format="jsonf")
    property(outname="program" name="app-name" format="jsonf")
    property(outname="process" name="procid" format="jsonf")
    property(outname="kind" name="msgid" format="jsonf")
    property(outname="origin" name="structured-data" format="jsonf")
    property(outname="text" name="msg" format="jsonf")
}}
action(type="omfile" file="{folder}/received" template="fields")
"""
_TLS = """ StreamDriver.Name="{driver}" StreamDriver.Mode="1" StreamDriver.AuthMode="{mode}")
global(workDirectory="{folder}" DefaultNetstreamDriverCAFile="{folder}/own.crt"
    DefaultNetstreamDriverCertFile="{folder}/own.crt" DefaultNetstreamDriverKeyFile="{folder}/own.key\""""


def _driver() -> str:
    """Return the name of a driver for TLS that is installed; C{""} if there is none."""
    return next((name for name in _DRIVERS if glob(f"/usr/lib/*/rsyslog/lmnsd_{name}.so")), "")


def _freePort(kind: socket.SocketKind) -> int:
    with socket.socket(socket.AF_INET, kind) as taken:
        taken.bind(("127.0.0.1", 0))
        return int(taken.getsockname()[1])


class RsyslogTests(TestCase):
    """An rsyslog on loopback, which writes what it understands to a file."""

    slowBecause = "starts and kills an rsyslog"
    timeout = 120.0

    if not _PROGRAM:
        skip = "rsyslog is not here: apt-get install rsyslog rsyslog-gnutls"

    def setUp(self) -> None:
        temporary = tempfile.TemporaryDirectory()  # names of sockets are short
        self.addCleanup(temporary.cleanup)
        self.folder = Path(temporary.name)
        self.udp, self.tcp = _freePort(socket.SOCK_DGRAM), _freePort(socket.SOCK_STREAM)
        self.process: subprocess.Popen[bytes] | None = None
        self.addCleanup(self.kill)

    def kill(self) -> None:
        if self.process is not None:
            self.process.kill()
            self.process.wait()
            self.process = None

    async def start(self, driver: str = "", mode: str = "") -> None:
        """Start the daemon, and wait until it listens."""
        tls = _TLS.format(driver=driver, mode=mode, folder=self.folder) if driver else ""
        config = self.folder / "rsyslog.conf"
        config.write_text(_CONFIG.format(folder=self.folder, tls=tls, udp=self.udp, tcp=self.tcp))
        words = [str(_PROGRAM), "-n", "-f", str(config), "-i", str(self.folder / "pid")]
        with open(self.folder / "log", "ab") as log:
            self.process = subprocess.Popen(words, stdout=log, stderr=log)
        await waitUntil(reactor, self.listens, _SECONDS)

    def listens(self) -> bool:
        assert self.process is not None
        if self.process.poll() is not None:
            self.fail((self.folder / "log").read_text())
        with socket.socket() as probe:
            return probe.connect_ex(("127.0.0.1", self.tcp)) == 0

    def received(self) -> list[dict[str, str]]:
        path = self.folder / "received"
        return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []

    async def sent(self, address: str, *names: str) -> list[dict[str, str]]:
        """Send alerts about these nodes; return what the daemon has understood."""
        before = len(self.received())
        channel = SyslogChannel(reactor, SyslogSettings(address, 16))
        await channel.send(alertsOf(*names))
        await waitUntil(reactor, lambda: len(self.received()) == before + len(names), _SECONDS)
        return self.received()[before:]

    def assertUnderstood(self, rows: list[dict[str, str]], *names: str) -> None:
        for row, name in zip(rows, names, strict=True):
            text = row.pop("text")
            self.assertIn(f"warning width is there: {name}: it is slow", text)
            origin = row.pop("origin")
            self.assertTrue(origin.startswith('[origin software="txrdma" swVersion="'), origin)
            expected = {
                "priority": "warning",
                "facility": "local0",
                "program": "fabric-monitor",
                "kind": "width",
            }
            self.assertEqual(row, {**expected, "process": str(os.getpid())})

    async def test_udp(self) -> None:
        """Datagrams are understood, also a message of the maximum length, and names from the fabric."""
        await self.start()
        names = ("leaf 1", "leaf \N{SNOWMAN}")
        self.assertUnderstood(await self.sent(f"udp:127.0.0.1:{self.udp}", *names), *names)
        (row,) = await self.sent(f"udp:127.0.0.1:{self.udp}", "leaf\n<8>1 - - su - - -\x00 " + "x" * 3000)
        self.assertEqual((row["priority"], row["program"]), ("warning", "fabric-monitor"))
        self.assertIn("leaf\N{REPLACEMENT CHARACTER}<8>1 - - su - - -", row["text"])

    async def test_tcp(self) -> None:
        """Messages after their lengths are understood."""
        await self.start()
        names = ("leaf 1", "leaf \N{SNOWMAN}")
        self.assertUnderstood(await self.sent(f"tcp:localhost:{self.tcp}", *names), *names)

    async def test_tls(self) -> None:
        """With TLS, messages are sent only if each end has the certificate that the other one requires."""
        driver = _driver()
        if not driver:
            raise SkipTest("rsyslog has no TLS here: apt-get install rsyslog-gnutls")
        if find_spec("OpenSSL") is None:
            raise SkipTest("pyOpenSSL is not installed")
        key, head, certificate = makeCertificate().partition(b"-----BEGIN CERTIFICATE-----")
        (self.folder / "own.key").write_bytes(key)
        (self.folder / "own.crt").write_bytes(head + certificate)
        os.mkdir(self.folder / "roots")
        (self.folder / "roots" / "own.pem").write_bytes(head + certificate)
        await self.start(driver, "anon")
        names = ("leaf 1", "leaf \N{SNOWMAN}")
        address = f"tls:localhost:{self.tcp}:trustRoots={self.folder}/roots"
        self.assertUnderstood(await self.sent(address, *names), *names)
        self.kill()
        await self.start(driver, "x509/certvalid")
        with patch.object(syslog, "LINGER_SECONDS", _SECONDS), self.assertRaises(DeviceUnavailable):
            await SyslogChannel(reactor, SyslogSettings(address)).send(alertsOf("leaf 1"))
        address += f":certificate={self.folder}/own.crt:privateKey={self.folder}/own.key"
        self.assertUnderstood(await self.sent(address, *names), *names)

    async def test_socket(self) -> None:
        """The socket of a host takes the older format, with priority, program and text."""
        await self.start()
        await waitUntil(reactor, (self.folder / "socket").exists, _SECONDS)
        (row,) = await self.sent(f"unix:{self.folder}/socket", "leaf 1")
        found = {name: row[name] for name in ("priority", "facility", "program", "process")}
        expected = {"priority": "warning", "facility": "local0", "program": "fabric-monitor"}
        self.assertEqual(found, {**expected, "process": str(os.getpid())})
        self.assertIn("warning width is there: leaf 1: it is slow", row["text"])

    async def test_killed(self) -> None:
        """A daemon that is killed gets what it missed over TCP when it is there again."""
        self.patch(notificationqueue, "RETRY_SECONDS", 0.1)
        self.patch(notificationqueue, "LONGEST_RETRY_SECONDS", 0.1)
        channel = SyslogChannel(reactor, SyslogSettings(f"tcp:127.0.0.1:{self.tcp}"))
        notifier = Notifier(reactor, AlertRules(0.0, 0.0), [channel])
        notifier.start()
        self.addCleanup(notifier.stop)
        entry = entryOf()
        notifier.findingChanged(Raised(entry))
        await waitUntil(reactor, notifier.findings, _SECONDS)
        await self.start()
        await waitUntil(reactor, lambda: len(self.received()) == 1, _SECONDS)
        await waitUntil(reactor, lambda: not notifier.findings(), _SECONDS)
        self.kill()
        entry.clearedAt = 2000.0
        notifier.findingChanged(Cleared(entry))
        await waitUntil(reactor, notifier.findings, _SECONDS)
        await self.start()
        await waitUntil(reactor, lambda: len(self.received()) == 2, _SECONDS)
        self.assertEqual([row["priority"] for row in self.received()], ["warning", "notice"])
        await waitUntil(reactor, lambda: not notifier.findings(), _SECONDS)
