"""
Channel for alerts to syslog, as RFC 5424 defines messages.

Over UDP (RFC 5426) each message is a datagram, and nobody notices a loss. Over TCP (RFC 6587) and TLS (RFC
5425) its length precedes each. The socket of this host gets the older format, as from C{syslog(3)}, which all
daemons understand there.
"""

from __future__ import annotations

import os
import socket
from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime, timezone
from functools import partial
from typing import Any, Final

from zope.interface import implementer

from twisted.internet.defer import Deferred
from twisted.internet.endpoints import (
    clientFromString,
    connectProtocol,
    HostnameEndpoint,
    quoteStringArgument,
)
from twisted.internet.error import CannotListenError, ConnectionClosed, ConnectionDone, ConnectionLost
from twisted.internet.interfaces import IHandshakeListener, IReactorTime, IStreamClientEndpoint
from twisted.internet.protocol import connectionDone, DatagramProtocol, Protocol
from twisted.internet.threads import deferToThreadPool
from twisted.python.failure import Failure

import txrdma
from txrdma.error import DeviceUnavailable, InvalidRequest
from txrdma.kit.delayedcalls import Timer
from txrdma.kit.logs import reasonText
from txrdma.kit.strings import printable
from txrdma.kit.values import frozen
from txrdma.monitor.events.alerts import Alert
from txrdma.monitor.events.channels import AlertChannel, notesOf

_NAMES: Final = (
    *("kern", "user", "mail", "daemon", "auth", "syslog", "lpr", "news", "uucp", "cron", "authpriv", "ftp"),
    *(None, None, None, None, "local0", "local1", "local2", "local3", "local4", "local5", "local6", "local7"),
)
FACILITIES: Final = {name: number for number, name in enumerate(_NAMES) if name is not None}
"""Numbers of the facilities (RFC 5424, 6.2.1), by their names in C{syslog.conf}."""

_SEVERITIES: Final = {"critical": 2, "warning": 4, "info": 6}
_NOTICE: Final = 5
"""Severity of the end of a finding."""

LONGEST_MESSAGE: Final = 2048
"""Maximum octets of a message, which receivers should accept (RFC 5424, 6.1); the rest is cut off."""

LINGER_SECONDS: Final = 1.0
"""Seconds for which a connection stays open after messages; a daemon that does not want them closes it."""

SEND_SECONDS: Final = 10.0
"""Seconds for which a message may take to be sent."""

_PROGRAM: Final = "fabric-monitor"
_LONGEST_HOST: Final = 255


@frozen
class SyslogSettings:
    """
    Settings of notifications to syslog.

    @ivar address: C{udp:HOST:PORT}, C{tcp:HOST:PORT}, C{tls:HOST:PORT} or C{unix:PATH}. After that of TLS may
        follow C{:trustRoots=FOLDER} with certificates of authorities, and C{:certificate=FILE} and
        C{:privateKey=FILE} of this client.
    @ivar facility: number of the facility, one of L{FACILITIES}.
    """

    address: str
    facility: int = FACILITIES["daemon"]


def partsOf(address: str) -> tuple[str, str, str, str]:
    """Return the kind, host, port and further parameters of an address, except of C{unix:}."""
    kind, _, place = address.partition(":")
    first, bracket, rest = place.partition("]:") if place.startswith("[") else place.partition(":")
    port, _, more = rest.partition(":")
    return kind, first.removeprefix("[") if bracket else first, port, more


def _severityOf(alert: Alert) -> int:
    return _SEVERITIES.get(alert.finding["severity"], _NOTICE) if alert.isRaised else _NOTICE


def textOf(alert: Alert) -> str:
    """Return an alert on one line, without control characters."""
    finding = alert.finding
    state = "is there" if alert.isRaised else "is cleared"
    fabric = f"{finding['fabric']}: " if finding.get("fabric") else ""
    text = f"{fabric}{finding['severity']} {finding['kind']} {state}: {finding['where']}: {finding['text']}. "
    named: Mapping[str, Any] = {"guid": finding["guid"], "port": finding["port"], **notesOf(finding)}
    more = "".join(f" {name}={value}" for name, value in named.items() if value is not None)
    shown = f"{text}{finding['advice']} id={alert.identity}{more}"
    return printable(shown, "\N{REPLACEMENT CHARACTER}")


def _cut(message: str) -> bytes:
    """Return the octets of a message, without half a character at the end."""
    octets = message.encode("utf-8", "replace")
    return octets[:LONGEST_MESSAGE].decode("utf-8", "ignore").encode()


def _ascii(text: str, most: int) -> str:
    """Return a name without spaces and controls, as a field of a header; C{"-"} for an empty one."""
    return "".join(letter for letter in text if "!" <= letter <= "~")[:most] or "-"


def messageOf(alert: Alert, facility: int, now: float, host: str = "") -> bytes:
    """
    Return the message of an alert (RFC 5424, 6).

    @param host: name of this host.
    """
    at = datetime.fromtimestamp(now, timezone.utc).isoformat(timespec="milliseconds").replace("+00:00", "Z")
    name = _ascii(host or socket.gethostname(), _LONGEST_HOST)
    head = f"<{facility * 8 + _severityOf(alert)}>1 {at} {name} {_PROGRAM} {os.getpid()} "
    head += f"{_ascii(alert.finding['kind'], 32)} "
    origin = f'[origin software="txrdma" swVersion="{_ascii(txrdma.__version__, 32)}"]'
    return _cut(f"{head}{origin} \N{BYTE ORDER MARK}{textOf(alert)}")


def localMessageOf(alert: Alert, facility: int) -> bytes:
    """Return the message of an alert for the socket of this host, whose daemon adds time and host."""
    return _cut(f"<{facility * 8 + _severityOf(alert)}>{_PROGRAM}[{os.getpid()}]: {textOf(alert)}")


@implementer(IHandshakeListener)
class _Sending(Protocol):
    """
    Protocol that sends octets and closes the connection after L{LINGER_SECONDS}.

    C{done} fires when it is closed. It fails if the daemon has closed it before, as rsyslog does with clients
    without a certificate. After that the daemon may close without close_notify (RFC 5425, 4.4).
    """

    def __init__(self, reactor: IReactorTime, octets: bytes, isSecured: bool) -> None:
        self.done: Deferred[None] = Deferred(lambda _: self._abort())
        self._octets = octets
        self._timer = Timer(reactor)
        self._isSecured = isSecured
        self._isClosing = False

    def connectionMade(self) -> None:
        transport: Any = self.transport
        transport.write(self._octets)
        if not self._isSecured:
            self._timer.start(LINGER_SECONDS, self._close)

    def handshakeCompleted(self) -> None:
        """Close the connection later: the octets are being sent."""
        self._timer.start(LINGER_SECONDS, self._close)

    def _close(self) -> None:
        self._isClosing = True
        transport: Any = self.transport
        transport.loseConnection()

    def _abort(self) -> None:
        transport: Any = self.transport
        transport.abortConnection()

    def connectionLost(self, reason: Failure = connectionDone) -> None:
        self._timer.stop()
        if self.done.called:
            return
        ends = (ConnectionDone, ConnectionLost) if self._isSecured else (ConnectionDone,)
        if self._isClosing and reason.check(*ends):
            self.done.callback(None)
        elif reason.check(ConnectionClosed):
            self.done.errback(DeviceUnavailable("the daemon has closed the connection"))
        else:  # of OpenSSL, or of the check of the certificate
            self.done.errback(DeviceUnavailable(f"TLS: {reason.value!r}"))


class SyslogChannel(AlertChannel):
    """A channel that sends a message to syslog for each alert."""

    queue = "syslog"

    def __init__(self, reactor: Any, settings: SyslogSettings) -> None:
        """@raise InvalidRequest: a certificate or key cannot be read."""
        self.name = f"syslog {settings.address}"
        self._reactor = reactor
        self._facility = settings.facility
        self._path = settings.address.removeprefix("unix:")
        self._kind, self._host, self._port, self._more = partsOf(settings.address)
        if self._kind == "tls":
            self._endpoint()

    def _endpoint(self) -> IStreamClientEndpoint:
        """Return the endpoint of the daemon; certificates are read each time, as they are renewed."""
        if self._kind == "tcp":
            return HostnameEndpoint(self._reactor, self._host, int(self._port))
        parts = (self._kind, quoteStringArgument(self._host), self._port, self._more)
        try:
            endpoint: IStreamClientEndpoint = clientFromString(self._reactor, ":".join(filter(None, parts)))
        except Exception as error:  # of OpenSSL, too
            raise InvalidRequest(f"{self.name}: {error}") from error
        return endpoint

    def send(self, alerts: Sequence[Alert]) -> Deferred[None]:
        """Send messages; fails with L{DeviceUnavailable}, or an error of the connection."""
        return Deferred.fromCoroutine(self._send(alerts))

    async def _send(self, alerts: Sequence[Alert]) -> None:
        if self._kind == "unix":
            self._sendHere([localMessageOf(one, self._facility) for one in alerts])
            return
        now = self._reactor.seconds()
        messages = [messageOf(one, self._facility, now) for one in alerts]
        if self._kind == "udp":
            await self._sendDatagrams(messages)
            return
        framed = b"".join(b"%d %s" % (len(message), message) for message in messages)
        protocol = _Sending(self._reactor, framed, self._kind == "tls")
        await connectProtocol(self._endpoint(), protocol).addTimeout(SEND_SECONDS, self._reactor)
        await protocol.done.addTimeout(SEND_SECONDS, self._reactor)

    def _sendHere(self, messages: Iterable[bytes]) -> None:
        """Send messages to the socket of this host, as far as it accepts them; raise L{DeviceUnavailable}."""
        try:
            with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_NONBLOCK) as opened:
                opened.connect(self._path)
                for message in messages:
                    opened.send(message)
        except OSError as error:
            raise DeviceUnavailable(f"{self._path}: {reasonText(error)}") from error

    async def _sendDatagrams(self, messages: Iterable[bytes]) -> None:
        resolve = partial(socket.getaddrinfo, self._host, int(self._port), type=socket.SOCK_DGRAM)
        resolving = deferToThreadPool(self._reactor, self._reactor.getThreadPool(), resolve)
        try:
            (family, *_, address), *_ = await resolving.addTimeout(SEND_SECONDS, self._reactor)
            interface = "::" if family == socket.AF_INET6 else ""
            opened = self._reactor.listenUDP(0, DatagramProtocol(), interface=interface)
        except (CannotListenError, OSError) as error:  # no such host, or descriptors are used up
            raise DeviceUnavailable(str(error)) from error
        try:
            for message in messages:
                opened.write(message, address[:2])
        except OSError as error:
            raise DeviceUnavailable(reasonText(error)) from error
        finally:
            await opened.stopListening()
