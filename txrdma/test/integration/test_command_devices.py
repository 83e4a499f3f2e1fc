"""
C{txrdma devices}: descriptions and tables of the software device, of fake devices and of a fake sysfs.
"""

from __future__ import annotations

import io
import json
from contextlib import redirect_stdout
from typing import Any, cast

from twisted.internet import reactor
from twisted.internet.defer import Deferred
from twisted.trial.unittest import SynchronousTestCase, TestCase

from txrdma import command
from txrdma.command import TxrdmaOptions
from txrdma.commands.common import devicechoice
from txrdma.commands.common.devicedescriptions import Description
from txrdma.commands.common.options import IReactor
from txrdma.commands.devices import run
from txrdma.error import DeviceUnavailable


class CommandTests(SynchronousTestCase):
    """The command itself, with the software device."""

    def reported(self, *arguments: str) -> str:
        options = TxrdmaOptions()
        options.parseOptions(["devices", *arguments])
        out = io.StringIO()
        with redirect_stdout(out):
            self.successResultOf(Deferred.fromCoroutine(run(reactor, options.subOptions)))
        return out.getvalue()

    def one(self, *arguments: str) -> Description:
        [description] = json.loads(self.reported("--json", *arguments))
        assert isinstance(description, dict)
        return description

    def test_json(self) -> None:
        """JSON has all attributes, including those that the device itself reports."""
        reported: Any = self.one("soft")
        self.assertEqual(reported["device"], "soft")
        self.assertIn("soft", [each["device"] for each in json.loads(self.reported("--json"))])
        self.assertEqual(reported["ports"][0]["gids"], ["::ffff:127.0.0.1"])
        self.assertEqual(reported["ports"][0]["gidTable"][0]["type"], "RoCE v2")
        self.assertEqual(reported["ports"][0]["linkLayer"], "ETHERNET")
        self.assertEqual(reported["ports"][0]["pkeys"], [{"index": 0, "pkey": 0xFFFF}])

    def test_twoPorts(self) -> None:
        """A device string names any device, including one with two ports."""
        reported = self.one("soft:127.0.0.1,127.0.0.2")
        self.assertEqual(
            [port["gids"] for port in reported["ports"]], [["::ffff:127.0.0.1"], ["::ffff:127.0.0.2"]]
        )

    def test_verbose(self) -> None:
        """Verbose tables show all values of JSON."""
        text = self.reported("--verbose", "soft")
        for words in ("node GUID", "limits of soft", "max queue pairs", "port 1 of soft", "GIDs of port 1"):
            self.assertIn(words, text)
        self.assertNotIn("max queue pairs", self.reported("soft"))

    def test_refused(self) -> None:
        """A named device that does not exist is an error, not an empty table."""
        options = TxrdmaOptions()
        for name in ("soft:nowhere", "nowhere_7"):
            options.parseOptions(["devices", name])
            self.failureResultOf(Deferred.fromCoroutine(run(reactor, options.subOptions)), DeviceUnavailable)


class EndsTests(SynchronousTestCase):
    """Tests of how hosts are classified by the routes of the system."""

    def test_loopback(self) -> None:
        """A connection to an address of this host has a local source address."""
        self.assertEqual(devicechoice._ends("127.0.0.1"), ("127.0.0.1", "127.0.0.1"))

    def test_noName(self) -> None:
        """An invalid host name is reported as such."""
        self.assertRaises(DeviceUnavailable, devicechoice._ends, "no.such.host.invalid")


class MalformedTests(TestCase):
    """A malformed device string is an error of the user, for each command with C{--device}."""

    async def test_oneLine(self) -> None:
        """The message is that of the parser, after the name of the command."""
        for words in (
            ["btl-ping", "--server", "--port", "0"],
            ["devices"],
            ["resolve", "127.0.0.1", "1"],
            ["rping", "-c", "-a", "127.0.0.1"],
            ["rping", "-s"],
            ["verify"],
        ):
            options = TxrdmaOptions()
            options.parseOptions([*words, *(["soft:x"] if words == ["devices"] else ["--device", "soft:x"])])
            with redirect_stdout(io.StringIO()), self.assertRaises(SystemExit) as raised:
                await command.run(cast(IReactor, reactor), options)
            error = str(raised.exception)
            self.assertIn("soft: address=x is not an IP address", error, words)
            self.assertTrue(error.startswith(f"txrdma {words[0]}: "), error)
