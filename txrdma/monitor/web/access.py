"""
Access to the monitor: tokens and passwords from files, by C{twisted.cred}.

Programs send a token (RFC 6750); browsers ask for a name and a password (RFC 7617), and take a token for one,
with any name.
"""

from __future__ import annotations

import os
from hmac import compare_digest
from ipaddress import ip_address
from typing import Any, Final

from zope.interface import Attribute, implementer, Interface

from twisted.cred.checkers import ICredentialsChecker
from twisted.cred.credentials import ICredentials, IUsernamePassword
from twisted.cred.error import LoginFailed, UnauthorizedLogin
from twisted.cred.portal import IRealm, Portal
from twisted.internet.defer import Deferred, fail, succeed
from twisted.web.guard import BasicCredentialFactory, HTTPAuthSessionWrapper
from twisted.web.iweb import ICredentialFactory
from twisted.web.resource import IResource
from twisted.web.server import Request

from txrdma.error import InvalidRequest

_REALM: Final = b"fabric monitor"
FEWEST_CHARACTERS: Final = 16
"""Fewest characters of a token: these cannot be guessed."""

_OTHERS: Final = 0o007


class IBearerToken(ICredentials):
    """Token that a program sends."""

    token: bytes = Attribute("Token as it was sent.")


@implementer(IBearerToken)
class BearerToken:
    """Token that came with a request."""

    def __init__(self, token: bytes) -> None:
        self.token = token


@implementer(ICredentialFactory)
class BearerCredentialFactory:
    """Factory of credentials from C{Authorization: Bearer}."""

    scheme = b"bearer"

    def getChallenge(self, request: Request) -> dict[str, Any]:
        """Challenge for a request without a token."""
        return {"realm": _REALM}

    def decode(self, response: bytes, request: Request) -> BearerToken:
        """
        Credentials of a request with a token.

        @raise LoginFailed: there is no token.
        """
        if not response:
            raise LoginFailed("there is no token")
        return BearerToken(response)


@implementer(ICredentialsChecker)
class Access:
    """
    Checker of tokens and passwords.

    @ivar isOpen: nothing is asked of anybody: there are neither tokens nor users.
    """

    credentialInterfaces: tuple[type[Interface], ...] = (IUsernamePassword, IBearerToken)

    def __init__(self, tokens: list[bytes] | None = None, users: dict[bytes, bytes] | None = None) -> None:
        """@param users: passwords by the names of users."""
        self._tokens = tokens or []
        self._users = users or {}
        self.isOpen = not self._tokens and not self._users

    def requestAvatarId(self, credentials: Any) -> Deferred[bytes | tuple[()]]:
        """Fires with the name of who has these credentials; fails with L{UnauthorizedLogin} if nobody has."""
        if IBearerToken.providedBy(credentials):
            name, secret = b"", credentials.token
        else:
            name, secret = credentials.username, credentials.password
        known = [*self._tokens, self._users[name]] if name in self._users else self._tokens
        if not sum(compare_digest(secret, each) for each in known):  # all of them: the time tells nothing
            return fail(UnauthorizedLogin("there is no such token or password"))
        return succeed(name or b"token")

    def change(self, other: Access) -> bool:
        """
        Let those in that another one lets in, and nobody else.

        @return: False if one of the two lets in everybody: then nothing has changed.
        """
        if self.isOpen or other.isOpen:
            return self.isOpen and other.isOpen
        self._tokens, self._users = other._tokens, other._users
        return True

    def guard(self, resource: IResource) -> IResource:
        """Resource that asks who comes, where somebody is to be asked."""
        if self.isOpen:
            return resource
        factories = [BasicCredentialFactory(_REALM), BearerCredentialFactory()]
        return HTTPAuthSessionWrapper(Portal(_Realm(resource), [self]), factories)


@implementer(IRealm)
class _Realm:
    def __init__(self, resource: IResource) -> None:
        self._resource = resource

    def requestAvatar(self, avatarId: object, mind: object, *interfaces: type[Interface]) -> Any:
        """Resource that everybody has who is known."""
        return IResource, self._resource, lambda: None


def isLocalName(host: bytes) -> bool:
    """
    True for a C{Host} that is an address or C{localhost}.

    Pages of others can be given the address of this host by their name servers, and would be let in.
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


def readAccess(tokens: str, users: str) -> Access:
    """
    Read tokens and users from their files.

    @param tokens: path of a file with a token on each line; C{""} for none.
    @param users: path of a file with C{name:password} on each line; C{""} for none.
    @raise InvalidRequest: a file cannot be read, everybody can read it, or a line has no meaning.
    """
    found = [line for _number, line in _lines(tokens)]
    short = next((number for number, line in _lines(tokens) if len(line) < FEWEST_CHARACTERS), None)
    if short is not None:
        raise InvalidRequest(f"{tokens}, line {short}: a token has {FEWEST_CHARACTERS} characters or more")
    known: dict[bytes, bytes] = {}
    for number, line in _lines(users):
        name, colon, password = line.partition(b":")
        if not (name and colon and password):
            raise InvalidRequest(f"{users}, line {number}: it is no name:password")
        known[name] = password
    for path, content in ((tokens, found), (users, known)):
        if path and not content:
            raise InvalidRequest(f"{path}: there is nothing in it")
    return Access(found, known)


def _lines(path: str) -> list[tuple[int, bytes]]:
    """Lines of a file that are neither empty nor comments, with their numbers."""
    if not path:
        return []
    try:
        with open(path, "rb") as file:
            if os.fstat(file.fileno()).st_mode & _OTHERS:
                raise InvalidRequest(f"{path}: everybody on this host can read it: chmod o= {path}")
            lines = file.read().splitlines()
    except OSError as error:
        raise InvalidRequest(f"{path}: {error.strerror}") from error
    stripped = [(number, line.strip()) for number, line in enumerate(lines, 1)]
    return [(number, line) for number, line in stripped if line and not line.startswith(b"#")]
