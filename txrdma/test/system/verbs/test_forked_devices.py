"""Devices of pyverbs, with a fake in place of the library, in forked processes."""

from __future__ import annotations

import os

from txrdma.test.support.verbs.pyverbs_device import FakeDevice


class ForkTests(FakeDevice):
    def test_forkedProcessTakesNothingFromParentByClosing(self) -> None:
        self.receive(1)
        self.receives.arm()
        child = os.fork()
        if not child:
            code = 99
            try:
                for each in (self.queuePair, self.sends, self.receives, self.channel, self.domain):
                    each.close()
                code = self.rawSends.polls + self.rawReceives.polls
            finally:
                os._exit(code)
        self.assertEqual(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), 0)
        self.raw.complete(self.rawReceives, receive=True)
        os.eventfd_write(self.rawReceives.channel.fd, 1)
        self.assertEqual(list(self.channel.takeEvents()), [self.receives])
        self.assertEqual([each.identifier for each in self.receives.poll(9)], [1])
