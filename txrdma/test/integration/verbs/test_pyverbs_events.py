"""Events of completion channels of pyverbs, with a fake in place of the library."""

from __future__ import annotations

import os
import select

from txrdma.iba.types import QPN
from txrdma.iba.verbs import Completion, CompletionOpcode, Status
from txrdma.test.support.verbs.pyverbs_device import FakeDevice


class EventTests(FakeDevice):
    """Events of a completion channel."""

    OWN = Completion(1, Status.WR_FLUSH_ERR, CompletionOpcode.SEND, QPN(5))

    def test_ownCompletionIsOneEventOfArmedQueue(self) -> None:
        self.sends.push(self.OWN)
        self.assertEqual(self.channel.takeEvents(), [])
        self.sends.arm()
        self.sends.push(self.OWN)
        self.sends.push(self.OWN)
        self.assertEqual(self.channel.takeEvents(), [self.sends])
        self.assertEqual(self.channel.takeEvents(), [])
        self.receives.arm()
        self.receives.push(self.OWN)
        self.assertEqual(self.channel.takeEvents(), [self.receives])

    def test_queueClosedBeforeEventReturnsNone(self) -> None:
        self.sends.arm()
        self.receives.arm()
        self.sends.push(self.OWN)
        self.receives.push(self.OWN)
        self.sends.close()
        self.assertEqual(self.channel.takeEvents(), [self.receives])

    def test_deviceEventIsReportedIfArmed(self) -> None:
        for isArmed in (False, True):
            if isArmed:
                self.sends.arm()
            os.eventfd_write(self.sends._bell.fd, 1)
            self.assertEqual(self.channel.takeEvents(), [self.sends] if isArmed else [])
            self.assertEqual(select.select([self.channel], [], [], 0)[0], [])
