"""Authentication of the monitor's site, and the permissions of its files."""

from __future__ import annotations

import json
import os
from base64 import b64encode
from pathlib import Path
from typing import Any

from twisted.cred.credentials import UsernamePassword
from twisted.cred.error import UnauthorizedLogin
from twisted.internet.address import IPv4Address, IPv6Address, UNIXAddress
from twisted.internet.defer import Deferred
from twisted.internet.interfaces import IAddress
from twisted.internet.protocol import Factory
from twisted.internet.testing import StringTransport
from twisted.logger import capturedLogs, formatEvent
from twisted.trial.unittest import SkipTest
from twisted.web import http
from twisted.web.server import Request
from twisted.web.test.requesthelper import DummyRequest

from txrdma.error import InvalidRequest
from txrdma.kit import webaccess
from txrdma.kit.passwords import Account, PasswordHash, User, UserRole
from txrdma.kit.webaccess import (
    AccessControl,
    GUESS_SECONDS,
    Guesses,
    isCrossSite,
    isLocalName,
    MOST_GUESSERS,
    MOST_GUESSES,
    MOST_LOGGED,
    MOST_LOGINS,
    MOST_OF_ADDRESS,
    ProxyRules,
    readAccess,
)
from txrdma.monitor.config import parseConfig
from txrdma.monitor.web import site
from txrdma.monitor.web.site import MonitorSite
from txrdma.sim.clock import SimulatedClock
from txrdma.tap.monitor import MonitorService
from txrdma.test.support.monitor.fetching import Connection, fetch
from txrdma.test.unit.monitor.test_rest import SiteTestCase
from txrdma.testing.streams.certificate import makeCertificate

TOKEN = "0123456789abcdef-token"
HASH = PasswordHash.of(b"pass:word", 4)
PATHS = ("/", "/nodes", "/metrics", "/api/v1/nodes", "/api/v1/events", "/static/monitor.css", "/nothing")


def basic(name: str, password: str) -> str:
    """Return the Authorization header of a browser."""
    return "Basic " + b64encode(f"{name}:{password}".encode()).decode()


def addressOf(host: str) -> IPv4Address | IPv6Address:
    return IPv6Address("TCP", host, 4000) if ":" in host else IPv4Address("TCP", host, 4000)


class AccessTests(SiteTestCase):
    """A site with tokens and users."""

    def setUp(self) -> None:
        super().setUp()
        tokens, users = self.file(f"# for Prometheus\n{TOKEN}\n\n"), self.file(f"alice:{HASH}\n")
        self.site = MonitorSite(self.clock, self.watch, access=readAccess(tokens, users))

    def file(self, text: str, mode: int = 0o600) -> str:
        path: str = self.mktemp()
        Path(path).write_text(text)
        os.chmod(path, mode)
        return path

    def code(self, path: str, **heads: str) -> int:
        self.clock.advance(0.0)  # one reactor iteration answers a limited number of requests
        return self.get(path, **heads).code

    def test_nobody(self) -> None:
        """Without a token or a password, every page refuses access."""
        for path in PATHS:
            answer = self.get(path)
            self.assertEqual(answer.code, 401, path)
            self.assertIn("script-src 'self'", answer.heads["content-security-policy"])
            self.assertNotIn("monitor", answer.text.lower())
            if path.startswith("/api/"):
                self.assertEqual(answer.heads["content-type"], "application/json")
                self.assertEqual(list(json.loads(answer.text)), ["error"])
        raw = Connection(self.site.factory)
        raw.ask("/")
        output = raw.transport.value().decode().lower()
        self.assertIn('www-authenticate: basic realm="fabric monitor"', output)
        self.assertIn('www-authenticate: bearer realm="fabric monitor"', output)

    def test_probes(self) -> None:
        """Load balancers ask without a password, and get one line; nothing can be posted there."""
        for path, code, text in (
            ("/healthz", 200, "ok\n"),
            ("/readyz", 503, "the first sweep is in progress\n"),
        ):
            answer = self.get(path)
            self.assertEqual((answer.code, answer.text), (code, text))
            self.assertEqual(fetch(self.site.factory, path, "POST").code, 405)
        self.started()
        self.assertEqual(self.get("/readyz").code, 200)

    def test_somebody(self) -> None:
        """A token or a password gives access to all pages; a token is accepted as a password."""
        for header in (f"Bearer {TOKEN}", basic("alice", "pass:word"), basic("", TOKEN), basic("bob", TOKEN)):
            for path in PATHS[:-1]:
                self.assertEqual(self.code(path, Authorization=header), 200, (path, header))

    def test_compressed(self) -> None:
        """Pages and scripts are compressed for users who log in, too."""
        for path in ("/", "/api/v1/nodes", "/static/monitor.css"):
            heads = {"Authorization": f"Bearer {TOKEN}", "Accept-Encoding": "gzip"}
            self.assertEqual(self.get(path, **heads).heads["content-encoding"], "gzip", path)

    def test_uncompressed(self) -> None:
        """Users who log in get pages as they are if Twisted has no L{Request._encoder} any more."""
        for name in ("write", "finish"):  # which compress
            self.patch(Request, name, getattr(http.Request, name))
        self.addCleanup(setattr, Request, "_encoder", None)
        del Request._encoder
        answer = self.get("/", **{"Authorization": f"Bearer {TOKEN}", "Accept-Encoding": "gzip"})
        self.assertEqual((answer.code, answer.heads.get("content-encoding")), (200, None))

    def test_byteOrderMark(self) -> None:
        """Files of tokens and users may begin with a byte order mark."""
        tokens, users = self.file(f"\ufeff{TOKEN}\n"), self.file(f"\ufeffalice:{HASH}\n")
        self.site = MonitorSite(self.clock, self.watch, access=readAccess(tokens, users))
        for header in (f"Bearer {TOKEN}", basic("alice", "pass:word")):
            self.assertEqual(self.code("/metrics", Authorization=header), 200)

    def test_wrong(self) -> None:
        """Wrong or malformed tokens and passwords are refused."""
        for header in (
            *("Bearer", "Bearer ", f"Bearer {TOKEN}x", f"Bearer {TOKEN[:-1]}", f"Digest {TOKEN}", TOKEN),
            *(basic("alice", ""), basic("alice", "pass"), basic("bob", "pass:word"), "Basic ?", "Basic Og=="),
            "Bearer pass:word",
        ):
            self.assertEqual(self.code("/api/v1/nodes", Authorization=header), 401, header)

    def test_guesses(self) -> None:
        """Wrong passwords are logged, and delay that user at that address, but no other user and no token."""
        now = 0.0
        users = {b"alice": Account(b"right"), b"bob": Account(b"right")}
        access = AccessControl([TOKEN.encode()], users, Guesses(lambda: now))
        self.site = MonitorSite(self.clock, self.watch, access=access)
        with capturedLogs() as logs:
            codes = [self.code("/metrics", Authorization=basic("alice", str(at))) for at in range(50)]
        self.assertEqual((set(codes), len(logs)), ({401}, 2))
        self.assertEqual(self.code("/metrics", Authorization=basic("alice", "right")), 401)
        self.assertEqual(self.code("/metrics", Authorization=basic("bob", "right")), 200)
        self.assertEqual(self.code("/metrics", Authorization=f"Bearer {TOKEN}"), 200)
        now = GUESS_SECONDS
        self.assertEqual(self.code("/metrics", Authorization=basic("alice", "right")), 200)

    def test_rightPassword(self) -> None:
        """A login with the right password resets the count of wrong ones before it."""
        access = AccessControl([], {b"alice": Account(b"right")}, Guesses(lambda: 1.0))
        for _ in range(3):
            for number in range(MOST_GUESSES - 1):
                wrong = UsernamePassword(b"alice", b"%d" % number)
                self.failureResultOf(access.requestAvatarId(wrong), UnauthorizedLogin)
            self.successResultOf(access.requestAvatarId(UsernamePassword(b"alice", b"right")))

    def test_manyGuessers(self) -> None:
        """The number of remembered names and addresses is bounded."""
        guesses = Guesses(lambda: 1.0)
        with capturedLogs() as logs:
            for number in range(MOST_GUESSERS + 50):
                guesses.wrong("10.0.0.1", b"%d" % number)
        self.assertEqual((len(guesses._known), len(logs)), (MOST_GUESSERS, MOST_LOGGED))

    def test_invented(self) -> None:
        """Passwords for invented names, or from addresses of one network, permit no additional guesses."""
        access = AccessControl([], {b"alice": Account(b"right")}, Guesses(lambda: 1.0))

        def isTaken(address: str, name: bytes, password: bytes) -> bool:
            guess: Any = UsernamePassword(name, password)
            guess.address = address
            taken: list[object] = []
            access.requestAvatarId(guess).addCallbacks(taken.append, lambda failure: None)
            return bool(taken)

        addresses = ("10.0.0.1", "fe80::1%eth0", "2001:db8::1")
        for address in addresses:
            for number in range(MOST_GUESSES):
                self.assertFalse(isTaken(address, b"alice", b"%d" % number))
        with capturedLogs():
            for number in range(MOST_GUESSERS + 50):
                self.assertFalse(isTaken("10.0.0.1", b"%d" % number, b"wrong"))
        for address in (*addresses, "fe80::2%eth0", "2001:db8::aaaa:2"):
            self.assertFalse(isTaken(address, b"alice", b"right"), address)
        for address in ("10.0.0.2", "::ffff:10.0.0.2", "2001:db8:0:1::1", ""):
            self.assertTrue(isTaken(address, b"alice", b"right"), address)

    def test_files(self) -> None:
        """Files that are readable by others, missing, empty or invalid are refused with a reason."""
        for tokens, users, why in (
            (self.file(TOKEN, 0o604), "", "everybody"),
            (self.file("short\n"), "", "line 1"),
            (self.file("# none\n"), "", "no entries"),
            ("", self.file(f"alice:{HASH}\nbob\n"), "line 2"),
            ("", self.file("alice:plain text\n"), "line 1: not of the form name:HASH:role: not a hash"),
            ("", "/nothing/there", "No such file"),
        ):
            self.assertIn(why, str(self.assertRaises(InvalidRequest, readAccess, tokens, users)))
        config = parseConfig(f'port = "sim"\nweb.users = "{self.file("", 0o600)}"')
        self.assertRaises(InvalidRequest, MonitorService, SimulatedClock(), config)


class HashTests(SiteTestCase):
    """Users whose passwords are stored as hashes."""

    users: dict[bytes, Account]

    def setUp(self) -> None:
        super().setUp()
        hashed = PasswordHash.of(b"right", 4)
        self.users = {b"alice": Account(hashed, UserRole.OPERATOR), b"bob": Account(hashed)}
        self.pending: list[tuple[Deferred[bool], Any, Any]] = []
        self.access = AccessControl(
            [TOKEN.encode()], self.users, Guesses(lambda: 1.0), inThread=self.inThread
        )

    def inThread(self, work: Any, *arguments: Any) -> Deferred[bool]:
        self.pending.append((Deferred(), work, arguments))
        return self.pending[-1][0]

    def work(self) -> int:
        """Do what the thread has to do; return how many comparisons that were."""
        number = 0
        while self.pending:
            done, work, arguments = self.pending.pop(0)
            number += 1
            done.callback(work(*arguments))
        return number

    def login(self, name: bytes, password: bytes) -> Deferred[User]:
        return self.access.requestAvatarId(UsernamePassword(name, password))

    def test_roles(self) -> None:
        """A right password gives the role of the user; a token gives no role, with any name."""
        for name, password, user in (
            (b"alice", b"right", User("alice", UserRole.OPERATOR)),
            (b"bob", b"right", User("bob")),
            (b"alice", TOKEN.encode(), User("token")),
        ):
            done = self.login(name, password)
            self.work()
            self.assertEqual(self.successResultOf(done), user)

    def test_once(self) -> None:
        """The first login is compared with the hash in a thread; further requests are answered at once."""
        first, second = self.login(b"alice", b"right"), self.login(b"alice", b"right")
        self.assertNoResult(first)
        self.assertEqual(self.work(), 1)
        for done in (first, second, self.login(b"alice", b"right")):
            self.assertEqual(self.successResultOf(done).name, "alice")
        wrong = self.login(b"alice", b"wrong")
        with capturedLogs():
            self.assertEqual(self.work(), 1)
        self.failureResultOf(wrong, UnauthorizedLogin)

    def test_unknownNames(self) -> None:
        """A name without a user takes as long as one with a user, so that names cannot be found."""
        costs = set()
        for name, password in ((b"alice", b"wrong"), (b"carol", b"right")):
            done = self.login(name, password)
            hashed = self.pending[0][1].__self__.hash
            costs.add((hashed.logN, hashed.blockSize, hashed.parallelism))
            with capturedLogs():
                self.assertEqual(self.work(), 1)
            self.failureResultOf(done, UnauthorizedLogin)
        self.assertEqual(len(costs), 1)

    def test_parallel(self) -> None:
        """Guesses at the same time are one after the other, and no more than others."""
        several = [self.login(b"alice", b"%d" % number) for number in range(50)]
        with capturedLogs():
            self.assertEqual(self.work(), MOST_GUESSES)
        for done in several:
            self.failureResultOf(done, UnauthorizedLogin)

    def test_crowd(self) -> None:
        """Beyond some logins that wait, further ones are refused, except of users who are known."""
        known = self.login(b"bob", b"right")
        self.work()
        self.successResultOf(known)
        several = [self.login(b"x", b"%d" % number) for number in range(MOST_LOGINS)]
        self.failureResultOf(self.login(b"alice", b"right"), UnauthorizedLogin)
        self.successResultOf(self.login(b"bob", b"right"))
        with capturedLogs():
            self.work()
        for done in several:
            self.failureResultOf(done, UnauthorizedLogin)

    def test_sprayed(self) -> None:
        """
        Many wrong passwords from an address, for any names, are compared no longer, which would use up the
        processor; users who have logged in before, and those at other addresses, are admitted.
        """

        def login(name: bytes, password: bytes, address: str = "10.0.0.1") -> Deferred[User]:
            guess: Any = UsernamePassword(name, password)
            guess.address = address
            done: Deferred[User] = self.access.requestAvatarId(guess)
            self.compared += self.work()
            return done

        self.compared = 0
        self.successResultOf(login(b"bob", b"right"))
        with capturedLogs() as logs:
            for number in range(2 * MOST_OF_ADDRESS):
                self.failureResultOf(login(b"%d" % number, b"x"), UnauthorizedLogin)
        self.assertEqual(self.compared, 1 + MOST_OF_ADDRESS)
        self.assertEqual(
            [formatEvent(one) for one in logs].count(
                "no more new logins are taken from 10.0.0.1 for a minute"
            ),
            1,
        )
        self.failureResultOf(login(b"alice", b"right"), UnauthorizedLogin)
        self.successResultOf(login(b"bob", b"right"))
        self.successResultOf(login(b"alice", b"right", "10.0.0.2"))

    def test_browsers(self) -> None:
        """Many browsers of a user, as after a restart, wait for one comparison, and all get their pages."""
        site = MonitorSite(self.clock, self.watch, access=self.access)
        connections = [Connection(site.factory) for _ in range(300)]
        for connection in connections:
            connection.ask("/static/monitor.css", Authorization=basic("alice", "right"))
            self.clock.advance(0.0)
        self.assertEqual(self.work(), 1)
        self.assertEqual({connection.answer.code for connection in connections}, {200})
        for connection in connections:
            connection.close()
        self.patch(webaccess, "MOST_SAME", 2)
        several = [self.login(b"bob", b"right") for _ in range(3)]
        self.failureResultOf(several.pop(), UnauthorizedLogin)
        self.work()
        for done in several:
            self.successResultOf(done)

    def test_failed(self) -> None:
        """A comparison that fails, as without memory, is the failure of its requests only."""
        several = [self.login(b"alice", b"right"), self.login(b"alice", b"wrong")]
        self.pending.pop(0)[0].errback(MemoryError())
        self.failureResultOf(several[0], MemoryError)
        with capturedLogs():
            self.assertEqual(self.work(), 1)
        self.failureResultOf(several[1], UnauthorizedLogin)

    def test_left(self) -> None:
        """A client that disconnects while its password is compared causes no error."""
        site = MonitorSite(self.clock, self.watch, access=self.access)
        connection = Connection(site.factory)
        connection.ask("/api/v1/overview", Authorization=basic("alice", "right"))
        connection.close()
        self.work()
        self.assertEqual(connection.transport.value(), b"")
        self.assertEqual(
            fetch(site.factory, "/api/v1/overview", Authorization=basic("alice", "right")).code, 200
        )


class ProxyTests(SiteTestCase):
    """A reverse proxy that authenticates users."""

    def codeOf(self, rules: ProxyRules, address: IAddress | None, *lines: str) -> int:
        site = MonitorSite(self.clock, self.watch, access=AccessControl(proxy=rules))
        connection = Connection(site.factory, address)
        transport: Any = connection.transport
        transport.peerAddr = address
        heads = "".join(f"{line}\r\n" for line in lines)
        ask = f"POST /api/v1/findings/{'0' * 16} HTTP/1.1\r\nHost: localhost\r\n{heads}"
        ask += "Content-Type: application/json\r\nContent-Length: 24\r\n\r\n" + '{"action":"acknowledge"}'
        connection.protocol.dataReceived(ask.encode())
        code = connection.answer.code
        connection.close()
        return code

    def test_users(self) -> None:
        """A proxy names the user and the role; an operator's request is answered, a viewer's is refused."""
        alice, operator = "X-Remote-User: alice", "X-Remote-Role: operator"
        rules = ProxyRules(("127.0.0.1", "10.1.0.0/16"), roleHeader="X-Remote-Role")
        local, lan = addressOf("127.0.0.1"), addressOf("10.1.2.3")
        for address, lines, code in (
            (local, (alice, operator), 404),
            (lan, (alice, "X-Remote-Role: staff, operator"), 404),
            (addressOf("::ffff:10.1.2.3"), (alice, operator), 404),
            (local, (alice,), 403),
            (local, (alice, "X-Remote-Role: staff"), 403),
            (local, (alice, operator, operator), 403),
        ):
            self.assertEqual(self.codeOf(rules, address, *lines), code, (address, lines))
        self.assertEqual(
            self.codeOf(ProxyRules(("127.0.0.1",)), local, alice, operator), 403
        )  # no role-header
        changed = ProxyRules(("127.0.0.1",), "Remote-User", "Remote-Groups", ("wheel",))
        self.assertEqual(self.codeOf(changed, local, "Remote-User: bob", "Remote-Groups: users,wheel"), 404)
        self.assertEqual(self.codeOf(changed, local, alice, operator), 401)

    def test_strangers(self) -> None:
        """Headers from other addresses, without a name, or with two of them, are not believed."""
        alice, operator = "X-Remote-User: alice", "X-Remote-Role: operator"
        rules = ProxyRules(("127.0.0.1",), roleHeader="X-Remote-Role")
        for address in (addressOf("10.0.0.1"), addressOf("::1"), UNIXAddress(None), None):
            self.assertEqual(self.codeOf(rules, address, alice, operator), 401, address)
        for lines in (
            (),
            (operator,),
            ("X-Remote-User:", operator),
            (alice, "X-Remote-User: root", operator),
        ):
            self.assertEqual(self.codeOf(rules, addressOf("127.0.0.1"), *lines), 401, lines)
        for name in ("x" * 65, "a\x7fb"):
            self.assertEqual(self.codeOf(rules, addressOf("127.0.0.1"), f"X-Remote-User: {name}"), 401)
        for other in ("X_Remote_User: alice", "X-Remote-User-: alice", "XX-Remote-User: alice"):
            self.assertEqual(self.codeOf(rules, addressOf("127.0.0.1"), other, operator), 401, other)
        self.assertEqual(
            self.codeOf(
                rules, addressOf("127.0.0.1"), "x-remote-user: bob", "X-REMOTE-USER: alice", operator
            ),
            401,
        )

    def test_unix(self) -> None:
        """A proxy may connect by a UNIX socket."""
        lines = "X-Remote-User: alice", "X-Remote-Role: operator"
        rules = ProxyRules(("unix",), roleHeader="X-Remote-Role")
        self.assertEqual(self.codeOf(rules, UNIXAddress(None), *lines), 404)
        self.assertEqual(self.codeOf(rules, addressOf("127.0.0.1"), *lines), 401)

    def test_config(self) -> None:
        """The configuration has addresses, headers and roles; with them, users and tokens are not needed."""
        text = 'web.listen = "tcp:9315"\n[web.proxy]\naddresses = ["10.0.0.1", "10.1.0.0/16", "unix"]\n'
        self.assertEqual(parseConfig(text).proxy, ProxyRules(("10.0.0.1", "10.1.0.0/16", "unix")))
        more = 'user-header = "Remote-User"\nrole-header = "Remote-Groups"\noperators = ["wheel"]\n'
        proxy = ProxyRules(("10.0.0.1", "10.1.0.0/16", "unix"), "Remote-User", "Remote-Groups", ("wheel",))
        self.assertEqual(parseConfig(text + more).proxy, proxy)
        self.assertIsNone(parseConfig("").proxy)
        for wrong in (
            *('addresses = ["10.0.0.1/8"]', "addresses = []", 'addresses = ["proxy"]', ""),
            *('addresses = ["0.0.0.0/0"]', 'addresses = ["::/0"]'),
        ):
            self.assertRaises(InvalidRequest, parseConfig, f"[web.proxy]\n{wrong}")

    def test_socket(self) -> None:
        """A UNIX socket whose clients are believed must not be open to all users, as it is by default."""
        for mode, isRight in (("", False), (":mode=666", False), (":mode=662", False), (":mode=660", True)):
            text = f'web.listen = "unix:/run/http{mode}"\n[web.proxy]\naddresses = ["unix"]\n'
            if isRight:
                self.assertIsNotNone(parseConfig(text).proxy)
            else:
                self.assertIn("mode=660", str(self.assertRaises(InvalidRequest, parseConfig, text)))
        parseConfig('web.listen = "unix:/run/http"\n[web.proxy]\naddresses = ["10.0.0.1"]\n')


class CrossSiteTests(SiteTestCase):
    def test_origins(self) -> None:
        """Only pages of the same site, and programs that send JSON, can cause a change."""
        for heads, asForm, asJSON in (
            ({}, True, False),
            ({b"sec-fetch-site": b"same-origin"}, False, False),
            ({b"sec-fetch-site": b"same-site"}, True, True),
            ({b"sec-fetch-site": b"cross-site", b"origin": b"http://localhost:9315"}, True, True),
            ({b"origin": b"http://localhost:9315"}, False, False),
            ({b"origin": b"http://localhost:9315", b"x-forwarded-host": b"x"}, False, False),
            ({b"origin": b"https://fabric.example", b"x-forwarded-host": b"fabric.example"}, False, False),
            ({b"origin": b"https://evil.example"}, True, True),
            ({b"origin": b"null"}, True, True),
            ({b"origin": b"http://\xff"}, True, True),
        ):
            request = DummyRequest([b""])
            for name, value in {b"host": b"localhost:9315", **heads}.items():
                request.requestHeaders.setRawHeaders(name, [value])
            for isForm, expected in ((True, asForm), (False, asJSON)):
                shown: Any = request
                self.assertEqual(isCrossSite(shown, isForm), expected, (heads, isForm))


class BoundTests(SiteTestCase):
    """Limits of what unauthenticated clients can make the site store."""

    def test_bodies(self) -> None:
        """A request with a long body is refused after its header, and nothing of the body is stored."""
        self.patch(http, "_getContentFile", self.fail)
        for head in (
            "Content-Length: 100000000000",
            f"Content-Length: {site.MOST_BODY + 1}",
            "Transfer-Encoding: chunked",
        ):
            for method in ("GET", "POST", "PUT"):
                connection = Connection(self.site.factory)
                heads = f"{method} /api/v1/nodes HTTP/1.1\r\nHost: localhost\r\n{head}\r\n\r\n"
                connection.protocol.dataReceived(heads.encode())
                self.assertEqual(connection.answer.code, 413)
                self.assertTrue(connection.transport.disconnecting)
                connection.protocol.dataReceived(b"1\r\nx\r\n0\r\n\r\n")
                self.assertEqual(connection.answer.body, b"")
                connection.close()

    def test_lengths(self) -> None:
        """A length of any number of digits is refused, and closes its connection without an exception."""
        for head in (
            b"Content-Length: " + b"9" * 5000,
            b"CONTENT-LENGTH :" + b"1" * 5000,
            b"content-length:-",
        ):
            for more in (b"", b"X: y\r\n"):
                connection = Connection(self.site.factory)
                heads = b"POST /api/v1/nodes HTTP/1.1\r\nHost: localhost\r\n%b\r\n%b\r\n" % (head, more)
                connection.protocol.dataReceived(heads)
                self.assertEqual(connection.answer.code, 400)
                self.assertTrue(connection.transport.disconnecting)
                connection.close()

    def test_shortBodies(self) -> None:
        """A short body is accepted with POST only, and then refused by what can only be read."""
        for method, code in (("GET", 413), ("PUT", 405), ("TRACE", 405), ("HEAD", 413), ("POST", 405)):
            connection = Connection(self.site.factory)
            heads = f"{method} /api/v1/nodes HTTP/1.1\r\nHost: localhost\r\nContent-Length: 4\r\n\r\n"
            connection.protocol.dataReceived(f"{heads}a=1&".encode())
            self.assertEqual(connection.answer.code, code, method)
            connection.close()

    def test_empty(self) -> None:
        connection = Connection(self.site.factory)
        connection.ask("/api/v1/nodes", Content_Length="0")
        self.assertEqual(connection.answer.code, 200)
        connection.close()

    def assertRefused(self, address: IAddress | None) -> None:
        """Assert that the site closes a connection from this address."""
        self.assertTrue(Connection(self.site.factory, address).transport.disconnected)

    def test_refusedOverTLS(self) -> None:
        """A refused connection with TLS is closed at once, too."""
        try:
            from twisted.internet.ssl import PrivateCertificate
            from twisted.protocols.tls import TLSMemoryBIOFactory
        except ImportError:
            raise SkipTest("pyOpenSSL is not installed") from None
        self.patch(site, "MOST_CONNECTIONS", 0)
        context = PrivateCertificate.loadPEM(makeCertificate()).options()
        factory = Factory()  # unlike a site, without ALPN, for which old Twisted needs old pyOpenSSL
        self.patch(factory, "buildProtocol", self.site.factory.buildProtocol)
        secured = TLSMemoryBIOFactory(context, False, factory, self.clock)
        transport = StringTransport()
        secured.buildProtocol(addressOf("10.0.0.1")).makeConnection(transport)
        self.assertTrue(transport.disconnected)

    def test_connections(self) -> None:
        """The number of connections is limited; when one ends, another is accepted."""
        self.patch(site, "MOST_CONNECTIONS", 3)
        connections = [Connection(self.site.factory) for _ in range(3)]
        self.assertRefused(None)
        connections.pop().close()
        connections.append(Connection(self.site.factory))
        self.assertRefused(None)
        for connection in connections:
            connection.close()

    def test_oneClient(self) -> None:
        """A client, or network of IPv6, cannot use up all connections; a proxy on the same host may."""
        self.patch(site, "MOST_OF_CLIENT", 2)
        for others in (("10.0.0.1", "10.0.0.1"), ("2001:db8::1", "2001:db8::2"), ("::ffff:10.0.0.2",) * 2):
            first, *connections = (Connection(self.site.factory, addressOf(host)) for host in others)
            self.assertRefused(addressOf(others[0]))
            first.close()
            connections.append(Connection(self.site.factory, addressOf(others[0])))
            self.assertRefused(addressOf(others[1]))
            for connection in (*connections, Connection(self.site.factory, addressOf("10.0.0.3"))):
                connection.close()
        self.assertEqual(self.site.factory._clients, {})
        for host in ("127.0.0.1", "127.0.0.2", "::1", "::ffff:127.0.0.1"):
            local = [Connection(self.site.factory, addressOf(host)) for _ in range(5)]
            for connection in local:
                connection.close()
        local = [Connection(self.site.factory, UNIXAddress(None)) for _ in range(5)]
        for connection in local:
            connection.close()

    def test_fair(self) -> None:
        """A client gets a connection in place of an idle one of a client that has more."""
        self.patch(site, "MOST_CONNECTIONS", 5)
        crowd = [Connection(self.site.factory, addressOf("10.0.0.1")) for _ in range(4)]
        crowd[0].ask("/api/v1/events")
        others = [Connection(self.site.factory, addressOf(f"10.0.0.{number}")) for number in (2, 3, 4)]
        self.assertEqual([each.isEnding for each in crowd], [False, True, True, False])
        self.assertRefused(addressOf("10.0.0.2"))  # it would have as many
        others.append(Connection(self.site.factory, addressOf("10.0.0.5")))
        self.assertTrue(crowd[3].isEnding)
        self.assertRefused(addressOf("10.0.0.6"))  # each has one
        local = Connection(self.site.factory, addressOf("127.0.0.1"))
        self.assertEqual([each.isEnding for each in others].count(True), 1)
        self.assertFalse(crowd[0].isEnding)
        for connection in (*crowd, *others, local):
            connection.close()
        self.assertEqual((self.site.factory._clients, self.site.factory._connections), ({}, 0))
        self.assertEqual(self.site.factory._closing, {})

    def test_responseOfIdle(self) -> None:
        """An idle connection that is replaced first sends its last response, but few do so at a time."""
        self.patch(site, "MOST_CONNECTIONS", 3)
        self.patch(site, "MOST_CLOSING", 1)
        crowd = [Connection(self.site.factory, addressOf("10.0.0.1")) for _ in range(3)]
        crowd[0].protocol.dataReceived(b"GET /healthz HTTP/1.1\r\nHost: localhost\r\n\r\n")
        others = [Connection(self.site.factory, addressOf("10.0.0.2"))]
        transport = crowd[0].transport
        self.assertEqual(crowd[0].answer.code, 200)
        self.assertEqual((transport.disconnecting, transport.disconnected), (True, False))
        self.assertIsNone(transport.producer)  # so that it is disconnected when all is sent
        others.append(Connection(self.site.factory, addressOf("10.0.0.3")))
        self.assertTrue(transport.disconnected)
        for connection in (*crowd, *others):
            connection.close()
        self.assertEqual(self.site.factory._closing, {})

    def test_allBusy(self) -> None:
        """After a search without an idle connection, further clients are refused without one for a while."""
        self.patch(site, "MOST_CONNECTIONS", 2)
        crowd = [Connection(self.site.factory, addressOf("10.0.0.1")) for _ in range(2)]
        for connection in crowd:
            connection.protocol.dataReceived(b"GET /healthz HTTP/1.1\r\n")
        self.assertRefused(addressOf("10.0.0.2"))
        crowd[0].protocol.dataReceived(b"Host: localhost\r\n\r\n")
        self.assertRefused(addressOf("10.0.0.3"))
        local = Connection(self.site.factory, addressOf("127.0.0.1"))
        self.assertTrue(crowd[0].isEnding)
        local.close()
        again = Connection(self.site.factory, addressOf("10.0.0.1"))
        self.clock.advance(site.SEARCH_SECONDS)
        other = Connection(self.site.factory, addressOf("10.0.0.3"))
        self.assertTrue(again.isEnding)
        for connection in (*crowd, again, other):
            connection.close()


class OpenTests(SiteTestCase):
    def test_names(self) -> None:
        """A request with another Host header is refused, as protection against DNS rebinding."""
        for name, code in (
            ("localhost:9315", 200),
            ("127.0.0.1", 200),
            ("[::1]:9315", 200),
            ("evil.example", 421),
        ):
            connection = Connection(self.site.factory)
            connection.protocol.dataReceived(f"GET /api/v1/nodes HTTP/1.1\r\nHost: {name}\r\n\r\n".encode())
            self.assertEqual(connection.answer.code, code, name)
            self.assertEqual("error" in json.loads(connection.answer.text), code != 200)
            connection.close()
        self.assertFalse(any(map(isLocalName, (b"127.0.0.1.example", b"localhost.example", b"[x]", b"a"))))
