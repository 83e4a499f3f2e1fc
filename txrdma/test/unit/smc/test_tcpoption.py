"""
SMC's TCP option as used by endpoints, with a model of the kernel that determines which sockets have it.
"""

from __future__ import annotations

import socket

from twisted.internet.task import Clock
from twisted.logger import capturedLogs
from twisted.trial.unittest import SynchronousTestCase

from txrdma.smc.common.reactoruse import ReactorUse
from txrdma.smc.signalling.option import shared
from txrdma.smc.signalling.option.carrier import OptionCarrier
from txrdma.smc.signalling.option.shared import SharedOption
from txrdma.test.support.smc.tcpoption import ModelCarrier


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
