"""
Access to a web site: tokens and passwords from files, by C{twisted.cred}.

Programs send a token (RFC 6750); browsers ask for a name and a password (RFC 7617), and accept a token as the
password, with any name.
"""

from __future__ import annotations

import os
import time
from codecs import BOM_UTF8
from collections.abc import Callable
from hmac import compare_digest
from ipaddress import ip_address, IPv6Address
from typing import Any, Final

from zope.interface import Attribute, implementer, Interface

from twisted.cred.checkers import ICredentialsChecker
from twisted.cred.credentials import ICredentials, IUsernamePassword
from twisted.cred.error import LoginFailed, UnauthorizedLogin
from twisted.cred.portal import IRealm, Portal
from twisted.internet.defer import Deferred, fail, succeed
from twisted.logger import Logger
from twisted.web.guard import BasicCredentialFactory, HTTPAuthSessionWrapper
from twisted.web.iweb import ICredentialFactory
from twisted.web.resource import IResource
from twisted.web.server import Request

from txrdma.error import InvalidRequest

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

MOST_GUESSERS: Final = 1000
"""Maximum number of stored names and addresses with wrong passwords; the oldest are dropped."""

MOST_LOGGED: Final = 100
"""Maximum number of log lines about wrong passwords within L{GUESS_SECONDS}; further ones are dropped."""

_LONGEST_NAME: Final = 64
_log = Logger()


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

    def __init__(self, seconds: Callable[[], float] = time.monotonic) -> None:
        self.seconds = seconds
        self._known: dict[tuple[str, bytes], tuple[float, int]] = {}
        self._loggedSince, self._logged = 0.0, 0

    def areTooMany(self, address: str, name: bytes) -> bool:
        """True while no password for this name is accepted from this address."""
        key = clientNetworkOf(address), name
        began, times = self._known.get(key, (0.0, 0))
        if times and self.seconds() - began >= GUESS_SECONDS:
            del self._known[key]
            return False
        return times >= MOST_GUESSES

    def wrong(self, address: str, name: bytes) -> None:
        """Note a wrong password; the first one is logged, and the last one before a pause."""
        key = clientNetworkOf(address), name
        began, times = self._known.get(key, (self.seconds(), 0))
        self._known[key] = (began, times + 1)
        if len(self._known) > MOST_GUESSERS:
            del self._known[next(iter(self._known))]
        if times == 0:
            self._log("wrong password for {name!r} from {address}", address, name)
        if times + 1 == MOST_GUESSES:
            self._log("no more passwords for {name!r} are taken from {address} for a minute", address, name)

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
class BearerToken:
    """Token of a request."""

    def __init__(self, token: bytes) -> None:
        self.token = token


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


_passwords: Final[Callable[[bytes], Any]] = _PasswordFactory


@implementer(ICredentialsChecker)
class AccessControl:
    """
    Checker of tokens and passwords.

    @ivar isOpen: whether no credentials are required: there are neither tokens nor users.
    """

    credentialInterfaces: tuple[type[Interface], ...] = (IUsernamePassword, IBearerToken)

    def __init__(
        self,
        tokens: list[bytes] | None = None,
        users: dict[bytes, bytes] | None = None,
        guesses: Guesses | None = None,
    ) -> None:
        """
        @param users: passwords by the names of users.
        @param guesses: remembers wrong passwords.
        """
        self._guesses = Guesses() if guesses is None else guesses
        self._inventions = Guesses(self._guesses.seconds)  # of names without a user: they displace none
        self._tokens = tokens or []
        self._users = users or {}
        self.isOpen = not self._tokens and not self._users

    def requestAvatarId(self, credentials: Any) -> Deferred[bytes | tuple[()]]:
        """Return the owner of these credentials; fails with L{UnauthorizedLogin} if there is none."""
        isToken = IBearerToken.providedBy(credentials)
        if isToken:
            name, secret, address = b"", credentials.token, ""
        else:
            name, secret = credentials.username, credentials.password
            address = getattr(credentials, "address", "")
        guesses = self._guesses if name in self._users else self._inventions
        if not isToken and guesses.areTooMany(address, name):
            return fail(UnauthorizedLogin("there were too many wrong passwords"))
        known = [*self._tokens, self._users[name]] if name in self._users else self._tokens
        # All of them are compared, so that the duration reveals nothing.
        if not sum(compare_digest(secret, each) for each in known):
            if not isToken:
                guesses.wrong(address, name)
            return fail(UnauthorizedLogin("there is no such token or password"))
        if not isToken:
            guesses.right(address, name)
        return succeed(name or b"token")

    def change(self, other: AccessControl) -> bool:
        """
        Use the users and tokens of another instance.

        @return: False if one of the two requires no credentials: then nothing has changed.
        """
        if self.isOpen or other.isOpen:
            return self.isOpen and other.isOpen
        self._tokens, self._users = other._tokens, other._users
        return True

    def guard(self, resource: IResource) -> IResource:
        """Resource that requires credentials, if access is restricted."""
        if self.isOpen:
            return resource
        factories: list[Any] = [_passwords(_REALM), BearerCredentialFactory()]
        return HTTPAuthSessionWrapper(Portal(_Realm(resource), [self]), factories)


@implementer(IRealm)
class _Realm:
    def __init__(self, resource: IResource) -> None:
        self._resource = resource

    def requestAvatar(self, avatarId: object, mind: object, *interfaces: type[Interface]) -> Any:
        return IResource, self._resource, lambda: None


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


def readAccess(tokens: str, users: str) -> AccessControl:
    """
    Read tokens and users from their files.

    @param tokens: path of a file with a token on each line; C{""} for none.
    @param users: path of a file with C{name:password} on each line; C{""} for none.
    @raise InvalidRequest: a file cannot be read, everybody can read it, or a line is invalid.
    """
    found = [line for _number, line in _lines(tokens)]
    short = next((number for number, line in _lines(tokens) if len(line) < FEWEST_CHARACTERS), None)
    if short is not None:
        raise InvalidRequest(f"{tokens}, line {short}: a token has {FEWEST_CHARACTERS} characters or more")
    known: dict[bytes, bytes] = {}
    for number, line in _lines(users):
        name, colon, password = line.partition(b":")
        if not (name and colon and password):
            raise InvalidRequest(f"{users}, line {number}: not of the form name:password")
        known[name] = password
    for path, content in ((tokens, found), (users, known)):
        if path and not content:
            raise InvalidRequest(f"{path}: the file has no entries")
    return AccessControl(found, known)


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
