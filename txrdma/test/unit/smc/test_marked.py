"""
SMC's TCP option as used by endpoints; a model of the kernel's part determines which sockets have it.
"""

from __future__ import annotations

import socket

from zope.interface.verify import verifyClass

from twisted.internet.task import Clock
from twisted.logger import capturedLogs
from twisted.trial.unittest import SynchronousTestCase

from txrdma.smc.common.reactoruse import ReactorUse
from txrdma.smc.handshake.carriers import carrierFor
from txrdma.smc.signalling.interfaces import IClientSignal, IListenerSignal
from txrdma.smc.signalling.option import shared
from txrdma.smc.signalling.option.carrier import OptionCarrier
from txrdma.smc.signalling.option.shared import SharedOption
from txrdma.smc.signalling.tcpoption import MarkedApproach, MarkedReception
from txrdma.smc.terms.options import Options
from txrdma.test.support.smc.ends import reactor
from txrdma.test.support.smc.marked import ModelCarrier


class InterfaceTests(SynchronousTestCase):
    def test_provided(self) -> None:
        verifyClass(IClientSignal, MarkedApproach)
        verifyClass(IListenerSignal, MarkedReception)
        carrier = carrierFor(reactor, Options(device="soft"))
        self.assertIsInstance(carrier.approach(), MarkedApproach)
        for options in (Options(), Options(device="soft", option=False)):
            self.assertNotIsInstance(carrierFor(reactor, options).approach(), MarkedApproach)


class SharedTests(SynchronousTestCase):
    """The instance that the sockets of a reactor share."""

    def test_closedWithTheLastUse(self) -> None:
        presence = ReactorUse(Clock())
        opened: list[ModelCarrier] = []

        def open() -> ModelCarrier:
            opened.append(ModelCarrier())
            return opened[-1]

        option = SharedOption(presence, open)
        use, other = presence.hold(), presence.hold()
        self.assertEqual(opened, [])
        with socket.socket() as client:
            self.assertTrue(option.markClient(client))
            self.assertTrue(option.markListener(client))
        use.release()
        self.assertTrue(opened[0].isOpen)
        other.release()
        self.assertFalse(opened[0].isOpen)
        self.assertEqual(len(opened), 1)
        use = presence.hold()
        self.assertTrue(option.isAvailable)
        self.assertEqual(len(opened), 2)
        use.release()
        self.assertFalse(opened[1].isOpen)

    def test_unavailableOptionIsLoggedOnce(self) -> None:
        self.patch(shared, "_logged", set())
        with capturedLogs() as entries:
            for _ in range(2):
                option = SharedOption(ReactorUse(Clock()), lambda: OptionCarrier(None, why="no such luck"))
                with socket.socket() as unmarked:
                    self.assertFalse(option.markClient(unmarked))
                    self.assertFalse(option.markListener(unmarked))
                    self.assertFalse(option.wasExchanged(unmarked))
        reported = [each for each in entries if each.get("reason") == "no such luck"]
        self.assertEqual([each["log_level"].name for each in reported], ["info"])
