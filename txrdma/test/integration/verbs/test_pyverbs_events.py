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

    def test_own(self) -> None:
        """A completion that is made here is one event of a queue that is armed, and none of another one."""
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

    def test_closed(self) -> None:
        """A queue that is closed before its event is taken has none."""
        self.sends.arm()
        self.receives.arm()
        self.sends.push(self.OWN)
        self.receives.push(self.OWN)
        self.sends.close()
        self.assertEqual(self.channel.takeEvents(), [self.receives])

    def test_unarmed(self) -> None:
        """An event of the device is taken from it, and is one of the queue only if that is armed."""
        for isArmed in (False, True):
            if isArmed:
                self.sends.arm()
            os.eventfd_write(self.sends._bell.fd, 1)
            self.assertEqual(self.channel.takeEvents(), [self.sends] if isArmed else [])
            self.assertEqual(select.select([self.channel], [], [], 0)[0], [])
