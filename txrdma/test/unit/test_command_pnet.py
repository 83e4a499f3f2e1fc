"""
C{txrdma pnet} and C{txrdma devices --for}.
"""

from __future__ import annotations

import fcntl
import io
import json
import os
from contextlib import redirect_stdout
from pathlib import Path
from typing import Any, cast

from twisted.internet.defer import Deferred
from twisted.python.usage import UsageError
from twisted.trial.unittest import SynchronousTestCase

from txrdma.command import TxrdmaOptions
from txrdma.commands import pnet
from txrdma.commands.common import devicechoice
from txrdma.commands.common.devicechoice import deviceChoiceFor
from txrdma.error import InvalidRequest
from txrdma.ports import pnet as pnetfile
from txrdma.ports.netlink import InterfaceAddress, NetworkInterface
from txrdma.ports.pnet import Networks
from txrdma.ports.pnettable import PNETEntry, RDMAPort, Table
from txrdma.smc.terms.options import LOCAL_DEVICE

LOOPBACK = NetworkInterface(
    1, "lo", 65536, True, True, True, b"", (InterfaceAddress("127.0.0.1", 8), InterfaceAddress("::1", 128))
)
ETHERNET = NetworkInterface(2, "eth0", 1500, True, True, False, b"", (InterfaceAddress("192.0.2.7", 24),))
PORT = RDMAPort("mlx5_0", 1, frozenset({"eth0"}), True)


class CommandTestCase(SynchronousTestCase):
    kernels: Table = ()
    ports: tuple[RDMAPort, ...] = (PORT,)

    def setUp(self) -> None:
        self.file = Path(self.mktemp())

        class Host(Networks):
            @classmethod
            def read(cls, root: object = None) -> Networks:
                return Networks(self.ports, (), (LOOPBACK, ETHERNET), "/nowhere")

        for module in (pnet, devicechoice):
            self.patch(module, "Networks", Host)
        self.patch(pnet, "kernelTable", lambda: self.kernels)

    def output(self, *words: str) -> str:
        options = TxrdmaOptions()
        options.parseOptions(list(words))
        assert options.subCommand is not None
        module = __import__(f"txrdma.commands.{options.subCommand}", fromlist=["run"])
        out = io.StringIO()
        with redirect_stdout(out):
            self.successResultOf(Deferred.fromCoroutine(module.run(None, options.subOptions)))
        return out.getvalue()

    def pnet(self, *words: str) -> str:
        return self.output("pnet", "--file", str(self.file), *words)


class PnetTests(CommandTestCase):
    def test_edited(self) -> None:
        """Members are added and removed, one or several at a time."""
        self.assertEqual(self.pnet("add", "net1", "eth0", "mlx5_0/1"), "")
        self.assertEqual(self.pnet("add", "NET1", "eth1"), "")
        self.assertEqual(self.file.read_text(), "NET1 eth0\nNET1 mlx5_0/1\nNET1 eth1\n")
        self.pnet("remove", "NET1", "eth1")
        self.assertEqual(self.file.read_text(), "NET1 eth0\nNET1 mlx5_0/1\n")
        self.pnet("remove", "NET1")
        self.assertEqual(self.file.read_text(), "")

    def test_simultaneous(self) -> None:
        """The table is locked while it is changed, so that no change of another process is lost."""
        held: list[bool] = []

        def readText(path: Path) -> str:
            folder = os.open(path.parent, os.O_RDONLY)
            try:
                fcntl.flock(folder, fcntl.LOCK_EX | fcntl.LOCK_NB)
                held.append(False)
            except BlockingIOError:
                held.append(True)
            os.close(folder)
            return pnetfile.readText(path)

        self.patch(pnet, "readText", readText)
        self.pnet("add", "NET1", "eth0")
        self.assertEqual(held, [True, False])  # the second time, it is only parsed

    def test_locked(self) -> None:
        """A lock that another process does not release is an error after a while."""
        self.patch(pnetfile, "_LOCK_SECONDS", 0.0)
        folder = os.open(self.file.parent, os.O_RDONLY)
        self.addCleanup(os.close, folder)
        fcntl.flock(folder, fcntl.LOCK_SH)  # every user who may read the folder can do that
        self.assertIn("another process has locked", self.refused("add", "NET1", "eth0"))
        self.assertFalse(self.file.exists())

    def test_missingFolder(self) -> None:
        """The folder of the table is made for a new entry only."""
        self.file = self.file / "folder" / "table"
        self.assertIn("No such file", self.refused("remove", "NET1"))
        self.assertFalse(self.file.parent.parent.exists())
        self.pnet("add", "NET1", "eth0")
        self.assertTrue(self.file.exists())

    def refused(self, *words: str) -> str:
        """Return the error of an action."""
        options = TxrdmaOptions()
        options.parseOptions(["pnet", "--file", str(self.file), *words])
        done = Deferred.fromCoroutine(pnet.run(None, cast(Any, options.subOptions)))
        return str(self.failureResultOf(done, InvalidRequest).value)

    def test_refused(self) -> None:
        """Invalid entries change nothing."""
        self.pnet("add", "NET1", "eth0")
        for words in (("add", "NET2", "eth0"), ("add", "NET-2", "eth1"), ("remove", "NET2")):
            self.refused(*words)
        self.assertEqual(self.file.read_text(), "NET1 eth0\n")

    def test_usage(self) -> None:
        """Missing or additional arguments are a usage error, as is an empty name of the file."""
        for words in (("add", "NET1"), ("remove",), ("show", "NET1"), ("print",), ("--file=",)):
            self.assertRaises(UsageError, TxrdmaOptions().parseOptions, ["pnet", *words])

    def test_shown(self) -> None:
        """Entries of the file and of the kernel are shown with the resulting ports."""
        self.kernels = (PNETEntry("NET9", "lo"),)
        self.pnet("add", "NET1", "eth0", "mlx5_0/1")
        text = self.pnet()
        self.assertRegex(text, r"NET1 +mlx5_0/1 +file")
        self.assertRegex(text, r"NET9 +lo +kernel")
        self.assertRegex(text, r"eth0 +mlx5_0/1 +eth0 belongs to the network NET1")
        self.assertRegex(text, r"lo +none +lo belongs to the network NET9")

    def test_json(self) -> None:
        found: dict[str, Any] = json.loads(self.pnet("add", "NET1", "eth0", "mlx5_0/1", "--json"))
        self.assertEqual(found["file"], str(self.file))
        self.assertEqual(found["entries"][0], {"network": "NET1", "member": "eth0", "source": "file"})
        [_, ethernet] = found["interfaces"]
        self.assertEqual((ethernet["network"], ethernet["port"]), ("NET1", "mlx5_0/1"))


class OutlookTests(CommandTestCase):
    own = "192.0.2.7"

    def setUp(self) -> None:
        super().setUp()
        self.patch(devicechoice, "hasPyverbs", lambda: True)
        self.patch(devicechoice, "_ends", lambda host: (host, self.own))
        self.patch(
            os, "environ", {key: value for key, value in os.environ.items() if key != "TXRDMA_RUNTIME"}
        )

    def test_real(self) -> None:
        """A host that is reached over an interface with an RDMA port."""
        choice = deviceChoiceFor("192.0.2.9")
        self.assertEqual((choice.device, choice.port), ("pyverbs:mlx5_0", 1))
        self.assertEqual((choice.own, choice.interface), ("192.0.2.7", "eth0"))
        self.assertRegex(self.output("devices", "--for", "192.0.2.9"), r"device +pyverbs:mlx5_0, port 1")

    def test_withoutPyverbs(self) -> None:
        """Without pyverbs TCP is used, and the reason is shown."""
        self.patch(devicechoice, "hasPyverbs", lambda: False)
        choice = deviceChoiceFor("192.0.2.9")
        self.assertEqual(choice.device, "")
        self.assertIn("But pyverbs is not installed, by which it would be opened.", choice.why)

    def test_sameHost(self) -> None:
        """An address of this host uses shared memory."""
        choice = deviceChoiceFor("192.0.2.7")
        self.assertEqual((choice.device, choice.interface), (LOCAL_DEVICE, "lo"))

    def test_elsewhere(self) -> None:
        """Another host without a local RDMA port uses TCP, or is a container of this host."""
        self.ports = ()
        choice = deviceChoiceFor("192.0.2.9")
        self.assertEqual((choice.device, choice.port), ("", None))
        self.assertIn("TXRDMA_RUNTIME names no directory", choice.why[-1])
        self.patch(os, "environ", {**os.environ, "TXRDMA_RUNTIME": "/run/txrdma"})
        self.assertIn("found in /run/txrdma", deviceChoiceFor("192.0.2.9").why[-1])
        self.assertRegex(self.output("devices", "--for", "192.0.2.9"), r"device +none: plain TCP")

    def test_json(self) -> None:
        found = json.loads(self.output("devices", "--for", "192.0.2.9", "--json"))
        self.assertEqual((found["device"], found["port"], found["network"]), ("pyverbs:mlx5_0", 1, ""))

    def test_usage(self) -> None:
        """A host and a device exclude each other."""
        self.assertRaises(UsageError, TxrdmaOptions().parseOptions, ["devices", "--for", "a", "soft"])
