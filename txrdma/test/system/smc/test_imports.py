"""
Modules that a connection does not import, because a process' first connection waits for its imports.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from twisted.trial.unittest import SkipTest, TestCase

from txrdma.smc.common.realports import realPorts
from txrdma.test.support.processes import printed

SELDOM: Final = [
    "OpenSSL",
    "asyncio",
    "automat",
    "ctypes",
    "importlib.metadata",
    "pyverbs",
    "txrdma.cm",
    "txrdma.iba.captures",
    "txrdma.commands.dissect",
    "txrdma.iba.headers",
    "txrdma.iba.path",
    "txrdma.iba.pcap",
    "txrdma.iba.roce",
    "txrdma.mad",
    "txrdma.ports.finding",
    "txrdma.ports.following",
    "txrdma.ports.pnet",
    "txrdma.ports.sysfs",
    "txrdma.smc.signalling.configured",
    "txrdma.smc.signalling.tcpoption",
    "txrdma.smc.signalling.neighbours",
    "txrdma.smc.signalling.option",
    "txrdma.smc.signalling.netns",
    "txrdma.smc.kernel",
    "txrdma.soft.rc.peers",
    "txrdma.soft.rc.roce",
    "txrdma.soft.rc.routes",
    "txrdma.testing",
    "txrdma.verbs.polling",
    "txrdma.verbs.pyverbs",
    "txrdma.kit.wirecode",
]
"""Modules for real devices, UDP, other hosts and namespaces, recordings, tests, and code of layouts."""

ENDPOINTS: Final = """
import sys
from twisted.internet import endpoints, reactor, tcp
before = set(sys.modules)
import txrdma.smc.endpoints
print(*set(sys.modules) - before)
"""

PARSERS: Final = """
import sys, txrdma.smc.strings as strings

strings.SMCClientParser(), strings.SMCServerParser()
print(*sys.modules)
"""

CONNECTION: Final = """
import sys
from twisted.internet import reactor
from twisted.internet.protocol import Factory, Protocol
from twisted.internet.task import react
from txrdma.smc.endpoints import SMCClientEndpoint, SMCServerEndpoint

async def connect(reactor):
    factory = Factory.forProtocol(Protocol)
    factory.noisy = False
    port = await SMCServerEndpoint(reactor, 0, "127.0.0.1").listen(factory)
    before = set(sys.modules)
    one = await SMCClientEndpoint(reactor, "127.0.0.1", port.getHost().port).connect(factory)
    assert one.transport.smc.route == "shared-memory", one.transport.smc
    print(*set(sys.modules) - before)
    one.transport.abortConnection()

react(connect)
"""


class ImportTests(TestCase):
    """The modules that are imported in a new process."""

    def imported(self, program: str) -> set[str]:
        """Return the names of the modules that a program has imported."""
        done = printed(program)
        self.assertEqual((done.returncode, done.stderr), (0, ""))
        return set(done.stdout.split())

    def assertWithout(self, imported: Iterable[str], seldom: Iterable[str]) -> None:
        """Fail if one of these modules, or a submodule, was imported."""
        found = {name for name in imported for each in seldom if f"{name}.".startswith(f"{each}.")}
        self.assertEqual(found, set())

    def test_parsersImportNeitherReactorNorRestOfSMC(self) -> None:
        imported = self.imported(PARSERS)
        light = {"txrdma", "txrdma.smc", "txrdma.smc.strings", "txrdma.kit", "txrdma.kit.strings"}
        self.assertEqual({name for name in imported if name.startswith("txrdma")}, light)
        self.assertWithout(imported, ["pyverbs", "twisted.internet.reactor"])

    def test_endpoints(self) -> None:
        """The endpoints import no device, and nothing that most connections do not need."""
        imported = self.imported(ENDPOINTS)
        self.assertIn("txrdma.smc.handshake.negotiation", imported)
        self.assertWithout(imported, [*SELDOM, "txrdma.soft"])

    def test_firstConnectionImportsNothingUnneeded(self) -> None:
        if realPorts.isAny():
            raise SkipTest("this host has RDMA devices, which device=auto examines")
        imported = self.imported(CONNECTION)
        self.assertIn("txrdma.soft.shared.sharedqueuepair", imported)
        self.assertWithout(imported, SELDOM)
