"""
Access to a web site: tokens and passwords from files, by C{twisted.cred}; or a reverse proxy names the user.

Programs send a token (RFC 6750); browsers ask for a name and a password (RFC 7617), and accept a token as the
password, with any name.
"""

from __future__ import annotations

import os
import time
from codecs import BOM_UTF8
from collections.abc import Awaitable, Callable, Mapping
from functools import lru_cache
from hmac import compare_digest
from ipaddress import ip_address, ip_network, IPv6Address
from typing import Any, Final
from urllib.parse import urlsplit

from zope.interface import Attribute, implementer, Interface

from twisted.cred.checkers import ICredentialsChecker
from twisted.cred.credentials import ICredentials, IUsernamePassword
from twisted.cred.error import LoginFailed, UnauthorizedLogin
from twisted.cred.portal import IRealm, Portal
from twisted.internet.address import UNIXAddress
from twisted.internet.defer import Deferred, maybeDeferred
from twisted.internet.interfaces import IAddress
from twisted.logger import Logger
from twisted.python.failure import Failure
from twisted.web.guard import BasicCredentialFactory, HTTPAuthSessionWrapper
from twisted.web.iweb import ICredentialFactory
from twisted.web.resource import IResource, Resource
from twisted.web.server import Request

from txrdma.error import InvalidRequest
from txrdma.kit.passwords import Account, User, UserRole
from txrdma.kit.strings import printable
from txrdma.kit.values import frozen, record

_REALM: Final = b"fabric monitor"
FEWEST_CHARACTERS: Final = 16
"""Minimum length of a token in characters, so that it cannot be guessed."""

_OTHERS: Final = 0o007

MOST_GUESSES: Final = 10
"""
Maximum number of wrong passwords for a name from an address within L{GUESS_SECONDS}. After that, no password,
not even a right one, is accepted until these have passed. Tokens cannot be guessed: programs with one are not
affected.
"""

GUESS_SECONDS: Final = 60.0

MOST_OF_ADDRESS: Final = 100
"""
Maximum number of wrong passwords for any names from an address within L{GUESS_SECONDS} that are compared with
hashes, which takes some 50 milliseconds each. After that, only users who have logged in before are admitted
from there until these have passed.
"""

MOST_GUESSERS: Final = 1000
"""Maximum number of stored names and addresses with wrong passwords; the oldest are dropped."""

MOST_LOGGED: Final = 100
"""Maximum number of log lines about wrong passwords within L{GUESS_SECONDS}; further ones are dropped."""

MOST_LOGINS: Final = 100
"""
Maximum number of different passwords that wait to be compared with a hash, one after the other in a thread;
further ones are refused. Users who have logged in before do not wait.
"""

MOST_SAME: Final = 2000
"""
Maximum number of requests that wait for the same comparison; further ones are refused. After a restart, all
browsers of a user send the same password.
"""

UNIX: Final = "unix"
"""Address of a proxy that connects by a UNIX socket."""

_LONGEST_NAME: Final = 64
_USER: Final = "txrdmaUser"
_ANYBODY: Final = User("")
_NETWORK: Final = lru_cache(maxsize=256)(ip_network)
_log = Logger()

InThread = Callable[..., Awaitable[Any]]
"""Runs a function in a thread, or at once: C{maybeDeferred}."""


def clientNetworkOf(address: str) -> str:
    """Return an address, or the first 64 bits of an IPv6 address: hosts choose the other bits themselves."""
    try:
        known = ip_address(address)
    except ValueError:
        return address
    isNetwork = isinstance(known, IPv6Address) and known.ipv4_mapped is None
    return known.packed[:8].hex() if isNetwork else address


class Guesses:
    """
    Wrong passwords of the last minute, by user name and client address.

    @ivar seconds: returns the current time.
    """

    def __init__(self, seconds: Callable[[], float] = time.monotonic, most: int = MOST_GUESSES) -> None:
        """@param most: maximum number for a name from an address; C{b""} stands for all names."""
        self.seconds = seconds
        self._most = most
        self._known: dict[tuple[str, bytes], tuple[float, int]] = {}
        self._loggedSince, self._logged = 0.0, 0

    def areTooMany(self, address: str, name: bytes) -> bool:
        """True while no password for this name is accepted from this address."""
        key = clientNetworkOf(address), name
        began, times = self._known.get(key, (0.0, 0))
        if times and self.seconds() - began >= GUESS_SECONDS:
            del self._known[key]
            return False
        return times >= self._most

    def wrong(self, address: str, name: bytes) -> None:
        """Note a wrong password; the first one is logged, and the last one before a pause."""
        key = clientNetworkOf(address), name
        began, times = self._known.get(key, (self.seconds(), 0))
        self._known[key] = (began, times + 1)
        if len(self._known) > MOST_GUESSERS:
            del self._known[next(iter(self._known))]
        if times == 0 and name:
            self._log("wrong password for {name!r} from {address}", address, name)
        if times + 1 == self._most:
            which = "passwords for {name!r}" if name else "new logins"
            self._log(f"no more {which} are taken from {{address}} for a minute", address, name)

    def _log(self, text: str, address: str, name: bytes) -> None:
        """Log a line, unless there were L{MOST_LOGGED} within L{GUESS_SECONDS}: clients can invent names."""
        now = self.seconds()
        if now - self._loggedSince >= GUESS_SECONDS:
            self._loggedSince, self._logged = now, 0
        self._logged += 1
        if self._logged <= MOST_LOGGED:
            _log.warn(text, address=address, name=name[:_LONGEST_NAME].decode("utf-8", "replace"))

    def right(self, address: str, name: bytes) -> None:
        """Forget the wrong passwords, because a right one was received."""
        self._known.pop((clientNetworkOf(address), name), None)


class IBearerToken(ICredentials):
    """Token that a program sends."""

    token: bytes = Attribute("Token as it was sent.")


@implementer(IBearerToken)
@frozen
class BearerToken:
    """Token of a request."""

    token: bytes


@implementer(ICredentialFactory)
class BearerCredentialFactory:
    """Factory of credentials from C{Authorization: Bearer}."""

    scheme = b"bearer"

    def getChallenge(self, request: Request) -> dict[str, Any]:
        return {"realm": _REALM}

    def decode(self, response: bytes, request: Request) -> BearerToken:
        """
        Return the credentials of a request with a token.

        @raise LoginFailed: there is no token.
        """
        if not response:
            raise LoginFailed("there is no token")
        return BearerToken(response)


class _PasswordFactory(BasicCredentialFactory):
    """Factory of credentials from C{Authorization: Basic}, which contain the client's address."""

    def decode(self, response: bytes, request: Request) -> Any:
        """
        Return the credentials of a request with a name and a password.

        @raise LoginFailed: there are none.
        """
        credentials: Any = super().decode(response, request)  # type: ignore[no-untyped-call]  # of Twisted's
        credentials.address = getattr(request.getClientAddress(), "host", "")
        return credentials


def _only(request: Request, header: str) -> str:
    """Return the value of a header; C{""} if there is none, or several: one may be from the client."""
    values = request.requestHeaders.getRawHeaders(header.encode("ascii"), [])
    return values[0].decode("utf-8", "replace").strip() if len(values) == 1 else ""


@frozen
class ProxyRules:
    """
    Rules by which a reverse proxy, which has authenticated a user, is believed.

    @ivar addresses: addresses and networks of proxies; L{UNIX} for those that connect by a UNIX socket.
    @ivar userHeader: header with the name of the user.
    @ivar roleHeader: header with roles or groups, separated by commas; C{""} for none. A proxy that does not
        know it passes that of a client. C{operators} are those of operators.
    """

    addresses: tuple[str, ...]
    userHeader: str = "X-Remote-User"
    roleHeader: str = ""
    operators: tuple[str, ...] = (UserRole.OPERATOR.value,)

    def userOf(self, request: Request) -> User | None:
        """Return the user whom a proxy names; None if the request has none, or is not from a proxy."""
        if not self._isProxy(request.getClientAddress()):
            return None
        name = _only(request, self.userHeader)
        if not (name and name.isprintable() and len(name) <= _LONGEST_NAME):
            return None
        roles = _only(request, self.roleHeader) if self.roleHeader else ""
        known = {role.strip() for role in roles.split(",")}
        return User(name, UserRole.VIEWER if known.isdisjoint(self.operators) else UserRole.OPERATOR)

    def _isProxy(self, client: IAddress) -> bool:
        if isinstance(client, UNIXAddress):
            return UNIX in self.addresses
        try:
            address = ip_address(getattr(client, "host", ""))
        except ValueError:
            return False
        known = getattr(address, "ipv4_mapped", None) or address
        return any(known in _NETWORK(each) for each in self.addresses if each != UNIX)


@record(eq=False)
class _Attempt:
    """A client's attempt to log in; C{done} fires with whether the password is right."""

    address: str
    name: bytes
    guesses: Guesses
    done: Deferred[bool]


@implementer(ICredentialsChecker)
class AccessControl:
    """
    Checker of tokens and passwords.

    @ivar isOpen: whether no credentials are required: there are neither tokens nor users nor proxies.
    """

    credentialInterfaces: tuple[type[Interface], ...] = (IUsernamePassword, IBearerToken)

    def __init__(
        self,
        tokens: list[bytes] | None = None,
        users: Mapping[bytes, Account] | None = None,
        guesses: Guesses | None = None,
        proxy: ProxyRules | None = None,
        inThread: InThread = maybeDeferred,
    ) -> None:
        """
        @param users: accounts by the names of users.
        @param guesses: remembers wrong passwords.
        @param proxy: which proxies are believed; None for none.
        @param inThread: compares a password with a hash, which takes some 50 milliseconds.
        """
        self._guesses = Guesses() if guesses is None else guesses
        self._unknownNames = Guesses(self._guesses.seconds)  # of names without a user: they displace none
        self._addresses = Guesses(self._guesses.seconds, MOST_OF_ADDRESS)
        self._logins: dict[tuple[Account, bytes], list[_Attempt]] = {}
        self._isComparing = False
        self._inThread = inThread
        self._set(tokens or [], users or {}, proxy)
        self.isOpen = not self._tokens and not self._users and self._proxy is None

    def _set(self, tokens: list[bytes], users: Mapping[bytes, Account], proxy: ProxyRules | None) -> None:
        self._tokens, self._users, self._proxy = tokens, users, proxy
        hashes = [account.hash for account in users.values() if account.hash is not None]
        slowest = max(hashes, key=lambda each: (each.logN, each.blockSize, each.parallelism), default=None)
        # A name without a user takes as long as one with a user.
        self._nobody = Account(os.urandom(FEWEST_CHARACTERS) if slowest is None else slowest.unknown())

    def requestAvatarId(self, credentials: Any) -> Deferred[Any]:
        """Return the L{User} with these credentials; fails with L{UnauthorizedLogin} if there is none."""
        return Deferred.fromCoroutine(self._userOf(credentials))

    async def _userOf(self, credentials: Any) -> User:
        if IBearerToken.providedBy(credentials):
            if self._isToken(credentials.token):
                return User("token")
            raise UnauthorizedLogin("there is no such token")
        name, secret = credentials.username, credentials.password
        address = getattr(credentials, "address", "")
        account = self._users.get(name, self._nobody)
        guesses = self._guesses if name in self._users else self._unknownNames
        if guesses.areTooMany(address, name):
            raise UnauthorizedLogin("there were too many wrong passwords")
        isToken, isRight = self._isToken(secret), account.isKnown(secret)
        if not (isToken or isRight) and account.hash is not None:
            isRight = await self._compared(account, secret, _Attempt(address, name, guesses, Deferred()))
        elif not (isToken or isRight):
            guesses.wrong(address, name)
        if not (isToken or isRight):
            raise UnauthorizedLogin("there is no such token or password")
        guesses.right(address, name)
        if isToken:  # with any name, which must not get the rights of the user with this name
            return User("token")
        shown = name[:_LONGEST_NAME].decode("utf-8", "replace")
        return User(printable(shown, "\N{REPLACEMENT CHARACTER}"), account.role)

    def _compared(self, account: Account, secret: bytes, attempt: _Attempt) -> Deferred[bool]:
        """Compare a password with the hash, after others; the same attempts of many browsers once."""
        key = account, secret
        waiting = self._logins.get(key, [])
        if not self._isAllowed(attempt):
            raise UnauthorizedLogin("there were too many wrong passwords")
        if len(waiting) >= MOST_SAME or (not waiting and len(self._logins) >= MOST_LOGINS):
            raise UnauthorizedLogin("too many users log in at the same time")
        waiting.append(attempt)
        self._logins[key] = waiting
        if not self._isComparing:
            Deferred.fromCoroutine(self._compareAll())
        return attempt.done

    def _isAllowed(self, attempt: _Attempt) -> bool:
        isGuessed = attempt.guesses.areTooMany(attempt.address, attempt.name)
        return not (isGuessed or self._addresses.areTooMany(attempt.address, b""))

    async def _compareAll(self) -> None:
        """Compare all passwords that wait, one at a time."""
        self._isComparing = True
        while self._logins:
            account, secret = key = next(iter(self._logins))
            result: Any = False
            if any(map(self._isAllowed, self._logins[key])):  # guesses of the same time were wrong
                try:
                    result = await self._inThread(account.matches, secret)
                except Exception:
                    result = Failure()
            for attempt in self._logins.pop(key):
                if result is False and self._isAllowed(attempt):
                    attempt.guesses.wrong(attempt.address, attempt.name)
                    self._addresses.wrong(attempt.address, b"")
                attempt.done.callback(result)
        self._isComparing = False

    def _isToken(self, secret: bytes) -> bool:
        """Return whether a secret is a token; all are compared, so that the duration reveals nothing."""
        return bool(sum(compare_digest(secret, each) for each in self._tokens))

    def change(self, other: AccessControl) -> bool:
        """
        Use the users, tokens and proxies of another instance.

        @return: False if one of the two requires no credentials: then nothing has changed.
        """
        if self.isOpen or other.isOpen:
            return self.isOpen and other.isOpen
        self._set(other._tokens, other._users, other._proxy)
        return True

    def admitsSame(self, other: AccessControl) -> bool:
        """Return whether another instance has the same tokens, proxies and users, with the same hashes."""
        known, others = ({name: one.hash for name, one in each._users.items()} for each in (self, other))
        isSame = (self._tokens, self._proxy, known) == (other._tokens, other._proxy, others)
        return isSame and None not in known.values()

    def guard(self, resource: IResource) -> IResource:
        """Resource that requires credentials, if access is restricted."""
        if self.isOpen:
            return resource
        factories: list[Any] = [_PasswordFactory(_REALM), BearerCredentialFactory()]  # type: ignore[no-untyped-call]  # of Twisted's
        login = HTTPAuthSessionWrapper(Portal(_Realm(resource), [self]), factories)
        return _Entrance(self._proxied, resource, login)

    def _proxied(self, request: Request) -> User | None:
        return None if self._proxy is None else self._proxy.userOf(request)


def userOf(request: Request) -> User:
    """Return the user of a request that L{AccessControl.guard} has admitted."""
    user: User = getattr(request, _USER, _ANYBODY)
    return user


class _Entrance(Resource):
    """Resource that admits users whom a proxy names; others log in."""

    def __init__(
        self, proxied: Callable[[Request], User | None], resource: IResource, login: IResource
    ) -> None:
        super().__init__()  # type: ignore[no-untyped-call]  # of Twisted's
        self._proxied = proxied
        self._resource = resource
        self._login = login

    def getChildWithDefault(self, path: bytes, request: Request) -> Any:
        user = self._proxied(request)
        if user is None:
            return self._login.getChildWithDefault(path, request)
        return _Admitted(self._resource, user).getChildWithDefault(path, request)


class _Admitted(Resource):
    """The resource of an admitted user, whom it notes in requests."""

    def __init__(self, resource: IResource, user: User) -> None:
        super().__init__()  # type: ignore[no-untyped-call]  # of Twisted's
        self._resource = resource
        self._user = user

    def getChildWithDefault(self, path: bytes, request: Request) -> Any:
        setattr(request, _USER, self._user)
        return self._resource.getChildWithDefault(path, request)


@implementer(IRealm)
class _Realm:
    def __init__(self, resource: IResource) -> None:
        self._resource = resource

    def requestAvatar(self, avatarId: Any, mind: object, *interfaces: type[Interface]) -> Any:
        return IResource, _Admitted(self._resource, avatarId), lambda: None


def isCrossSite(request: Request, isForm: bool) -> bool:
    """
    Return whether a page of another site may have caused a request that changes something.

    Browsers add the name and password of a site to such requests, too. Current ones send C{Sec-Fetch-Site}
    over TLS and on loopback, and all send C{Origin} with POST. A program sends neither.

    @param isForm: whether forms of other sites could have sent the request: then one of the two is required.
    """
    site = request.getHeader(b"sec-fetch-site")
    if site is not None:
        return site != b"same-origin"
    origin = request.getHeader(b"origin")
    if origin is None:
        return isForm
    hosts = [request.getHeader(name) for name in (b"host", b"x-forwarded-host")]  # forms cannot set these
    try:
        place = urlsplit(origin.decode("ascii")).netloc.encode()
    except ValueError:
        return True
    return not place or place not in hosts


def isLocalName(host: bytes) -> bool:
    """
    True for a C{Host} that is an address or C{localhost}.

    Otherwise pages of other sites, whose name servers can return this host's address, would get access.
    """
    name = host.decode("latin-1").lower()
    name = name[1:].partition("]")[0] if name.startswith("[") else name.partition(":")[0]
    if name in ("", "localhost") or name.endswith(".localhost"):
        return True
    try:
        ip_address(name)
    except ValueError:
        return False
    return True


# Files.


def readAccess(
    tokens: str, users: str, proxy: ProxyRules | None = None, inThread: InThread = maybeDeferred
) -> AccessControl:
    """
    Read tokens and users from their files.

    @param tokens: path of a file with a token on each line; C{""} for none.
    @param users: path of a file with C{name:HASH:role} on each line; C{""} for none.
    @raise InvalidRequest: a file cannot be read, everybody can read it, or a line is invalid.
    """
    lines = _lines(tokens)
    found = [line for _number, line in lines]
    short = next((number for number, line in lines if len(line) < FEWEST_CHARACTERS), None)
    if short is not None:
        raise InvalidRequest(f"{tokens}, line {short}: a token has {FEWEST_CHARACTERS} characters or more")
    known: dict[bytes, Account] = {}
    for number, line in _lines(users):
        name, _colon, password = line.partition(b":")
        try:
            if not name:
                raise InvalidRequest("there is no name")
            known[name] = Account.fromText(password)
        except InvalidRequest as error:
            why = f"not of the form name:HASH:role: {error}"
            raise InvalidRequest(f"{users}, line {number}: {why}") from error
    for path, content in ((tokens, found), (users, known)):
        if path and not content:
            raise InvalidRequest(f"{path}: the file has no entries")
    return AccessControl(found, known, proxy=proxy, inThread=inThread)


def _lines(path: str) -> list[tuple[int, bytes]]:
    """Return the lines of a file that are neither empty nor comments, with their numbers."""
    if not path:
        return []
    try:
        with open(path, "rb") as file:
            if os.fstat(file.fileno()).st_mode & _OTHERS:
                raise InvalidRequest(f"{path}: everybody on this host can read it: chmod o= {path}")
            lines = file.read().removeprefix(BOM_UTF8).splitlines()
    except OSError as error:
        raise InvalidRequest(f"{path}: {error.strerror}") from error
    stripped = [(number, line.strip()) for number, line in enumerate(lines, 1)]
    return [(number, line) for number, line in stripped if line and not line.startswith(b"#")]
