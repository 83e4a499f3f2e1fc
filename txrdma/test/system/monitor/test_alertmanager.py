"""A real Alertmanager that receives alerts, and is killed at random."""

from __future__ import annotations

from dataclasses import replace
from random import Random
from typing import Any

from twisted.internet import reactor as theReactor
from twisted.trial.unittest import TestCase

from txrdma.monitor.diagnosis.findinglog import Action, Cleared, Entry, FindingLog, Raised
from txrdma.monitor.events import notificationqueue
from txrdma.monitor.events.alerts import AlertRules
from txrdma.monitor.events.channels import WebhookChannel
from txrdma.monitor.events.notifier import Notifier
from txrdma.monitor.reading.poller import DEFAULT_RULES
from txrdma.test.support.monitor.alertmanager import Alertmanager, why
from txrdma.test.support.monitor.alerts import entryOf
from txrdma.testing.reactors import waitUntil

reactor: Any = theReactor
SEED = 29


class AlertmanagerTests(TestCase):
    """Alerts of a monitor at an Alertmanager."""

    slowBecause = "starts and kills an Alertmanager"
    timeout = 120.0

    if why():
        skip = why()

    def setUp(self) -> None:
        self.manager = Alertmanager()
        self.addCleanup(self.manager.close)
        for name in ("RETRY_SECONDS", "LONGEST_RETRY_SECONDS"):
            self.patch(notificationqueue, name, 0.1)
        channel = WebhookChannel(reactor, "ours", self.manager.alertsURL, isAlertmanager=True)
        channel.repeatSeconds = 0.2
        self.notifier = Notifier(reactor, AlertRules(0.0, 0.0), [channel])
        self.notifier.start()
        self.addCleanup(self.notifier.stop)

    def raised(self, entry: Entry) -> None:
        entry.firstSeen, entry.clearedAt = reactor.seconds(), None
        self.notifier.findingChanged(Raised(entry))

    def cleared(self, entry: Entry) -> None:
        entry.clearedAt = reactor.seconds()
        self.notifier.findingChanged(Cleared(entry))

    async def firing(self, *kinds: str) -> list[dict[str, Any]]:
        """Wait until exactly these alerts are firing; return them."""

        def isSo() -> bool:
            return sorted(one["labels"]["alertname"] for one in self.manager.alerts()) == sorted(kinds)

        await waitUntil(reactor, isSo, 30.0)
        return self.manager.alerts()

    async def test_ends(self) -> None:
        """An alert is resolved although its node has another name meanwhile, and fires again."""
        entry = entryOf("width", "localhost")
        self.raised(entry)
        (alert,) = await self.firing("width")
        labels = {"alertname": "width", "severity": "warning", "guid": "6c65:6166:3030:3031", "port": "7"}
        self.assertEqual((alert["labels"], alert["annotations"]["where"]), (labels, "localhost"))
        entry.finding = replace(entry.finding, where="node17")
        self.cleared(entry)
        await self.firing()
        self.raised(entry)
        await self.firing("width")

    async def test_acknowledged(self) -> None:
        """
        An acknowledged alert keeps firing as the same alert, with the name of the operator and the comments;
        its end resolves it. One that is acknowledged before it is sent is never there.
        """
        log, entry, other = FindingLog(DEFAULT_RULES), entryOf("width"), entryOf("speed")
        self.raised(other)
        self.notifier.findingChanged(log.annotate(other, Action.ACKNOWLEDGE, "bob", "", 5.0))
        self.raised(entry)
        (before,) = await self.firing("width")
        self.assertNotIn("acknowledgedBy", before["annotations"])
        self.notifier.findingChanged(log.annotate(entry, Action.ACKNOWLEDGE, "alice", "cable ordered", 5.0))
        await waitUntil(reactor, lambda: "acknowledgedBy" in self.manager.alerts()[0]["annotations"], 30.0)
        (after,) = self.manager.alerts()
        expected = {"acknowledgedBy": "alice", "comments": "alice: cable ordered"}
        self.assertEqual(after["annotations"], {**before["annotations"], **expected})
        for name in ("fingerprint", "labels", "startsAt", "status"):
            self.assertEqual(after[name], before[name])
        self.cleared(entry)
        await self.firing()

    async def test_killed(self) -> None:
        """One that is killed at random, and forgets all alerts, has exactly the open ones in the end."""
        random = Random(SEED)
        entries = {f"kind-{number}": entryOf(f"kind-{number}") for number in range(8)}
        isOpen: set[str] = set()
        for _ in range(5):
            isKilled = random.random() < 0.5
            if isKilled:
                self.manager.kill()
            for kind in random.sample(sorted(entries), 4):
                if kind in isOpen:
                    self.cleared(entries[kind])
                else:
                    self.raised(entries[kind])
                isOpen ^= {kind}
            if isKilled:
                await waitUntil(reactor, self.notifier.findings, 30.0)
                self.manager.start()
            else:
                self.manager.kill()
                self.manager.start()
            await self.firing(*isOpen)
            await waitUntil(reactor, lambda: not self.notifier.findings(), 30.0)  # it has read the answer
