"""
Every LLC message in every state of a link group: what a peer may send, and what ends the group.
"""

from __future__ import annotations

from typing import cast

from twisted.internet.error import ConnectionLost
from twisted.logger import formatEvent, globalLogPublisher, ILogObserver, LogEvent, LogLevel

from txrdma.smc.group import group as groupModule
from txrdma.smc.wire.llc import (
    LLC,
    LLCHeader,
    LLCType,
)
from txrdma.test.support.smc.linkrules import bodies
from txrdma.test.support.smc.races import RaceTestCase


class LogTests(RaceTestCase):
    """Log entries about a peer that breaks a rule."""

    def setUp(self) -> None:
        super().setUp()
        self.patch(groupModule._rateLimited, "_entries", {})
        self.output: list[LogEvent] = []
        observer = cast(ILogObserver, self.output.append)
        globalLogPublisher.addObserver(observer)
        self.addCleanup(globalLogPublisher.removeObserver, observer)

    def test_logNamesPeerAndRuleAndBothEndsLoseGroup(self) -> None:
        """A message that breaks a rule ends the link group of the two hosts, and not that of a third one."""
        bystander, served, _ = self.connect(client=self.host(3))
        self.until(lambda: bystander.mode and served.mode)
        [unaffected] = self.groupsOf[self.server].groups()
        for hasConnection in (True, False):
            here, there = self.pair()
            [other] = self.groupsOf[self.client].groups()
            [group] = (each for each in self.groupsOf[self.server].groups() if each is not unaffected)
            peer = f"198.51.100.1:{self.number}"
            if not hasConnection:
                here.transport.loseConnection()
                there.transport.loseConnection()
                self.until(lambda here=here, there=there: here.reason and there.reason)  # type: ignore[misc]
                self.wait(1)
                peer = str(group.key.gid)
                groupModule._rateLimited._entries.clear()
            self.output.clear()
            other.links[0].send(LLC(LLCType.CONFIRM_LINK, LLCHeader(), bodies(1)[0]).encode())
            self.until(lambda group=group, other=other: group.isOver and other.isOver)  # type: ignore[misc]
            [reported] = [event for event in self.output if event["log_level"] is LogLevel.warn]
            text = formatEvent(reported)
            self.assertIn(peer, text)
            self.assertIn("a client does not send this request", text)
            self.until(lambda here=here, there=there: here.reason and there.reason)  # type: ignore[misc]
            if hasConnection:
                self.assertEqual((here.reason, there.reason), (ConnectionLost, ConnectionLost))
            before = served.received
            bystander.transport.write(b"hello")
            self.until(lambda before=before: served.received == before + b"hello")  # type: ignore[misc]
        self.assertEqual((bystander.mode, bystander.reason, served.reason), ("SMC-R", None, None))
