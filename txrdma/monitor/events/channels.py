"""
Channels for alerts: webhooks, mail, and lines of JSON.

Webhooks use one of two formats of Prometheus' Alertmanager: that of its API (C{/api/v2/alerts}), or that of
its own webhooks (version 4).
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from datetime import datetime, timezone
from email.message import EmailMessage
from email.utils import formatdate
from hashlib import blake2b
from io import BytesIO
from typing import Any, Final, NoReturn

from twisted.internet.defer import Deferred, succeed
from twisted.logger import Logger
from twisted.mail.smtp import ESMTPSenderFactory, SMTPClientError
from twisted.python.failure import Failure

from txrdma.error import DeviceUnavailable
from txrdma.kit.httprequests import fetch, quietAgent, SUCCESSES
from txrdma.kit.logs import reasonText
from txrdma.kit.strings import escapedText, printable
from txrdma.kit.values import frozen
from txrdma.monitor.events.alerts import Alert

_log = Logger()

MAIL_SECONDS: Final = 30.0
"""Seconds to wait for each answer of a mail server."""

POST_SECONDS: Final = 10.0
"""Seconds to wait for the whole answer of a webhook."""

REPEAT_SECONDS: Final = 300.0
"""Seconds after which open findings are sent to an Alertmanager again."""

MOST_ANSWER: Final = 65_536
"""Maximum octets of a webhook's answer; a longer one ends the connection, and the status counts."""

_SMTP_OK: Final = range(200, 300)
_MOST_LINES: Final = 50
_NAMES: Final = {False: "resolved", True: "firing"}
_SHOWN: Final = {"acknowledgedBy": "Acknowledged by", "comments": "Comments"}


class AlertChannel:
    """
    Base class of all channels, which send alerts.

    @ivar name: name of the channel, for messages.
    @ivar queue: name of its queue, which is the same after a restart.
    @ivar fabric: name of the fabric where there are several; else C{""}.
    @ivar repeatSeconds: time after which open findings are sent again; 0 for never.
    """

    name: str
    queue: str
    repeatSeconds = 0.0
    fabric = ""

    def named(self, alerts: Iterable[Alert]) -> list[Alert]:
        """Return alerts with the name of the fabric, if it has one."""
        fabric = {"fabric": self.fabric} if self.fabric else {}
        return [replace(one, finding={**one.finding, **fabric}) for one in alerts]

    def send(self, alerts: Sequence[Alert]) -> Deferred[None]:
        """Send alerts; fails if they must be sent again."""
        raise NotImplementedError


# Webhooks.


def _time(seconds: float | None) -> str:
    if seconds is None:
        return "0001-01-01T00:00:00Z"
    return datetime.fromtimestamp(seconds, timezone.utc).isoformat(timespec="seconds").replace("+00:00", "Z")


def labelsOf(finding: Mapping[str, Any]) -> dict[str, str]:
    """Return the labels of a finding's alert, constant while it is open: names of nodes may change."""
    names = (*(("where",) if finding["guid"] is None else ("guid", "port")), "fabric")
    labels = {"alertname": finding["kind"], "severity": finding["severity"]}
    return {**labels, **{name: str(finding[name]) for name in names if finding.get(name) is not None}}


def notesOf(finding: Mapping[str, Any]) -> dict[str, str]:
    """Return who has acknowledged a finding, and the comments on it, as texts, without empty ones."""
    comments = [f"{one['user']}: {one['text']}" for one in finding.get("comments", ())]
    notes = {"acknowledgedBy": finding.get("acknowledgedBy") or "", "comments": "; ".join(comments)}
    return {name: text for name, text in notes.items() if text}


def _alert(one: Alert, end: float | None) -> dict[str, Any]:
    """
    Return what both formats have in common.

    @param end: time at which the alert ends, or expires; None for an open one. If the clock was set back
        between two processes, that is before the alert was raised, which receivers refuse.
    """
    finding = one.finding
    described = {"summary": finding["text"], "description": finding["advice"], "where": finding["where"]}
    annotations = {**described, "id": one.identity, **notesOf(finding)}
    start = finding["firstSeen"] if end is None else min(finding["firstSeen"], end)
    times = {"startsAt": _time(start), "endsAt": _time(end)}
    return {"labels": labelsOf(finding), "annotations": annotations, **times}


def postedAlerts(alerts: Sequence[Alert], now: float) -> list[dict[str, Any]]:
    """Return alerts in the format of Alertmanager's API, which expire after three missing repetitions."""
    expiry = now + 3 * REPEAT_SECONDS
    ends = [expiry if one.isRaised else one.finding["clearedAt"] for one in alerts]
    return [_alert(one, end) for one, end in zip(alerts, ends, strict=True)]


def webhookMessage(alerts: Sequence[Alert], receiver: str) -> dict[str, Any]:
    """Return alerts in the format of Alertmanager's webhooks: version 4 of its message."""
    posted = []
    for one in alerts:
        labels = json.dumps(labelsOf(one.finding), sort_keys=True).encode()
        fingerprint = blake2b(labels, digest_size=8).hexdigest()
        status = {"status": _NAMES[one.isRaised], "generatorURL": "", "fingerprint": fingerprint}
        posted.append({**status, **_alert(one, one.finding["clearedAt"])})
    return {
        "version": "4",
        "groupKey": "{}",
        "truncatedAlerts": 0,
        "groupLabels": {},
        "externalURL": "",
        "status": _NAMES[any(one.isRaised for one in alerts)],
        "receiver": receiver,
        "commonLabels": _common([alert["labels"] for alert in posted]),
        "commonAnnotations": _common([alert["annotations"] for alert in posted]),
        "alerts": posted,
    }


def _common(several: list[dict[str, str]]) -> dict[str, str]:
    first = several[0].items() if several else ()
    return {name: value for name, value in first if all(one.get(name) == value for one in several)}


class WebhookChannel(AlertChannel):
    """A channel that posts JSON to a URL."""

    def __init__(
        self, reactor: Any, name: str, url: str, isAlertmanager: bool, authorization: str = ""
    ) -> None:
        """
        @param isAlertmanager: the URL is that of an Alertmanager's API, which needs repeated notifications.
        @param authorization: value of the Authorization header; C{""} for none.
        """
        self._authorization = authorization
        self.name = self.queue = f"webhook {name}"
        self.repeatSeconds = REPEAT_SECONDS if isAlertmanager else 0.0
        self._receiver = name
        self._url = url
        self._reactor = reactor
        self._agent = quietAgent(reactor, POST_SECONDS)

    def send(self, alerts: Sequence[Alert]) -> Deferred[None]:
        """Post alerts; fails with L{DeviceUnavailable} if the response is not a success."""
        return Deferred.fromCoroutine(self._post(alerts))

    async def _post(self, alerts: Sequence[Alert]) -> None:
        isRepeated, now = bool(self.repeatSeconds), self._reactor.seconds()
        message = postedAlerts(alerts, now) if isRepeated else webhookMessage(alerts, self._receiver)
        body = json.dumps(message).encode()
        headers = {"Content-Type": "application/json"}
        if self._authorization:
            headers["Authorization"] = self._authorization
        answer = await fetch(self._agent, self._reactor, self._url, headers, POST_SECONDS, MOST_ANSWER, body)
        if answer.code not in SUCCESSES:
            raise DeviceUnavailable(f"{self.name} answers {answer.code}")


# Mail.


@frozen
class MailSettings:
    """
    Settings of outgoing mail.

    @ivar host: SMTP server; C{port}: its port.
    @ivar user: user name of a login with C{password}, which requires STARTTLS; C{""} for no login.
    """

    host: str
    sender: str
    receivers: tuple[str, ...]
    port: int = 25
    user: str = ""
    password: str = ""


def mailOf(alerts: Sequence[Alert], settings: MailSettings, now: float) -> EmailMessage:
    """
    Return a message to all recipients: new findings first, then cleared ones.

    If it is sent again, its Message-ID is the same, by which mail servers recognize it.
    """
    raised = [one for one in alerts if one.isRaised]
    cleared = [one for one in alerts if not one.isRaised]
    first = (raised or cleared)[0].finding
    fabric = first.get("fabric", "fabric")
    subject = f"{first['kind']} at {first['where']}" + (" cleared" if not raised else "")
    more = f" and {len(alerts) - 1} more" if len(alerts) > 1 else ""
    message = EmailMessage()
    message["Subject"] = printable(f"[{fabric}] {subject}{more}")
    message["From"] = settings.sender
    message["To"] = ", ".join(settings.receivers)
    message["Date"] = formatdate(now)
    message["Auto-Submitted"] = "auto-generated"
    identity = blake2b("".join(one.identity for one in alerts).encode(), digest_size=16).hexdigest()
    message["Message-ID"] = f"<{identity}@{settings.sender.partition('@')[2]}>"
    lines = []
    for title, several in (("There is", raised), ("Cleared", cleared)):
        for one in several[:_MOST_LINES]:
            found = one.finding
            lines.append(f"{title}: {found['severity']} {found['kind']}: {found['where']}: {found['text']}")
            if one.isRaised:
                lines.append(f"    {found['advice']}")
            lines += [f"    {_SHOWN[name]}: {text}" for name, text in notesOf(found).items()]
        if len(several) > _MOST_LINES:
            lines.append(f"{title}: {len(several) - _MOST_LINES} more")
    message.set_content("\n".join(lines) + "\n")
    return message


class MailChannel(AlertChannel):
    """A channel that sends mail to all recipients, by SMTP."""

    queue = "mail"

    def __init__(self, reactor: Any, settings: MailSettings) -> None:
        self.name = f"mail by {settings.host}"
        self._reactor = reactor
        self._settings = settings

    def send(self, alerts: Sequence[Alert]) -> Deferred[None]:
        """Send one mail with all alerts; fails with L{DeviceUnavailable} if the server refuses it."""
        settings, reactor = self._settings, self._reactor
        message = mailOf(alerts, settings, reactor.seconds()).as_bytes()
        hasLogin = bool(settings.user)

        def cancel(_: object) -> None:
            factory.sendFinished = True
            connector.disconnect()

        sending: Deferred[Any] = Deferred(cancel)
        factory = ESMTPSenderFactory(
            settings.user.encode() if hasLogin else None,
            settings.password.encode() if hasLogin else None,
            settings.sender,
            list(settings.receivers),
            BytesIO(message),
            sending,
            retries=0,  # the queue knows when to try again; at once is no time
            timeout=MAIL_SECONDS,
            heloFallback=True,
            requireAuthentication=hasLogin,
            requireTransportSecurity=hasLogin,
            hostname=settings.host,
        )
        connector = reactor.connectTCP(settings.host, settings.port, factory, timeout=POST_SECONDS)
        return sending.addTimeout(4 * MAIL_SECONDS, reactor).addCallbacks(self._sent, self._refused)

    def _sent(self, result: tuple[int, list[tuple[bytes, int, bytes]]]) -> None:
        """Log recipients that were refused while others were accepted: the mail is not sent to them again."""
        for address, code, answer in result[1]:
            if code not in _SMTP_OK:
                values = {"code": code, "answer": escapedText(answer)}
                _log.warn("mail to {address}: {code} {answer}", address=address.decode(), **values)

    @staticmethod
    def _refused(failure: Failure) -> NoReturn:
        """Raise an error with the server's answers, but not with the last lines sent: one is the password."""
        error = failure.value
        if not isinstance(error, SMTPClientError):
            failure.raiseException()
        answers: Any = error.addresses or ()
        texts = dict.fromkeys(map(escapedText, (error.resp, *(answer for _, _, answer in answers))))
        code = [str(error.code)] if error.code > 0 else []
        raise DeviceUnavailable(" ".join([*code, "; ".join(texts)])) from None


# Lines.


def _append(path: str, content: bytes) -> None:
    """Append a text to a file, all or nothing; raises C{OSError}. A part would be written again."""
    with open(path, "ab", buffering=0) as file:
        size = file.tell()
        try:
            while content:
                content = content[os.write(file.fileno(), content) :]
        except OSError:
            if file.seekable():
                file.truncate(size)
            raise


class LineChannel(AlertChannel):
    """A channel that appends a line of JSON for each alert to a file; C{"-"} is standard output."""

    queue = "log"

    def __init__(self, path: str) -> None:
        self.name = f"log {path}"
        self._path = path

    def send(self, alerts: Sequence[Alert]) -> Deferred[None]:
        """Append lines; the file is opened each time, so that it can be rotated."""
        rows = [{"status": _NAMES[one.isRaised], "id": one.identity, **one.finding} for one in alerts]
        lines = "".join(f"{json.dumps(row)}\n" for row in rows)
        try:
            if self._path == "-":
                sys.stdout.write(lines)
                sys.stdout.flush()
            else:
                _append(self._path, lines.encode("ascii"))
        except OSError as error:
            raise DeviceUnavailable(reasonText(error)) from error
        return succeed(None)
