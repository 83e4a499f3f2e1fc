"""
A monitor of which one call of one function raises an exception: no row, event or alert is lost silently,
other channels are not affected, the exception is logged once, and nothing is left pending.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import closing, ExitStack
from functools import partial
from sqlite3 import connect
from typing import Any
from unittest.mock import Mock

from twisted.internet.error import ConnectionRefusedError
from twisted.internet.task import Clock
from twisted.python.failure import Failure
from twisted.trial.unittest import SynchronousTestCase

from txrdma.kit.backoff import BackOff
from txrdma.kit.remotesender import RemoteSender
from txrdma.kit.spool import Spool
from txrdma.monitor.diagnosis.findinglog import Cleared, Entry, Raised
from txrdma.monitor.diagnosis.journal import FabricEvent
from txrdma.monitor.events import alerts, channels, notificationqueue
from txrdma.monitor.events.alerts import AlertRules, AlertTracker
from txrdma.monitor.events.channels import AlertChannel, WebhookChannel
from txrdma.monitor.events.notificationqueue import NotificationQueue
from txrdma.monitor.events.notifier import Notifier
from txrdma.monitor.series import remotewriter
from txrdma.monitor.series.database import Database, SQLite
from txrdma.monitor.series.eventtable import EventTable
from txrdma.monitor.series.history import BatchWriter, HistoryWriter
from txrdma.monitor.series.historystore import HistoryStore
from txrdma.monitor.series.remotesettings import RemoteSettings
from txrdma.monitor.series.remotewriter import _Encoder, RemoteWriter
from txrdma.tap import duty
from txrdma.test.support.httpagents import Prepared, PreparedAgent
from txrdma.test.support.interruptions import Function, Interruptions
from txrdma.test.support.monitor.alerts import entryOf, RecordingOutlet
from txrdma.test.support.monitor.samples import isMissing, MISSING, samplesIn
from txrdma.test.support.monitor.storecontract import OTHER, PORT, reading, SHORT
from txrdma.test.unit.kit.test_remotesender import inThread


class InterruptedCase(SynchronousTestCase):
    """Plays a scenario once for each call of each function."""

    slowBecause = "it plays a scenario for each function"
    OWNERS: tuple[Any, ...]
    TRIVIAL: tuple[str, ...] = ("_end",)
    STRIDE = 1

    def setUp(self) -> None:
        self.clock = Clock()
        self.isArmed = False
        self.calls = Interruptions(self.patch, self.OWNERS, lambda *_: self.isArmed, self.TRIVIAL)

    def do(self, function: Callable[..., Any], *arguments: Any) -> Any:
        """Call a function as its caller does, which handles exceptions."""
        try:
            return function(*arguments)
        except ZeroDivisionError:
            self.reported += 1

    def failed(self, failure: Failure) -> None:
        """Count an exception that a Deferred reports."""
        failure.trap(ZeroDivisionError)
        self.reported += 1

    def insist(self, function: Callable[..., Any], *arguments: Any) -> Any:
        """Call a function, and once more if it raises."""
        try:
            return function(*arguments)
        except ZeroDivisionError:
            self.reported += 1
            return function(*arguments)

    def play(self) -> list[str]:
        """Play the scenario; return what is wrong."""
        raise NotImplementedError

    def check(self) -> None:
        found: dict[tuple[Function, int], list[str]] = {}
        self.assertEqual(self.played(), [])
        self.assertGreater(len(self.calls.counts), 10)
        for site in self.calls.each(stride=self.STRIDE):
            try:
                wrong = self.played()
            except Exception:
                print(site)
                raise
            if wrong:
                found[site] = wrong
        text = "\n".join(f"{name} {number}: {wrong}" for ((_, name), number), wrong in found.items())
        self.assertEqual(found, {}, text)

    def played(self) -> list[str]:
        self.reported = 0
        self.clock = Clock()
        self.clock.advance(5000.0)
        self.isArmed = True
        wrong = self.play()
        self.isArmed = False
        logged = len(self.flushLoggedErrors(ZeroDivisionError))
        if self.calls.hasRaised and logged + self.reported != 1:
            wrong.append(f"it was logged {logged} times and reported {self.reported} times")
        wrong += [f"logged as well: {each.value!r}" for each in self.flushLoggedErrors()]
        if pending := self.clock.getDelayedCalls():
            wrong.append(f"pending: {pending}")
        return wrong


class RemoteWriterTests(InterruptedCase):
    """Rows that are sent to an engine, which is away for a while, by two processes."""

    if isMissing:
        skip = MISSING
    OWNERS = (RemoteWriter, BatchWriter, RemoteSender, Spool, BackOff, _Encoder)

    def started(self) -> RemoteWriter:
        with ExitStack() as undo:
            spool = undo.enter_context(closing(Spool(self.folder, 1 << 20)))
            sender = RemoteSender(self.clock, self.agent, "http://engine/", {}, 10.0, spool, inThread)
            writer = RemoteWriter(self.clock, sender, [("fabric", "a")], inThread)
            undo.pop_all()
        return writer

    def test_spool(self) -> None:
        """A spill can be opened again after its writer could not be made."""
        settings = RemoteSettings("http://engine/", self.mktemp())
        self.patch(duty, "RemoteWriter", Mock(side_effect=ZeroDivisionError("simulated")))
        self.assertRaises(ZeroDivisionError, duty.remoteWriterOf, self.clock, settings, inThread)
        Spool(settings.spill, 1 << 20).close()

    def play(self) -> list[str]:
        self.patch(remotewriter, "_MOST_SAMPLES", 30)
        self.folder, self.agent = self.mktemp(), PreparedAgent(Prepared(204))
        at, writer = 0, self.insist(self.started)
        self.insist(writer.start)
        for isAway in (False, True, True, False, False):
            self.agent.usual = ConnectionRefusedError() if isAway else Prepared(204)
            self.insist(writer.add, [reading(at + number, 1) for number in range(3)])
            at += 3
            for _ in range(4):
                self.clock.advance(5.0)
                self.do(writer.findings)
        self.agent.usual = ConnectionRefusedError()
        self.insist(writer.add, [reading(at, 1)])
        hadRaised = self.calls.hasRaised
        self.insist(writer.stop).addErrback(self.failed)
        self.isArmed = False
        if self.calls.hasRaised and not hadRaised:
            at -= 1  # the rows of the last batch are lost, which is logged
        writer.sender.close()
        self.agent.usual = Prepared(204)
        writer = self.started()
        writer.start()
        for _ in range(30):
            self.clock.advance(5.0)
        self.successResultOf(writer.stop())
        wrong = list[str]()
        sent = {
            time // 1000
            for request in self.agent.requests
            for _labels, _value, time in samplesIn(request.body)
        }
        if missing := set(range(at + 1)) - sent:
            wrong.append(f"rows {missing} were not sent; lost: {dict(writer.sender.lost)}")
        return wrong

    def test_each(self) -> None:
        self.check()


class HistoryTests(InterruptedCase):
    """Rows and events of two hours, which are stored in a file."""

    OWNERS = (HistoryWriter, BatchWriter, HistoryStore, EventTable, Database, SQLite)
    STRIDE = 9

    def play(self) -> list[str]:
        path, times = self.mktemp(), range(5400, 14400, 600)
        self.clock.advance(times[0] - self.clock.seconds())

        def opened() -> HistoryWriter:
            return HistoryWriter(self.clock, HistoryStore(path, SHORT), inThread, self.clock.seconds)

        writer = self.insist(opened)
        self.insist(writer.start)
        for at in times:
            self.insist(writer.add, [reading(at, at, portKey=each) for each in (PORT, OTHER)])
            self.insist(writer.append, [FabricEvent(at, "node-came", str(at), "", subject=f"node {at}")])
            self.clock.advance(at + 600.0 - self.clock.seconds())
            for _ in range(4):
                self.clock.advance(5.0)
            self.do(writer.findings)
        self.insist(writer.stop).addErrback(self.failed)
        self.isArmed = False
        writer._store.close()
        store = HistoryStore(path, SHORT)
        wrong = list[str]()
        for key in (PORT, OTHER):
            found = {
                point.at: point.grown for point in store.series(key, "portXmitData", 0, 20000, "minutes")
            }
            found |= {p.at: p.grown for p in store.series(key, "portXmitData", 0, 20000, "readings")}
            if found != {at: at for at in times}:
                wrong.append(f"stored: {found}")
        store.close()
        with closing(connect(path)) as database:
            events = [at for (at,) in database.execute("SELECT at FROM events WHERE kind = 'node-came'")]
        if events != list(times):
            wrong.append(f"events: {events}")
        return wrong

    def test_each(self) -> None:
        self.check()


class AlertTests(InterruptedCase):
    """Findings that are sent to two channels, one of which fails at first, and by the next process."""

    OWNERS = (
        *(Notifier, NotificationQueue, AlertTracker, alerts._Waiting, Entry, notificationqueue, channels),
        *(AlertChannel, WebhookChannel, HistoryWriter),
    )
    TRIVIAL = ("admit", "append", "appendNow", "_appendNow", "_write")

    def play(self) -> list[str]:
        broken, other = RecordingOutlet("one"), RecordingOutlet("other")
        webhook = WebhookChannel(self.clock, "three", "http://receiver/", False)
        webhook._agent = agent = PreparedAgent(Prepared(200))  # type: ignore[assignment]  # a fake
        path = self.mktemp()
        memory = HistoryWriter(self.clock, HistoryStore(path), inThread, self.clock.seconds)
        memory.start()
        rules = AlertRules(10.0, 5.0)
        make = partial(Notifier, self.clock, rules, [broken, other, webhook], memory)
        notifier = self.insist(make)
        self.insist(notifier.start)
        entries = [entryOf(where=f"leaf {number}") for number in range(4)]
        broken.isBroken = True
        missed = set()
        for number, entry in enumerate(entries):
            before = self.reported
            self.do(notifier.findingChanged, Raised(entry))
            if self.reported > before:
                missed.add(entry.finding.where)
            self.clock.pump([1.0] * 20)
            if number == 1:
                broken.isBroken = False
            self.do(notifier.findings)
        entries[0].clearedAt = self.clock.seconds()
        before = self.reported
        self.do(notifier.findingChanged, Cleared(entries[0]))
        cleared = {entries[0].finding.where} if self.reported == before and not missed else set()
        self.clock.pump([5.0] * 70)
        self.isArmed = False
        wrong = []
        wheres = {each.finding.where for each in entries} - missed
        for channel in (broken, other):
            for isRaised, expected in ((True, wheres), (False, cleared)):
                found = [
                    where for each in channel.messages for raised, _, where in each if raised == isRaised
                ]
                if not expected <= set(found):
                    wrong.append(f"{channel.name}, {isRaised}: {found}")
                if channel is other and len(set(found)) < len(found):
                    wrong.append(f"{channel.name} got {found}")
        posted = b"".join(each.body for each in agent.requests).decode()
        if not all(where in posted for where in wheres):
            wrong.append(f"the webhook got {posted.count('startsAt')} alerts")
        if problems := notifier.findings():
            wrong.append(f"findings: {problems}")
        for stopped in (notifier.stop(), memory.stop()):
            self.successResultOf(stopped)
        return wrong

    def test_each(self) -> None:
        self.check()
