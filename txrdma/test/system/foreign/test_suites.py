"""
Third-party suites with C{smc:} at both ends: tests that pass over TCP pass over SMC-R.

They are Twisted's own suites that use real ports and are not in L{txrdma.test.integration.smc.test_reactors},
and treq's. C{twisted.conch.test.test_conch} is not included because its clients are OpenSSH's, which use TCP
anyway; nor is C{test_sslverify.OpenSSLOptionsTests}, which generates keys for half a minute and connects in
six tests.

Each suite runs in a process over SMC-R (L{txrdma.test.system.foreign.everywhere}). If tests that are not in
L{EXCEPTIONS} do not pass, these run in another process over TCP, where they must not pass either.
"""

from __future__ import annotations

import json
import os
import sys
from importlib.util import find_spec
from pathlib import Path
from typing import Any, cast, Final

from twisted.internet import reactor
from twisted.internet.defer import Deferred
from twisted.internet.utils import getProcessOutputAndValue
from twisted.trial.unittest import SkipTest, TestCase

from txrdma.test.support.processes import CHECKOUT

SUITES: Final[dict[str, tuple[str, ...]]] = {
    "twisted.mail.test.test_imap": (),
    "twisted.mail.test.test_pop3client": ("OpenSSL",),
    "twisted.mail.test.test_smtp": ("OpenSSL",),
    "twisted.names.test.test_names": (),
    "twisted.spread.test.test_pb": (),
    "twisted.test.test_amp": ("OpenSSL",),
    "twisted.test.test_ftp": (),
    "twisted.test.test_policies": (),
    "twisted.test.test_protocols": (),
    "twisted.test.test_ssl": ("OpenSSL", "hamcrest"),
    "twisted.test.test_sslverify.OpenSSLOptionsECDHIntegrationTests": ("OpenSSL",),
    "twisted.test.test_tcp": ("hamcrest",),
    "twisted.web.test.test_cgi": (),
    "twisted.web.test.test_distrib": (),
    "twisted.web.test.test_xmlrpc": (),
    "twisted.words.test.test_service": (),
    "treq.test.test_treq_integration.TreqIntegrationTests": ("treq", "httpbin", "OpenSSL"),
    "treq.test.test_treq_integration.HTTPSTreqIntegrationTests": ("treq", "httpbin", "OpenSSL"),
}
"""The modules and classes whose tests connect, and the packages that they need."""

EXCEPTIONS: Final = {
    "twisted.test.test_tcp.CannotBindTests.test_clientBind": (
        "a client of txrdma's endpoints can choose its local address, but not its local port"
    ),
    "twisted.test.test_tcp.HalfCloseTests.testCloseWriteCloser": (
        "reads `_tempDataBuffer`, which is private to Twisted's transports"
    ),
    "twisted.test.test_tcp.ListeningTests.test_serverRepr": (
        "compares the `repr` of the transport with that of a socket's"
    ),
    "twisted.test.test_tcp.LogTests.test_logstrClientSetup": (
        "reads `logstr` of a socket that is not connected yet, which an endpoint does not have"
    ),
    "twisted.test.test_tcp.PauseProducingTests.test_pauseProducingInConnectionMade": (
        "expects the transport among the reactor's readers, which contain only that of its link"
    ),
}
"""Tests that pass over TCP and can't over SMC-R, and the reasons."""


class _Playing(TestCase):
    """Runs suites in separate processes."""

    timeout = 240
    slowBecause = "Runs a suite of another project in a process of its own."

    async def play(self, over: str, reactorName: str, *names: str, scheme: str = "smc") -> dict[str, Any]:
        """Return the outcomes of suites or tests, as L{txrdma.test.system.foreign.player} writes them."""
        results = Path(self.mktemp()).absolute()
        results.parent.mkdir(parents=True, exist_ok=True)
        words = ["-m", "txrdma.test.system.foreign.player", "--over", over, "--reactor", reactorName]
        words += ["--results", str(results), *names]
        environment = {**os.environ, "PYTHONPATH": str(CHECKOUT), "SCHEME": scheme}
        running: Deferred[tuple[bytes, bytes, int]] = getProcessOutputAndValue(
            sys.executable, words, environment, str(results.parent), reactor
        )
        out, err, _ = await running
        if not results.exists():
            self.fail(f"{names} over {over} have no results: {(out + err)[-2000:].decode(errors='replace')}")
        return cast("dict[str, Any]", json.loads(results.read_text()))

    def assertSMC(self, played: dict[str, Any]) -> None:
        """Assert that all connections used SMC-R."""
        hows = {name: set(counts) for name, counts in played["connections"].items()}
        self.assertEqual({name: kinds for name, kinds in hows.items() if kinds != {"SMC-R"}}, {})


class SuiteComparison(_Playing):
    """Runs a suite over SMC-R, and compares it with the same suite over TCP if tests do not pass."""

    async def compare(self, suite: str, reactorName: str) -> None:
        """Assert that tests pass over SMC-R, apart from the exceptions and those that fail over TCP, too."""
        for needed in SUITES[suite]:
            if find_spec(needed) is None:
                raise SkipTest(f"{suite} needs {needed}, which is not installed")
        smc = await self.play("smc", reactorName, suite)
        differing = {name for name, outcome in smc["outcomes"].items() if outcome != ["passed"]}
        excepted = {name for name in EXCEPTIONS if name.startswith(f"{suite}.")}
        self.assertEqual(excepted - differing, set(), "these are listed as exceptions, and pass")
        self.assertSMC(smc)
        connecting = (smc["outcomes"].keys() - differing) & smc["connections"].keys()
        self.assertGreater(len(connecting), 0, f"no test connects and passes: {smc['outcomes']}")
        if surprising := differing - excepted:
            tcp = await self.play("tcp", reactorName, *sorted(surprising))
            passed = [name for name in surprising if tcp["outcomes"][name] == ["passed"]]
            self.assertEqual({name: smc["outcomes"][name] for name in passed}, {}, "these pass over TCP")


class PlainComparison(_Playing):
    """
    A suite as a user writes it (L{txrdma.test.system.foreign.plain}), with C{smc:} in place of C{tcp:}.

    Half of its tests remove everything from the reactor at their end.
    """

    slowBecause = "Runs a suite in one process over TCP and in another over SMC-R."

    async def compare(self, reactorName: str) -> None:
        """Assert that all tests pass over SMC-R in one process."""
        played = {}
        for scheme in ("tcp", "smc"):  # one after the other, because their durations are compared
            plain = "txrdma.test.system.foreign.plain"
            played[scheme] = await self.play("tcp", reactorName, plain, scheme=scheme)
            outcomes = played[scheme]["outcomes"]
            failed = {name: each for name, each in outcomes.items() if each != ["passed"]}
            self.assertEqual((failed, len(outcomes)), ({}, 40))
        self.assertSMC(played["smc"])
        connections = sum(sum(hows.values()) for hows in played["smc"]["connections"].values())
        self.assertEqual((connections, played["tcp"]["connections"]), (80, {}))


def addSuites(case: type[SuiteComparison], reactorName: str) -> None:
    def add(suite: str) -> None:
        async def test(self: SuiteComparison) -> None:
            await self.compare(suite, reactorName)

        test.__doc__ = f"C{{{suite}}} passes over SMC-R as over TCP on the {reactorName} reactor."
        setattr(case, f"test_{suite.replace('.', '_')}_{reactorName}", test)

    for each in SUITES:
        add(each)


def addPlain(case: type[PlainComparison], reactorName: str) -> None:
    """Add a test of the plain suite on a reactor."""

    async def test(self: PlainComparison) -> None:
        await self.compare(reactorName)

    test.__doc__ = f"The plain suite leaves nothing in the {reactorName} reactor."
    setattr(case, f"test_{reactorName}", test)


class SuitesTests(SuiteComparison):
    """Each suite, over SMC-R."""


class PlainTests(PlainComparison):
    """The plain suite, over TCP and over SMC-R."""


addSuites(SuitesTests, "epoll")
addPlain(PlainTests, "epoll")
