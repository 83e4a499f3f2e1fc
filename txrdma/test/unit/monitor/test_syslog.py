"""Messages to syslog: RFC 5424, and the format of the socket of this host."""

from __future__ import annotations

import os
import re
from importlib.util import find_spec

from twisted.internet.task import Clock
from twisted.trial.unittest import SynchronousTestCase

from txrdma.error import InvalidRequest
from txrdma.fabric.advice import Severity
from txrdma.monitor.config import parseConfig
from txrdma.monitor.events.alerts import Alert
from txrdma.monitor.events.syslog import (
    localMessageOf,
    LONGEST_MESSAGE,
    messageOf,
    partsOf,
    SyslogChannel,
    SyslogSettings,
)
from txrdma.tap.duty import channelsOf
from txrdma.test.support.monitor.alerts import alertsOf, entryOf

MESSAGE = re.compile(
    rb"<(\d+)>1 (\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z) ([!-~]+) fabric-monitor (\d+) ([!-~]{1,32}) "
    rb'\[origin software="txrdma" swVersion="[!-~]+"\] \xef\xbb\xbf(.*)'
)
"""The grammar of RFC 5424, 6, with our names."""


class MessageTests(SynchronousTestCase):
    def fields(self, message: bytes) -> list[bytes]:
        match = MESSAGE.fullmatch(message)
        assert match is not None, message
        return list(match.groups())

    def test_format(self) -> None:
        """A message has the severity, time, host and kind of the alert, and its text."""
        (alert,) = alertsOf("leaf 1")
        fields = self.fields(messageOf(alert, 3, 1000.5, "host 1"))
        self.assertEqual(fields[0], b"28")  # daemon.warning
        self.assertEqual(fields[1:5], [b"1970-01-01T00:16:40.500Z", b"host1", b"%d" % os.getpid(), b"width"])
        text = f"warning width is there: leaf 1: it is slow. Mend it. id={alert.identity} guid="
        self.assertTrue(fields[5].decode().startswith(text), fields[5])
        self.assertTrue(fields[5].endswith(b" port=7"))

    def test_severities(self) -> None:
        """Findings have the priority of their severity; their end is a notice."""
        for severity, isRaised, expected in (
            (Severity.CRITICAL, True, 16 * 8 + 2),
            (Severity.WARNING, True, 16 * 8 + 4),
            (Severity.INFO, True, 16 * 8 + 6),
            (Severity.CRITICAL, False, 16 * 8 + 5),
        ):
            entry = entryOf(severity=severity)
            alert = Alert(entry.key, isRaised, entry.toDict())
            self.assertEqual(self.fields(messageOf(alert, 16, 0.0))[0], b"%d" % expected)
            self.assertTrue(localMessageOf(alert, 16).startswith(b"<%d>fabric-monitor[" % expected))

    def test_hostile(self) -> None:
        """Names from the fabric add no lines and no fields; long messages are cut between characters."""
        (alert,) = alertsOf("leaf\n<0>1 - - - - -\x00\udcff" + "\N{SNOWMAN}" * 2000)
        for message in (messageOf(alert, 3, 0.0), localMessageOf(alert, 3)):
            self.assertLessEqual(len(message), LONGEST_MESSAGE)
            self.assertGreater(len(message), LONGEST_MESSAGE - 4)
            text = message.decode()
            self.assertTrue(text.replace("\N{BYTE ORDER MARK}", "").isprintable())
        self.fields(messageOf(alert, 3, 0.0))

    def test_hostileComments(self) -> None:
        """Comments add no lines and no fields, whatever characters they have."""
        (alert,) = alertsOf("leaf 1")
        comments = [{"at": 1.0, "user": "a\nb", "text": "ordered\n<0>1 - - - - -\x00\x1b[2J\udcff\u202e"}]
        noted = Alert(alert.key, False, {**alert.finding, "acknowledgedBy": "a\nb", "comments": comments})
        for message in (messageOf(noted, 3, 0.0), localMessageOf(noted, 3)):
            text = message.decode().replace("\N{BYTE ORDER MARK}", "")
            self.assertIn("ordered", text)
            self.assertTrue(text.isprintable())
        self.fields(messageOf(noted, 3, 0.0))

    def test_notes(self) -> None:
        """Acknowledgement, comments and the name of the fabric are included."""
        (alert,) = alertsOf("leaf 1")
        comments = [{"at": 1.0, "user": "alice", "text": "cable ordered"}]
        finding = {**alert.finding, "acknowledgedBy": "alice", "comments": comments, "fabric": "north"}
        text = localMessageOf(Alert(alert.key, False, finding), 3).decode()
        self.assertIn(": north: warning width is cleared: leaf 1", text)
        self.assertIn("acknowledgedBy=alice comments=alice: cable ordered", text)


class ConfigTests(SynchronousTestCase):
    def test_addresses(self) -> None:
        """Addresses and facilities are checked when the configuration is read."""
        text = '[alerts.syslog]\naddress = "udp:loghost:514"\n'
        self.assertEqual(parseConfig(text).syslog, SyslogSettings("udp:loghost:514", 3))
        self.assertEqual(
            parseConfig(f'{text}facility = "local7"').syslog, SyslogSettings("udp:loghost:514", 23)
        )
        self.assertIsNone(parseConfig("").syslog)
        (channel,) = channelsOf(Clock(), parseConfig(text))
        self.assertIsInstance(channel, SyslogChannel)
        for wrong in ('address = "loghost"', 'address = "udp:loghost"', f'{text[16:]}facility = "x"', ""):
            self.assertRaises(InvalidRequest, parseConfig, f"[alerts.syslog]\n{wrong}")

    def test_hosts(self) -> None:
        """Addresses of IPv6 are in brackets; invalid names and unknown parameters are refused."""
        for address, parts in (
            ("tcp:[::1]:601", ("tcp", "::1", "601", "")),
            ("udp:10.0.0.1:514", ("udp", "10.0.0.1", "514", "")),
            ("tls:log-host:6514:trustRoots=/etc/ca", ("tls", "log-host", "6514", "trustRoots=/etc/ca")),
        ):
            text = f'[alerts.syslog]\naddress = "{address}"\n'
            self.assertEqual(parseConfig(text).syslog, SyslogSettings(address))
            self.assertEqual(partsOf(address), parts)
        for wrong in (
            *(
                "tcp:a:b:3",
                "tcp:::1:601",
                "udp:-x:514",
                "tcp:[x]:1",
                "tcp:a:0",
                "tcp:a:65536",
                "tcp:a:1:timeout=3",
            ),
            *("tls:a:6514:timeout=3", "tls:a:6514:trustRoots=/a:b", "tls:a\\n:6514", "unix:"),
        ):
            self.assertRaises(InvalidRequest, parseConfig, f'[alerts.syslog]\naddress = "{wrong}"\n')

    def test_missingCertificates(self) -> None:
        """Certificates that cannot be read are reported at the start."""
        text = '[alerts.syslog]\naddress = "tls:loghost:6514:trustRoots=/nothing/there"\n'
        if find_spec("OpenSSL") is not None:
            error = self.assertRaises(InvalidRequest, channelsOf, Clock(), parseConfig(text))
            self.assertIn("/nothing/there", str(error))
