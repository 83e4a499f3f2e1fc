"""Tests of devices as C{txrdma verify} runs them, and its server."""

from __future__ import annotations

import os
from typing import Any

from twisted.internet import reactor as theReactor
from twisted.internet.error import CannotListenError
from twisted.internet.protocol import Factory
from twisted.trial.reporter import TestResult
from twisted.trial.unittest import SynchronousTestCase, TestCase

from txrdma.verify.serving import Serving
from txrdma.verify.subject import TestedPort
from txrdma.verify.suites import casesOf

LOOPBACK = "127.0.0.1"

reactor: Any = theReactor


class DescriptorTests(SynchronousTestCase):
    slowBecause = "tests of a device, on the software device"

    def test_released(self) -> None:
        """Tests of a part release their descriptors, of which a process may have 64 only."""
        end = TestedPort.read(reactor, "soft", 1)
        for part in ("verbs", "mad"):
            cases = list(casesOf(part, (end, end)))[:4]
            result: Any = TestResult()
            cases[0].run(result)
            before = len(os.listdir("/proc/self/fd"))
            for case in cases:
                case.run(result)
            # Not that all have passed: they have time limits, which a busy host exceeds.
            self.assertEqual((result.testsRun, result.errors), (len(cases) + 1, []))
            self.assertLessEqual(len(os.listdir("/proc/self/fd")), before + 2, part)


class ServingTests(TestCase):
    async def test_portInUse(self) -> None:
        """A server whose TCP port is in use fails, and closes its other ports."""
        occupying = reactor.listenTCP(0, Factory(), interface=LOOPBACK)
        self.addCleanup(occupying.stopListening)
        serving = Serving(reactor, TestedPort.read(reactor, "soft", 1), LOOPBACK)
        with self.assertRaisesRegex(CannotListenError, "in use"):
            await serving.start(occupying.getHost().port)
        self.assertEqual(serving.offer["missing"], {})
