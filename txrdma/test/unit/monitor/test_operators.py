"""Operators acknowledge and comment findings: by pages and REST, in the event log, and in notifications."""

from __future__ import annotations

import json
from collections.abc import Mapping
from hashlib import blake2b
from typing import Any
from urllib.parse import urlencode

from twisted.internet.defer import Deferred
from twisted.internet.task import Clock
from twisted.trial.unittest import SynchronousTestCase

from txrdma.error import DeviceUnavailable, InvalidRequest
from txrdma.fabric.advice import Severity
from txrdma.fabric.health import Finding
from txrdma.kit.passwords import Account, UserRole
from txrdma.kit.webaccess import AccessControl
from txrdma.monitor.diagnosis import findinglog
from txrdma.monitor.diagnosis.findinglog import (
    Action,
    Annotated,
    Cleared,
    FindingEvent,
    FindingLog,
    FindingRules,
    LONGEST_COMMENT,
    MOST_COMMENTS,
    Raised,
    SeverityChanged,
)
from txrdma.monitor.events.alerts import AlertRules
from txrdma.monitor.events.channels import mailOf, MailSettings, postedAlerts, webhookMessage
from txrdma.monitor.events.notifier import Notifier
from txrdma.monitor.reading.poller import DEFAULT_RULES
from txrdma.monitor.series.history import HistoryWriter
from txrdma.monitor.series.historystore import HistoryStore
from txrdma.monitor.web.site import MonitorSite
from txrdma.test.support.monitor.alerts import entryOf, RecordingOutlet
from txrdma.test.support.monitor.fetching import Answer, Connection
from txrdma.test.unit.monitor.test_access import basic, TOKEN
from txrdma.test.unit.monitor.test_pages import PageTestCase

ALICE, BOB = basic("alice", "right"), basic("bob", "right")
PROGRAM = f"Bearer {TOKEN}"
HERE = {"Origin": "http://localhost"}


class LogTests(SynchronousTestCase):
    """The log of findings, without a site."""

    def setUp(self) -> None:
        self.log = FindingLog(FindingRules({}, clearSeconds=10.0))
        self.found = [Finding("width", "leaf 1", "it is slow")]
        self.log.observe("sweep", self.found, 1.0)
        (self.entry,) = self.log.open.values()

    def annotate(self, action: Action, text: str = "", now: float = 5.0) -> None:
        self.log.annotate(self.entry, action, "alice", text, now)

    def test_raisedAnew(self) -> None:
        """An acknowledgement ends when the finding is raised anew; its comments remain."""
        self.annotate(Action.ACKNOWLEDGE, "cable ordered")
        self.log.observe("sweep", [], 6.0)
        self.log.observe("sweep", self.found, 7.0)
        self.assertIsNotNone(self.entry.acknowledgement)
        for now in (8.0, 30.0):
            self.log.observe("sweep", [], now)
        self.assertEqual(self.log.closed, [self.entry])
        self.log.observe("sweep", self.found, 40.0)
        self.assertEqual((self.entry.times, self.entry.acknowledgement), (2, None))
        self.assertEqual([one.text for one in self.entry.comments], ["cable ordered"])

    def test_severity(self) -> None:
        """An acknowledgement ends with another severity, not with other rules."""
        self.annotate(Action.ACKNOWLEDGE)
        self.assertEqual(self.log.change(FindingRules({}, clearSeconds=11.0)), [])
        self.assertIsNotNone(self.entry.acknowledgement)
        critical = FindingRules({}, severities={"width": Severity.CRITICAL})
        (event,) = self.log.change(critical)
        self.assertIsInstance(event, SeverityChanged)
        self.assertEqual((self.entry.acknowledgement, self.entry.severity), (None, Severity.CRITICAL))
        self.assertEqual(self.log.change(critical), [])

    def test_states(self) -> None:
        """Actions that the state of the finding does not permit are refused."""
        self.assertRaises(InvalidRequest, self.annotate, Action.UNACKNOWLEDGE)
        self.assertRaises(InvalidRequest, self.annotate, Action.COMMENT)
        self.annotate(Action.ACKNOWLEDGE)
        self.annotate(Action.UNACKNOWLEDGE, "it was the other one")
        for now in (6.0, 20.0):
            self.log.observe("sweep", [], now)
        self.assertRaises(InvalidRequest, self.annotate, Action.ACKNOWLEDGE)
        self.annotate(Action.COMMENT, "the cable was replaced")
        self.assertEqual(len(self.entry.comments), 2)

    def test_searches(self) -> None:
        """Searches among many findings compute the identity of each once."""
        many = [Finding("width", f"leaf {number}", "it is slow") for number in range(100)]
        self.log.observe("sweep", many, 2.0)
        computed: list[bytes] = []

        def counted(octets: bytes, digest_size: int) -> Any:
            computed.append(octets)
            return blake2b(octets, digest_size=digest_size)

        self.patch(findinglog, "blake2b", counted)
        for entry in self.log.open.values():
            self.assertIs(self.log.find(entry.identity), entry)
        self.assertIsNone(self.log.find("0" * 16))
        self.assertEqual(len(computed), 100)

    def test_bounded(self) -> None:
        """The length and the number of comments are limited; without a comment, one can still acknowledge."""
        self.assertRaises(InvalidRequest, self.annotate, Action.COMMENT, "x" * (LONGEST_COMMENT + 1))
        for _ in range(MOST_COMMENTS):
            self.annotate(Action.COMMENT, "x" * LONGEST_COMMENT)
        for action in (Action.COMMENT, Action.ACKNOWLEDGE):
            self.assertRaises(InvalidRequest, self.annotate, action, "one more")
        self.assertIsNone(self.entry.acknowledgement)
        self.annotate(Action.ACKNOWLEDGE)
        self.assertIsNotNone(self.entry.acknowledgement)
        self.assertEqual(len(self.entry.comments), MOST_COMMENTS)


class AlertTests(SynchronousTestCase):
    """Notifications about acknowledged findings."""

    def setUp(self) -> None:
        self.clock = Clock()
        self.clock.advance(5000.0)
        self.channel = RecordingOutlet(repeatSeconds=300.0)
        self.notifier = Notifier(self.clock, AlertRules(60.0, 0.0), [self.channel])
        self.notifier.start()
        self.addCleanup(self.notifier.stop)
        self.entry = entryOf()
        self.log = FindingLog(DEFAULT_RULES)

    def annotate(self, action: Action, text: str = "") -> None:
        self.notifier.findingChanged(self.log.annotate(self.entry, action, "alice", text, 5.0))

    def states(self) -> list[bool]:
        return [isRaised for message in self.channel.output() for isRaised, _kind, _where in message]

    def test_before(self) -> None:
        """A finding that is acknowledged before it is sent is not sent, nor its end; unacknowledged it is."""
        self.notifier.findingChanged(Raised(self.entry))
        self.annotate(Action.ACKNOWLEDGE)
        self.clock.advance(1000.0)
        self.assertEqual(self.states(), [])
        self.annotate(Action.UNACKNOWLEDGE)
        self.clock.advance(0.0)
        self.assertEqual(self.states(), [True])
        self.annotate(Action.ACKNOWLEDGE)
        self.notifier.findingChanged(Cleared(self.entry))
        self.clock.advance(0.0)
        self.assertEqual(self.states(), [False])
        self.annotate(Action.ACKNOWLEDGE)
        self.notifier.findingChanged(Raised(self.entry))
        self.notifier.findingChanged(Cleared(self.entry))
        self.clock.advance(1000.0)
        self.assertEqual(self.states(), [])

    def test_notes(self) -> None:
        """Repetitions and the end of a finding have its acknowledgement and comments, with equal labels."""
        self.notifier.findingChanged(Raised(self.entry))
        self.clock.advance(60.0)
        self.annotate(Action.ACKNOWLEDGE, "cable ordered")
        self.annotate(Action.COMMENT, "it arrives on monday")
        self.clock.advance(300.0)
        self.entry.clearedAt = 6000.0
        self.notifier.findingChanged(Cleared(self.entry))
        self.clock.advance(0.0)
        first, repeated, end = self.channel.alerts
        posted = postedAlerts(self.channel.alerts, 0.0)
        self.assertEqual(posted[0]["labels"], posted[1]["labels"])
        self.assertNotIn("comments", posted[0]["annotations"])
        for one in (*posted[1:], *webhookMessage([repeated, end], "me")["alerts"]):
            self.assertEqual(one["annotations"]["acknowledgedBy"], "alice")
            comments = "alice: cable ordered; alice: it arrives on monday"
            self.assertEqual(one["annotations"]["comments"], comments)
        mail = mailOf([end], MailSettings("mail", "a@b", ("c@d",)), 0.0).get_content()
        self.assertIn("Acknowledged by: alice", mail)
        self.assertIn("Comments: alice: cable ordered; ", mail)
        self.assertEqual(repeated.identity, first.identity)

    def test_formerOccurrence(self) -> None:
        """A comment on a cleared finding does not change the alert of one that was raised since then."""
        self.entry.clearedAt = 2000.0
        current = entryOf()
        current.firstSeen = 4000.0
        self.notifier.findingChanged(Raised(current))
        self.clock.advance(60.0)
        self.annotate(Action.COMMENT, "the cable was replaced")
        self.clock.advance(300.0)
        first, repeated = self.channel.alerts
        self.assertEqual(repeated.finding, first.finding)

    def test_severity(self) -> None:
        """With another severity, the former alert ends, and another one with another identity is sent."""
        self.notifier.findingChanged(Raised(self.entry))
        self.clock.advance(60.0)
        self.annotate(Action.ACKNOWLEDGE)
        self.entry.acknowledgement, self.entry.severity = None, Severity.CRITICAL
        self.notifier.findingChanged(SeverityChanged(self.entry))
        self.clock.advance(0.0)
        self.clock.advance(60.0)
        first, end, second = self.channel.alerts
        self.assertEqual([one.isRaised for one in (first, end, second)], [True, False, True])
        severities = [one.finding["severity"] for one in (first, end, second)]
        self.assertEqual(severities, ["warning", "warning", "critical"])
        self.assertIsNotNone(end.finding["clearedAt"])
        self.assertEqual(len({one.identity for one in (first, end, second)}), 3)


class OperatorTestCase(PageTestCase):
    """A site with an operator, a viewer, a program with a token, and a finding."""

    def setUp(self) -> None:
        super().setUp()
        users = {b"alice": Account(b"right", UserRole.OPERATOR), b"bob": Account(b"right")}
        self.site = MonitorSite(self.clock, self.watch, access=AccessControl([TOKEN.encode()], users))
        self.started()
        self.fabric.cut("c")
        self.pump(20.0)
        (self.entry,) = self.poller.findings.log.open.values()
        self.path = f"/findings/{self.entry.identity}"

    def post(self, path: str, body: bytes, heads: Mapping[str, str]) -> Answer:
        connection = self.sent(path, body, heads)
        self.pump(0.5)
        answer = connection.answer
        connection.close()
        return answer

    def posted(self, content: object) -> Connection:
        """Send an action of the operator as JSON."""
        heads = {"Content-Type": "application/json", "Authorization": ALICE}
        return self.sent(f"/api/v1{self.path}", json.dumps(content).encode(), heads)

    def sent(self, path: str, body: bytes, heads: Mapping[str, str]) -> Connection:
        connection = Connection(self.site.factory)
        lines = [f"POST {path} HTTP/1.1", "Host: localhost", f"Content-Length: {len(body)}"]
        lines += [f"{name}: {value}" for name, value in heads.items()]
        connection.protocol.dataReceived("\r\n".join([*lines, "", ""]).encode() + body)
        return connection

    def rest(self, content: object, path: str = "", **heads: str) -> Answer:
        given = {"Content-Type": "application/json", "Authorization": ALICE, **heads}
        return self.post(f"/api/v1{path or self.path}", json.dumps(content).encode(), given)

    def form(self, *, path: str = "", heads: Mapping[str, str] = HERE, **fields: str) -> Answer:
        kind = {"Content-Type": "application/x-www-form-urlencoded", "Authorization": ALICE}
        return self.post(path or self.path, urlencode(fields).encode(), {**kind, **heads})


class RESTTests(OperatorTestCase):
    def test_acknowledge(self) -> None:
        """An acknowledgement is shown with its user and time, and ended by another action."""
        before = self.get(f"/api/v1{self.path}", Authorization=BOB).json
        self.assertHas(before, isAcknowledged=False, acknowledgedBy=None, comments=0, commentRows=[])
        now = self.clock.seconds()
        answer = self.rest({"action": "acknowledge", "comment": " cable\r\nordered\x00 "})
        self.assertEqual(answer.code, 200)
        comment = {"at": now, "user": "alice", "text": "cable ordered "}
        expected = {"isAcknowledged": True, "acknowledgedBy": "alice", "acknowledgedAt": now, "comments": 1}
        self.assertHas(answer.json, **expected, commentRows=[comment])
        self.assertEqual(self.get(f"/api/v1{self.path}", Authorization=BOB).json, answer.json)
        found = self.get("/api/v1/findings?isAcknowledged=true", Authorization=BOB).json["rows"]
        self.assertHas(found[0], id=self.entry.identity, **expected)
        answer = self.rest({"action": "unacknowledge"})
        self.assertHas(answer.json, isAcknowledged=False, comments=1)
        changes = self.get("/api/v1/changes?sort=-at&limit=2", Authorization=BOB).json["rows"]
        self.assertEqual([one["kind"] for one in changes][0], "operator-unacknowledged")
        acknowledged = next(one for one in self.poller.findings.journal.changes if "acknowledged" in one.kind)
        self.assertEqual(acknowledged.detail, {"user": "alice", "comment": "cable ordered "})
        self.assertIn("alice acknowledged node-gone: cable ordered", acknowledged.text)

    def test_refused(self) -> None:
        """Viewers, programs, other sites, and what is not JSON are refused; nothing changes."""
        action = {"action": "acknowledge"}
        for heads, code in (
            ({"Authorization": BOB}, 403),
            ({"Authorization": PROGRAM}, 403),
            ({"Authorization": "Basic eDp4"}, 401),
            ({"Origin": "https://evil.example"}, 403),
            ({"Sec-Fetch-Site": "cross-site"}, 403),
            ({"Content-Type": "text/plain"}, 415),
            ({"Content-Type": "application/x-www-form-urlencoded"}, 415),
        ):
            self.assertEqual(self.rest(action, **heads).code, code, heads)
        for content, code in (
            *(({"action": "delete"}, 400), ({}, 400), ([], 400), ("acknowledge", 400)),
            *(({"action": "comment", "comment": 3}, 400), ({**action, "user": "bob"}, 400)),
            *(({"action": "comment"}, 409), ({"action": "unacknowledge"}, 409)),
            ({"action": "comment", "comment": "x" * (LONGEST_COMMENT + 1)}, 409),
        ):
            answer = self.rest(content)
            self.assertEqual(answer.code, code, content)
            self.assertTrue(answer.json["error"])
        for path, code in ((f"/findings/{'0' * 16}", 404), ("/findings/x", 400), ("/findings", 405)):
            self.assertEqual(self.rest(action, path).code, code, path)
        answer = self.post(
            f"/api/v1{self.path}", b"[" * 5000, {"Content-Type": "application/json", "Authorization": ALICE}
        )
        self.assertEqual(answer.code, 400)
        self.assertIsNone(self.entry.acknowledgement)
        self.assertEqual(self.entry.comments, ())
        for reader in (BOB, PROGRAM):
            self.assertEqual(self.get(f"/api/v1{self.path}", Authorization=reader).code, 200)

    def test_standby(self) -> None:
        """A standby refuses, and names the active monitor; so does one that may have lost the history."""
        self.watch.isSure = lambda: False
        answer = self.rest({"action": "acknowledge"})
        self.assertEqual((answer.code, "may have become" in answer.json["error"]), (503, True))
        self.assertIsNone(self.entry.acknowledgement)
        self.watch.isActive, self.watch.active = False, "monitor1"
        answer = self.rest({"action": "acknowledge"})
        self.assertEqual((answer.code, "monitor1 is active" in answer.json["error"]), (503, True))

    def test_stored(self) -> None:
        """An action is confirmed when it is stored, or when the history cannot be written."""
        store = HistoryStore(self.mktemp())
        pending: list[Deferred[object]] = []

        def inThread(work: Any, *arguments: Any) -> Deferred[Any]:
            pending.append(Deferred())
            return pending[-1].addCallback(lambda _: work(*arguments))

        writer = HistoryWriter(self.clock, store, inThread, self.clock.seconds)
        self.addCleanup(store.close)
        writer.start()
        self.addCleanup(writer.loop.stop)
        self.watch.history, self.poller.findings.journal.store = writer, writer.append
        connection = self.posted({"action": "acknowledge"})
        self.assertEqual(connection.transport.value(), b"")
        while pending:
            pending.pop(0).callback(None)
            self.pump(0.5)
        self.assertEqual(connection.answer.code, 200)
        connection.close()
        self.assertIn("operator-acknowledged", [one.kind for one in store.changes()])
        connection = self.posted({"action": "comment", "comment": "x"})
        while pending:
            pending.pop(0).errback(DeviceUnavailable("the disk is full"))
            self.pump(0.5)
        self.assertEqual(connection.answer.code, 200)
        connection.close()
        left = self.posted({"action": "comment", "comment": "y"})
        left.close()
        while pending:
            pending.pop(0).callback(None)
            self.pump(0.5)
        self.assertEqual([one.text for one in self.entry.comments], ["x", "y"])

    def test_open(self) -> None:
        """A monitor without users can only be read: it knows no user."""
        self.site = MonitorSite(self.clock, self.watch)
        answer = self.rest({"action": "acknowledge"})
        self.assertEqual((answer.code, "fabric-users" in answer.json["error"]), (403, True))

    def test_events(self) -> None:
        """Browsers get an event, by which they load their pages again."""
        kinds: list[type[FindingEvent]] = []
        self.poller.findings._notify = lambda event: kinds.append(type(event))
        self.rest({"action": "comment", "comment": "x"})
        self.assertEqual(kinds, [Annotated])

    def test_described(self) -> None:
        """The description of the interface has the action and all fields of the answer."""
        description = self.get("/api/v1/openapi.json", Authorization=BOB).json
        action = description["paths"]["/findings/{id}"]["post"]
        schema = action["responses"]["200"]["content"]["application/json"]["schema"]
        answer = self.rest({"action": "acknowledge"}).json
        self.assertEqual(set(schema["required"]), set(answer))
        body = action["requestBody"]["content"]["application/json"]["schema"]
        self.assertEqual(body["properties"]["action"]["enum"], [one.value for one in Action])


class FormTests(OperatorTestCase):
    def test_page(self) -> None:
        """An operator has a form; a viewer does not; the page shows the comments and their authors."""
        operators = self.page(self.path, Authorization=ALICE)
        viewers = self.page(self.path, Authorization=BOB)
        self.assertEqual((operators.code, viewers.code), (200, 200))
        self.assertIn('value="acknowledge"', operators.text)
        self.assertNotIn("<form", viewers.text)
        answer = self.form(action="acknowledge", comment="<b>cable</b> ordered")
        self.assertEqual((answer.code, answer.heads["location"]), (303, self.path))
        for user in (ALICE, BOB):
            text = self.page(self.path, Authorization=user).text
            self.assertIn("&lt;b&gt;cable&lt;/b&gt; ordered", text)
            self.assertIn("alice", text)
            self.assertIn("Acknowledged by alice, 1 comment", self.page("/findings", Authorization=user).text)
        operators = self.page(self.path, Authorization=ALICE)
        self.assertIn('value="unacknowledge"', operators.text)
        self.assertNotIn('value="acknowledge"', operators.text)

    def test_longest(self) -> None:
        """The longest comment is accepted in any script, by a form and by REST."""
        comment = "\N{CJK UNIFIED IDEOGRAPH-7DDA}" * (LONGEST_COMMENT - 1) + "\N{SNOWMAN}"
        self.assertEqual(self.form(action="comment", comment=comment).code, 303)
        astral = "\N{GRINNING FACE}" * LONGEST_COMMENT
        self.assertEqual(self.rest({"action": "comment", "comment": astral}).code, 200)
        self.assertEqual([one.text for one in self.entry.comments], [comment, astral])

    def test_crossSite(self) -> None:
        """A form of another site is refused, and so is one whose origin the browser does not send."""
        for heads in ({}, {"Origin": "null"}, {"Origin": "https://evil.example"}):
            self.assertEqual(self.form(heads=heads, action="acknowledge").code, 403, heads)
        self.assertIsNone(self.entry.acknowledgement)
        self.assertEqual(self.form(heads={"Sec-Fetch-Site": "same-origin"}, action="acknowledge").code, 303)
        self.assertIn("alice", str(self.entry.acknowledgement))

    def test_prefix(self) -> None:
        """Behind a proxy's path prefix, the browser returns to the page below it."""
        heads = {**HERE, "X-Forwarded-Prefix": "/fabric"}
        answer = self.form(heads=heads, action="comment", comment="x")
        self.assertEqual(answer.heads["location"], f"/fabric{self.path}")
        text = self.page(self.path, Authorization=ALICE, **{"x-forwarded-prefix": "/fabric"}).text
        self.assertIn(f'action="/fabric{self.path}"', text)

    def test_invalid(self) -> None:
        """A form with other fields, or not in UTF-8, is refused; other pages cannot be posted to."""
        self.assertEqual(self.form(action="acknowledge", what="x").code, 400)
        kind = {"Content-Type": "application/x-www-form-urlencoded", "Authorization": ALICE, **HERE}
        self.assertEqual(self.post(self.path, b"action=comment&comment=%ff", kind).code, 400)
        self.assertEqual(self.form(path="/nodes", action="acknowledge").code, 405)
