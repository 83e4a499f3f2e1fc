"""Acts of a hostile HTTP client of the fabric monitor, and plans of them that are drawn by a seed."""

from __future__ import annotations

from base64 import b64encode
from collections.abc import Iterator
from dataclasses import dataclass
from enum import Enum
from random import Random
from typing import Final

from txrdma.monitor.web.pages import PAGES
from txrdma.monitor.web.parameters import ServedPath
from txrdma.monitor.web.routes import ROUTES
from txrdma.monitor.web.site import MOST_BODY
from txrdma.testing.hostile.plans import drawHostile, HostilePlan
from txrdma.testing.hostile.wiring import TCP

TOKEN: Final = b"0123456789abcdef-token"
USER: Final = b"alice"
PASSWORD: Final = b"pass:word"
GUID: Final = b"0x0000000000000000"
"""GUID in the paths of requests, which is replaced by that of a node."""


class Deed(Enum):
    """What a client does on a connection, or on several."""

    PAGES = "it sends many requests at once"
    METHODS = "it sends a method that is not expected"
    PATHS = "it requests an unknown path, or one with broken percent encodings"
    QUERIES = "it sends a parameter with an odd value, or twice"
    HOSTS = "it sends a wrong Host, none or several"
    HEADERS = "it sends too many or too long headers"
    LINES = "it sends a request line that is too long"
    BODIES = "it sends a body that is too long"
    LENGTHS = "it sends an odd or wrong length"
    CHUNKS = "it sends a chunked body, which may be malformed or have no end"
    LOGINS = "it sends wrong passwords"
    EVENTS = "it requests events"
    IDLE = "it connects many times, and sends one request or none"
    PARTS = "it sends a part of a request"
    OTHERS = "it sends another protocol"


class Login(Enum):
    """The credentials in a request."""

    NONE = b""
    TOKEN = b"Bearer " + TOKEN
    USER = b"Basic " + b64encode(USER + b":" + PASSWORD)
    WRONG = b"Bearer " + TOKEN[1:]
    BROKEN = b"Basic ?"

    @property
    def isRight(self) -> bool:
        """Whether the monitor accepts them."""
        return self in (Login.TOKEN, Login.USER)


class Then(Enum):
    """What follows the bytes of an act."""

    READ = "it reads the answers"
    UNREAD = "it never reads"
    HALF = "it closes its direction of the connection, and reads the answers"
    CLOSED = "it closes the connection"
    ABORTED = "it aborts the connection"


@dataclass(frozen=True)
class Act:
    """
    An act of a hostile client.

    @ivar at: seconds from the beginning of the hostile connection.
    @ivar count: number of requests, connections, headers or octets.
    @ivar value: number of a path, an odd value or a method, modulo their number.
    @ivar address: which of the addresses of the client connects.
    @ivar pieces: number of pieces in which the bytes are sent, C{pause} seconds apart.
    """

    deed: Deed
    at: float
    count: int
    value: int
    login: Login
    address: int
    then: Then
    pieces: int
    pause: float


@dataclass(frozen=True)
class WebPlan(HostilePlan):
    """
    The plan of a simulation with a hostile HTTP client.

    @ivar isOpen: whether the monitor requires no credentials.
    """

    acts: tuple[Act, ...] = ()
    isOpen: bool = False


def drawWeb(seed: int) -> WebPlan:
    """Draw the plan of a simulation."""
    random = Random(f"web {seed}")
    usual = {**vars(drawHostile(seed, (TCP,))), "isServer": False}
    usual["seconds"] = random.choice((0.1, 2.0, 10.0, 45.0, 200.0))
    count = random.choice((1, 3, 6, 10))
    acts = tuple(_drawAct(random) for _ in range(count))
    isOpen = random.random() < 0.25
    if random.random() < 0.1:
        acts += tuple(_drawCrowd(random))
    return WebPlan(**usual, acts=acts, isOpen=isOpen)


def _drawCrowd(random: Random) -> Iterator[Act]:
    """Draw acts that use up all connections: busy ones from two addresses, idle ones from a third."""
    for deed, address in ((Deed.PARTS, 0), (Deed.PARTS, 1), (Deed.IDLE, 2)):
        at, value = random.choice((0.0, 0.001, 1.0)), random.randrange(100)
        yield Act(deed, at, 20, value, Login.TOKEN, address, Then.READ, 1, 0.0)


def _drawAct(random: Random) -> Act:
    deed = random.choice(list(Deed))
    return Act(
        deed=deed,
        at=random.choice((0.0, 0.001, 0.01, 1.0, 5.0)),
        count=random.choice((1, 2, 3, 10, 40, 150, 1000, 20_000)),
        value=random.randrange(100_000),
        login=random.choice((Login.TOKEN, Login.TOKEN, *Login)),
        address=random.choice((0, 0, 0, 1)),
        then=random.choice(list(Then)),
        pieces=1 if deed is Deed.IDLE else random.choice((1, 1, 2, 20)),
        pause=random.choice((0.0, 0.01, 1.0, 20.0)),
    )


def _pathOf(route: ServedPath) -> bytes:
    """Return the path of a route with values for its parameters."""
    path = route.path.replace("{guid}", GUID.decode()).replace("{port}", "1").replace("{id}", "0" * 16)
    return path.replace("{counter}", "portXmitData").encode() or b"/"


_ROUTES: Final[tuple[tuple[bytes, ServedPath], ...]] = (
    *((_pathOf(route), route) for route in PAGES),
    *((b"/api/v1" + _pathOf(route), route) for route in ROUTES),
)
_SERVED: Final = (
    *(path for path, _route in _ROUTES),
    *b"/metrics /static/monitor.css /static/monitor.js /api/v1/openapi.json".split(),
)
_PARAMETERS: Final = (
    *((path, one.name.encode()) for path, route in _ROUTES for one in route.parameters if not one.isInPath),
    *((b"/metrics", b"collect[]"), (b"/api/v1/events", b"x"), (b"/nodes", b"x")),
)
_ODD: Final = (
    *b"-1 -0 0 +1 %201 1_0 0x10 NaN inf -inf 1e999 1e-999 1e11 99999999999999999999 100 null true".split(),
    *b"%D9%A3 %00 %ff % %zz %u0041 %F0%9F%92%A9 %ED%A0%80 %E2%80%AE %3Cscript%3E ..%2f..%2fetc".split(),
    *b"name -name critical 1&limit=2 1;limit=3 &&& =".split(),
    *(b"", b"9" * 5000, b"a" * 5000, GUID, b"0x" + b"f" * 16),
)
_LOST: Final = (
    *b"/nothing // ///etc/passwd /../../etc/passwd /static/../site.py /static/%2e%2e/site.py".split(),
    *b"/static/ /static /files /api /api/v1 /api/v1/ /api/v1//nodes /nodes/ /%zz /%00 /nodes/%ff".split(),
    *b"/nodes/% localhost /api/v1/nodes/%F0%9F /findings/%0d%0aX:1 * /nodes/0x1 http://other.example/nodes".split(),
    *b"/events/x /api/v1/events/x /healthz/x /readyz/ /metrics/x /nodes#x /caf\xc3\xa9 /\x7f".split(),
    *(b"", b"/a" * 3000, b"/nodes?" + b"a&" * 4000, b"/" + b"%41" * 2000),
    *(b"/api/v1/ports/" + GUID + b"/999", b"/api/v1/ports/" + GUID + b"/-1"),
)
_METHODS: Final = (
    *b"HEAD PUT DELETE OPTIONS TRACE CONNECT PATCH get PROPFIND PRI POST __class__ GET\x00".split(),
    *(b"", b"G" * 5000),
)
_HOSTS: Final[tuple[tuple[bytes, ...], ...]] = (
    *((each,) for each in b"evil.example localhost.evil.example 127.0.0.1.example [::1 ::] \xff\xfe".split()),
    *((each,) for each in b"localhost@evil.example localhost:x:y [fe80::1%25eth0] localhost".split()),
    *((), (b"",), (b" localhost ",), (b"a" * 8000,)),
    *((b"localhost", b"evil.example"), (b"evil.example", b"localhost")),
)
_LENGTHS: Final[tuple[tuple[bytes, ...], ...]] = (
    *((each,) for each in b"-1 +5 0x5 5,5 a 0 4 7 1_0 \xb2 5.0".split()),
    *((b"5", b"5"), (b"5", b"6"), (b"",), (b"5 5",), (b"9" * 30,), (b"9" * 5000,), (b"%d" % (1 << 63),)),
)
_CHUNKED: Final = (
    *(b"5\r\nhello\r\n0\r\n\r\n", b"5\r\nhello\r\n", b"5\r\nhel", b"-5\r\nhello\r\n", b"zz\r\n"),
    *(b"5;" + b"x" * 9000, b"F" * 18 + b"\r\n" + b"a" * 3000, b"5\nhello\n0\n\n", b"1\r\nx\r\n" * 4000),
    *(b"0\r\nTrailer: " + b"x" * 9000 + b"\r\n\r\n", b"\r\n" * 100, b"5\r\nhello0\r\n\r\n"),
)
_OTHERS: Final = (
    *(b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + bytes(500), b"SSH-2.0-x\r\n", b"\xff" * 100),
    *(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + bytes(90), b"\r\n" * 2000, b"\0" * 30_000, b"a" * 70_000),
    *(b"GET /nodes\r\n", b"GET /nodes HTTP/0.9\r\n\r\n", b"GET /nodes HTTP/1.0\r\n\r\n"),
    *(b"GET /nodes HTTP/9.9\r\nHost: localhost\r\n\r\n", b"GET /nodes HTTP/1.1\nHost: localhost\n\n"),
    *(b"GET  /nodes  HTTP/1.1\r\n\r\n", b" GET / HTTP/1.1\r\n\r\n", b"GET /nodes HTTP/1.1 x\r\n\r\n"),
)
_PARTS: Final = (
    *(b"GET", b"GET /nodes HTTP/1.1\r\n", b"GET /nodes HTTP/1.1\r\nHost: localhost\r\n"),
    *(b"POST /findings/x HTTP/1.1\r\n", b"GET /nodes HTTP/1.1\r\nHost\r\n"),
    b"GET /nodes HTTP/1.1\r\nHost: localhost\r\nX: y\r\n z\r\n\tz\r\n",
    b"GET /nodes HTTP/1.1\r\nHost: localhost\r\nContent-Length: 100\r\n\r\nabc",
)


def request(path: bytes, login: Login, *heads: bytes, method: bytes = b"GET", body: bytes = b"") -> bytes:
    """Return a request; without C{heads}, one with a right Host."""
    lines = [method + b" " + path + b" HTTP/1.1", *(heads or (b"Host: localhost",))]
    if login.value:
        lines.append(b"Authorization: " + login.value)
    return b"\r\n".join((*lines, b"", body))


def isForeign(act: Act) -> bool:
    """Return whether the requests of an act have the name of another site, which an open monitor refuses."""
    return act.deed is Deed.HOSTS and b"example" in b"".join(_HOSTS[act.value % len(_HOSTS)][-1:])


def isRefused(act: Act) -> bool:
    """Return whether the first request of an act is refused for its body, before it is authorized."""
    isChunked = act.deed is Deed.CHUNKS and act.value % 5 < 2
    return isChunked or (act.deed is Deed.BODIES and _lengthOf(act) > MOST_BODY)


def _lengthOf(act: Act) -> int:
    return MOST_BODY + act.value % 3 - 1 if act.count < 100 else act.count


def contentsOf(act: Act, guid: bytes) -> list[bytes]:
    """Return the bytes that a client sends in an act, for each of its connections."""
    return [each.replace(GUID, guid) for each in _contents(act)]


def _contents(act: Act) -> Iterator[bytes]:
    login, value, host = act.login, act.value, b"Host: localhost"
    heads: tuple[bytes, ...]
    path = _SERVED[value % len(_SERVED)]
    few, many = min(act.count, 20), min(act.count, 150)
    gzip = (host, b"Accept-Encoding: gzip, br") if value % 2 else (host,)
    match act.deed:
        case Deed.PAGES:
            several = (_SERVED[(value + number) % len(_SERVED)] for number in range(many))
            yield b"".join(request(each, login, *gzip) for each in several)
        case Deed.METHODS:
            yield request(path, login, method=_METHODS[value % len(_METHODS)]) * min(act.count, 3)
        case Deed.PATHS:
            yield b"".join(
                request(_LOST[(value + number) % len(_LOST)], login, *gzip) for number in range(few)
            )
        case Deed.QUERIES:
            for number in range(few):
                asked, name = _PARAMETERS[(value + number) % len(_PARAMETERS)]
                odd = _ODD[(value // len(_PARAMETERS) + 7 * number) % len(_ODD)]
                yield request(asked + b"?" + name + b"=" + odd, login, *gzip)
        case Deed.HOSTS:
            hosts = _HOSTS[value % len(_HOSTS)]
            yield request(path, login, b"X: y", *(b"Host: " + each for each in hosts))
        case Deed.HEADERS:
            long = b"X: " + b"y" * act.count
            several = (b"X-%d: y" % number for number in range(min(act.count, 1000)))
            same = (b"Host: localhost", b"Accept: */*", b"Authorization: " + login.value, b"Cookie: a=b; c")
            repeated = (same[value // 3 % len(same)],) * few
            yield request(path, login, host, *((long,), several, repeated)[value % 3])
        case Deed.LINES:
            yield request(path + b"?" + b"x" * act.count, login)
        case Deed.BODIES:
            length = _lengthOf(act)
            kind = (b"application/json", b"application/x-www-form-urlencoded", b"multipart/form-data")[
                value % 3
            ]
            method = (b"POST", b"GET", b"PUT", b"POST")[value % 4]
            heads = (host, b"Content-Length: %d" % length, b"Content-Type: " + kind)
            where = (b"/findings/" + b"0" * 16, b"/api/v1/findings/" + b"0" * 16, path)[value // 12 % 3]
            body = (b'{"a":' * length, b"a=%ff&" * length, b"[" * length)[value // 36 % 3][:length]
            yield request(where, login, *heads, b"Expect: 100-continue", method=method, body=body)
        case Deed.LENGTHS:
            lengths = (b"Content-Length: " + each for each in _LENGTHS[value % len(_LENGTHS)])
            yield request(path, login, host, *lengths, method=b"POST", body=b"a=1&b" + request(path, login))
        case Deed.CHUNKS:
            coding = (b"chunked", b"Chunked", b"gzip, chunked", b"identity", b"chunked, chunked")[value % 5]
            heads = (host, b"Transfer-Encoding: " + coding, *((b"Content-Length: 5",) * (value // 5 % 2)))
            body = _CHUNKED[max(0, value // 10 % (2 * len(_CHUNKED)) - len(_CHUNKED))]  # the first is right
            yield request(path, login, *heads, method=(b"POST", b"GET")[value % 2], body=body)
        case Deed.LOGINS:
            names = (USER, b"root", b"%d", b"\xff\x00", b"x" * 300, b"")
            name = names[value % len(names)]
            each = max(1, many // few)
            for number in range(few):
                first = number * each * (value // len(names) % 2)
                guesses = [
                    (name.replace(b"%d", b"%d" % one), b"%d" % one) for one in range(first, first + each)
                ]
                heads = tuple(b"Authorization: Basic " + b64encode(b":".join(one)) for one in guesses)
                yield b"".join(request(path, Login.NONE, host, one) for one in heads)
        case Deed.EVENTS:
            last = (b"0", b"-1", b"9" * 18, b"9" * 400, b"x", b"\xb2", b"1")[value % 7]
            method = b"HEAD" if value % 11 == 0 else b"GET"
            for _ in range(few):
                heads = (host, b"Last-Event-ID: " + last)
                yield request(b"/api/v1/events", login, *heads, method=method) * (1 + value % 2)
        case Deed.IDLE:
            yield from [request(b"/healthz", Login.NONE) if value % 2 else b""] * few
        case Deed.PARTS:
            yield from [_PARTS[value % len(_PARTS)]] * few
        case Deed.OTHERS:
            yield _OTHERS[value % len(_OTHERS)]
