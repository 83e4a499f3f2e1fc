"""Site of a monitor: its pages, REST, events, metrics and files, with the headers of all answers."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator
from functools import partial
from hashlib import sha256
from io import BytesIO
from ipaddress import ip_address
from math import inf
from pathlib import Path
from typing import Any, Final

from twisted.internet.interfaces import IAddress, IReactorTime
from twisted.logger import Logger
from twisted.python.failure import Failure
from twisted.web.http import CACHED, HTTPChannel, UNAUTHORIZED
from twisted.web.resource import EncodingResourceWrapper, IResource, Resource
from twisted.web.server import GzipEncoderFactory, Request, Site

from txrdma.error import DeviceUnavailable
from txrdma.fabric.metricnames import METRICS
from txrdma.kit.delayedcalls import Timer
from txrdma.kit.logs import reasonText
from txrdma.kit.refusals import Refusal
from txrdma.kit.webaccess import AccessControl, clientNetworkOf, isLocalName
from txrdma.monitor.process import ProcessMeasures
from txrdma.monitor.web.actions import actionOf
from txrdma.monitor.web.events import EventHub
from txrdma.monitor.web.html import answerPage
from txrdma.monitor.web.metrics import Metrics
from txrdma.monitor.web.rest import answerREST, Folder, ReadOnly, sendJSON, sendText
from txrdma.monitor.web.scrapes import Scrapes
from txrdma.monitor.web.searches import Searches
from txrdma.monitor.web.watch import Watch

_ALIVE_SECONDS: Final = 15.0
MOST_CONNECTIONS: Final = 2000
"""
Maximum number of connections; twice L{MOST_READERS}: these have one each. A further one replaces an idle one
of the client with the most, or is closed.
"""

MOST_OF_CLIENT: Final = 1500
"""Maximum number of simultaneous connections per IPv4 address or IPv6 /64: a proxy on another host may have
one for each of the L{MOST_READERS}, and those of requests. Loopback, where a proxy may be, is exempt."""

MOST_CLOSING: Final = 100
"""Maximum number of replaced connections, beyond the others, that still send their last response; the oldest
are aborted."""

SEARCH_SECONDS: Final = 0.1
"""Seconds for which further connections are refused at once after a search for an idle one has found none: it
may take two milliseconds."""

MOST_AT_ONCE: Final = 25
"""Maximum number of requests per reactor iteration, each of which takes up to half a millisecond."""

MOST_BODY: Final = 16384
"""Maximum number of octets of the body of a request, which only POST may have: up to 12 per character of a
comment."""

_LONGEST_LENGTH: Final = 100
"""Maximum number of octets of the header with the length of a body."""

_log = Logger()

_REFUSAL: Final = b"HTTP/1.1 413 Content Too Large\r\nConnection: close\r\nContent-Length: 0\r\n\r\n"
_HERE: Final = Path(__file__).parent
_TYPES: Final = {
    ".css": "text/css; charset=utf-8",
    ".js": "text/javascript; charset=utf-8",
    ".json": "application/json",
    ".svg": "image/svg+xml",
}
_CACHE_SECONDS: Final = 300

_WRONG_HOST: Final = "Ask by address or as localhost; for other names give web.tokens or web.users."
"""Answer to a browser that was directed here under the name of another site."""

HEADS: Final = {
    "Content-Security-Policy": "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; "
    "connect-src 'self'; base-uri 'none'; form-action 'self'; frame-ancestors 'none'",
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "same-origin",
    "Cache-Control": "no-store",
}
"""
Heads of all answers: scripts and styles only of this site, no frames, and no caching. Without referrers
browsers would not send C{Origin} with forms.
"""


def _pathsIn(folder: Path) -> Iterator[Path]:
    """Yield the paths of all files below a folder; C{rglob} omits those of a folder that cannot be opened."""
    for path in sorted(folder.iterdir()):
        if path.is_dir():
            yield from _pathsIn(path)
        else:
            yield path


def _filesIn(folder: Path) -> ReadOnly:
    """
    Return the files of a folder, which are read once: no path leads out of it, and it has no listing.

    @raise DeviceUnavailable: they cannot be read.
    """
    try:
        files = {str(path.relative_to(folder)): (path.suffix, path.read_bytes()) for path in _pathsIn(folder)}
    except OSError as error:
        raise DeviceUnavailable(f"{folder}: {reasonText(error)}") from error

    def answer(request: Request) -> bytes:
        """Answer with a file, which browsers may keep for a while."""
        name = b"/".join(request.postpath or ()).decode("utf-8", "replace")
        suffix, content = files.get(name, ("", b""))
        if name not in files:
            return sendText(request, 404, "There is no such file.")
        request.setHeader("Content-Type", _TYPES.get(suffix, "text/plain; charset=utf-8"))
        request.setHeader("Cache-Control", f"max-age={_CACHE_SECONDS}")
        tag = sha256(content).hexdigest()[:24].encode()
        return b"" if request.setETag(b'"' + tag + b'"') is CACHED else content

    return ReadOnly(answer)


class _FastGzip(GzipEncoderFactory):
    compressLevel = 1  # compresses pages to a fifteenth, in a third of the time of level 9


def _compressed(resource: Resource) -> EncodingResourceWrapper:
    return EncodingResourceWrapper(resource, [_FastGzip()])


def putCommon(root: Resource, api: Resource, metrics: Resource) -> None:
    """Add REST, metrics, style, scripts and files for other programs to the root of a site."""
    versions = Folder()  # type: ignore[no-untyped-call]  # of Twisted's
    versions.putChild(b"v1", api)
    root.putChild(b"api", versions)
    for name in ("static", "files"):
        root.putChild(name.encode(), _compressed(_filesIn(_HERE / name)))
    root.putChild(b"metrics", metrics)


class AllPaths(Resource):
    """A resource that another one answers, also at all paths that no child has: in C{request.postpath}."""

    def __init__(self, resource: ReadOnly) -> None:
        super().__init__()  # type: ignore[no-untyped-call]  # of Twisted's
        self._resource = _compressed(resource)

    def render(self, request: Request) -> Any:
        return self._resource.render(request)

    def getChild(self, name: bytes, request: Request) -> IResource:
        assert request.postpath is not None  # it has one from when it is routed
        request.postpath.insert(0, name)
        return self._resource


def _probe(problem: Callable[[], str]) -> ReadOnly:
    """Answer the probe of a load balancer, which needs no credentials: 200, or 503 with the reason."""

    def answer(request: Request) -> bytes:
        why = problem()
        return sendText(request, 503 if why else 200, why or "ok")

    return ReadOnly(answer)


class _DiscardedBody(BytesIO):
    """Body of a request, of which nothing is stored."""

    def write(self, data: Any, /) -> int:
        return len(memoryview(data))


class _SmallRequest(Request):
    """
    Request with a small body, or none: others are refused before being stored or authorized.

    Twisted stores request bodies before it looks up the resource, long ones in a file.
    """

    _hasBody = _isRefused = False

    def gotLength(self, length: int | None) -> None:
        """Refuse a request with a long body; one whose length HTTP/2 does not announce is not stored."""
        self._hasBody = length != 0
        isSmall = length is not None and length <= MOST_BODY
        self.content = BytesIO() if isSmall else _DiscardedBody()
        if not isSmall:
            self._refuseBody()

    def _refuseBody(self) -> None:
        """Refuse the body, except with HTTP/2, where it is ignored."""
        if isinstance(self.channel, HTTPChannel):
            self._isRefused = True
            transport: Any = self.channel.transport
            transport.write(_REFUSAL)
            self.channel.loseConnection()

    def process(self) -> None:
        if self._hasBody and not self._isRefused and self.method in (b"GET", b"HEAD"):
            self._refuseBody()
        if not self._isRefused:
            channel: Any = self.channel
            channel.site.admit(self)

    def write(self, data: bytes) -> None:
        """Send a part of the answer; that of Twisted to a request that is not authorized is replaced."""
        if data and self.code == UNAUTHORIZED:
            data = _refuse(self, UNAUTHORIZED, "Unauthorized")
            self.setHeader("Content-Length", str(len(data)))  # type: ignore[no-untyped-call]  # of Twisted's
        super().write(data)  # type: ignore[no-untyped-call]  # of Twisted's

    def processNow(self) -> None:
        """Process the request, unless its connection has been lost."""
        if self.channel is not None:
            super().process()  # type: ignore[no-untyped-call]  # of Twisted's

    def render(self, resource: IResource) -> None:
        """Render a resource, unless the connection has been lost while the user was authenticated."""
        if self.channel is not None:
            shown = getattr(resource, "resource", resource)  # in Twisted's wrapper for authenticated users
            if getattr(self, "_encoder", self) is None and isinstance(shown, EncodingResourceWrapper):
                self._encoder = shown.getEncoder(self)  # Twisted does so without authentication only
            super().render(resource)  # type: ignore[no-untyped-call]  # of Twisted's


def _refuse(request: Request, code: int, text: str) -> bytes:
    """Set the head of an answer, which is JSON for the REST interface; its body is returned."""
    if b"/api/" in request.path:
        return sendJSON(request, code, {"error": text})
    return sendText(request, code, text)


def _clientOf(address: IAddress | None) -> str:
    """Return the address or network whose connections are counted; C{""} for local ones."""
    host = getattr(address, "host", "")
    try:
        known = ip_address(host)
    except ValueError:
        return ""
    return "" if (getattr(known, "ipv4_mapped", None) or known).is_loopback else clientNetworkOf(host)


class _Channel(HTTPChannel):
    """HTTP/1.1 connection that refuses a length of thousands of digits, which Twisted cannot convert."""

    def headerReceived(self, line: bytes) -> Any:
        isLong = len(line) > _LONGEST_LENGTH and line[:15].lower() == b"content-length:"
        return super().headerReceived(b"Content-Length: -" if isLong else line)  # type: ignore[no-untyped-call]  # of Twisted's


class MonitorFactory(Site):
    """Site that adds headers to all answers, including refusals."""

    def __init__(
        self,
        reactor: IReactorTime,
        root: Resource,
        access: AccessControl,
        livenessProblem: Callable[[], str],
        readinessProblem: Callable[[], str],
    ) -> None:
        super().__init__(access.guard(root), _SmallRequest)  # type: ignore[no-untyped-call]  # of Twisted's
        self._isOpen = access.isOpen
        self._probes = {b"/healthz": _probe(livenessProblem), b"/readyz": _probe(readinessProblem)}
        self._connections = self._admitted = 0
        self._clients: dict[str, dict[Any, None]] = {}
        self._closing: dict[Any, None] = {}
        self._searched = (-inf, 0)
        self._seconds = reactor.seconds
        self._waiting: deque[_SmallRequest] = deque()
        self._timer = Timer(reactor)

    def admit(self, request: _SmallRequest) -> None:
        """Process a request: in a later reactor iteration, if there are many at once."""
        self._timer.ensure(0.0, self._processMore)
        if self._admitted < MOST_AT_ONCE:
            self._admitted += 1
            request.processNow()
        else:
            self._waiting.append(request)

    def stopFactory(self) -> None:
        """Process no more requests: the port is closed."""
        self._timer.stop()
        self._waiting.clear()
        super().stopFactory()

    def _processMore(self) -> None:
        self._admitted = 0
        waiting, self._waiting = self._waiting, deque()
        for request in waiting:
            try:
                self.admit(request)
            except Exception:
                _log.failure("a request raised an exception, and its connection closes")
                request.loseConnection()  # type: ignore[no-untyped-call]  # of Twisted's

    def buildProtocol(self, addr: IAddress | None) -> Any:
        """Return a protocol for a new connection; if there are too many, one that closes it."""
        client = _clientOf(addr)
        if client and len(self._clients.get(client, ())) >= MOST_OF_CLIENT:
            return Refusal()
        if self._connections >= MOST_CONNECTIONS and not self._makeSpace(client):
            return Refusal()
        protocol: Any = super().buildProtocol(addr)  # type: ignore[no-untyped-call]  # of Twisted's
        channel = getattr(protocol, "_channel", None)
        if type(channel) is HTTPChannel:
            channel.__class__ = _Channel

        def connectionLost(reason: Failure) -> None:
            self._forget(client, protocol)
            self._closing.pop(protocol, None)
            del protocol.connectionLost  # a reference cycle
            protocol.connectionLost(reason)

        protocol.connectionLost = connectionLost
        self._connections += 1
        self._clients.setdefault(client, {})[protocol] = None
        return protocol

    def _makeSpace(self, client: str) -> bool:
        """
        Close the oldest idle connection of the client with the most; return whether there is one.

        The client must have more than the new one then has; a local one never loses, and always gets one.
        """
        fewest = len(self._clients.get(client, ())) + 2 if client else 1
        at, fewestThen = self._searched
        if fewest >= fewestThen and 0 <= self._seconds() - at < SEARCH_SECONDS:  # the clock may be set
            return False
        crowds = [each for each, own in self._clients.items() if each and len(own) >= fewest]
        for crowd in sorted(crowds, key=lambda each: len(self._clients[each]), reverse=True):
            for protocol in self._clients[crowd]:
                channel = getattr(protocol, "_channel", None)
                if channel and not getattr(channel, "requests", True):  # HTTP/2, with streams, counts as busy
                    self._forget(crowd, protocol)
                    self._close(protocol)
                    return True
        self._searched = self._seconds(), fewest
        return False

    def _close(self, protocol: Any) -> None:
        """Close an idle connection when its client has its last response; abort the oldest of too many."""
        self._closing[protocol] = None
        protocol._channel.loseConnection()
        if len(self._closing) > MOST_CLOSING:
            oldest = next(iter(self._closing))
            del self._closing[oldest]
            oldest._channel.transport.abortConnection()

    def _forget(self, client: str, protocol: Any) -> None:
        """Count a connection no more, at its end or when it is replaced."""
        ofClient = self._clients.get(client, {})
        if protocol in ofClient:
            self._connections -= 1
            del ofClient[protocol]
            if not ofClient:
                del self._clients[client]

    def getResourceFor(self, request: Request) -> IResource:
        """Return the resource for a request, whose headers are set."""
        for head, value in HEADS.items():
            request.setHeader(head, value)
        if self._isOpen and not isLocalName(request.getHeader(b"host") or b""):
            return ReadOnly(lambda request: _refuse(request, 421, _WRONG_HOST))
        if request.path in self._probes:
            return self._probes[request.path]
        return super().getResourceFor(request)  # type: ignore[no-untyped-call,no-any-return]  # of Twisted's


class MonitorSite:
    """
    Site of one monitor, from L{start} to L{stop}.

    @ivar factory: serves HTTP on connections. C{root}, C{watch}, C{metrics}: what it shows.
    @ivar hub: events for browsers.
    """

    def __init__(
        self,
        reactor: IReactorTime,
        watch: Watch,
        counters: tuple[str, ...] = METRICS,
        access: AccessControl | None = None,
        process: ProcessMeasures | None = None,
    ) -> None:
        """
        @param counters: names of the counters exported to Prometheus.
        @param access: authenticates requests; None permits everybody to read.
        @param process: measures the process, or None.
        """
        self.hub = EventHub(reactor, watch)
        watch.searches = Searches(reactor)
        self._timer = Timer(reactor)
        root = AllPaths(ReadOnly(partial(answerPage, watch), partial(actionOf, watch, True)))
        api = AllPaths(ReadOnly(partial(answerREST, watch), partial(actionOf, watch, False)))
        api.putChild(b"events", ReadOnly(self.hub.answer))  # not compressed, as it does not end
        root.putChild(b"readyz", _probe(watch.readinessProblem))  # below the path of a fabric
        self.root, self.watch, self.metrics = root, watch, Metrics(watch, counters)
        self._scrapes = Scrapes(reactor, [self.metrics], None if process is None else process.families)
        putCommon(root, api, self._scrapes)
        access = access or AccessControl()
        self.factory = MonitorFactory(reactor, root, access, watch.livenessProblem, watch.readinessProblem)

    def start(self) -> None:
        """Send browsers periodic keepalive comments."""
        self._timer.start(_ALIVE_SECONDS, self._alive)

    def _alive(self) -> None:
        self._timer.start(_ALIVE_SECONDS, self._alive)
        self.hub.alive()

    def stop(self) -> None:
        """End all responses in progress."""
        self._timer.stop()
        self.hub.close()
        self.watch.searches.stop()
        self._scrapes.stop()
