"""
Users of a web site: their roles, and their passwords as hashes by scrypt (RFC 7914).

A hash is a PHC string, as other programs write it: C{$scrypt$ln=14,r=8,p=1$SALT$HASH}, with its parameters,
so that later releases can choose higher ones.
"""

from __future__ import annotations

import hashlib
import os
import re
from base64 import b64decode, b64encode
from enum import Enum
from hmac import compare_digest, digest
from typing import Final

from txrdma.error import InvalidRequest
from txrdma.kit.values import frozen

_LOG_N: Final = 14
_BLOCK_SIZE: Final = 8
_SALT_OCTETS: Final = 16
_HASH_OCTETS: Final = 32

MOST_MEMORY: Final = 1 << 27
"""Maximum number of octets of memory that the parameters of a hash may require."""

_HASH: Final = re.compile(
    r"\$scrypt\$ln=([0-9]{1,2}),r=([0-9]{1,2}),p=([0-9]{1,2})\$([A-Za-z0-9+/]{2,86})\$([A-Za-z0-9+/]{43,86})"
)


class UserRole(Enum):
    """What a user may do: an operator also acknowledges and comments findings."""

    VIEWER = "viewer"
    OPERATOR = "operator"


@frozen
class User:
    """The user of a request; C{name} is C{""} if everybody may read."""

    name: str
    role: UserRole = UserRole.VIEWER

    @property
    def isOperator(self) -> bool:
        return self.role is UserRole.OPERATOR


@frozen
class PasswordHash:
    """Hash of a password, with the parameters of scrypt: the logarithm of its cost to base 2 is C{logN}."""

    logN: int
    blockSize: int
    parallelism: int
    salt: bytes
    hashed: bytes

    @classmethod
    def of(cls, password: bytes, logN: int = _LOG_N) -> PasswordHash:
        """Return a hash of a password with a new salt. Takes some 50 milliseconds."""
        empty = cls(logN, _BLOCK_SIZE, 1, os.urandom(_SALT_OCTETS), bytes(_HASH_OCTETS))
        return cls(logN, _BLOCK_SIZE, 1, empty.salt, empty._hash(password))

    @classmethod
    def fromText(cls, text: str) -> PasswordHash:
        """
        Parse a PHC string.

        @raise InvalidRequest: it is none of scrypt, or its parameters need too much memory.
        """
        match = _HASH.fullmatch(text)
        if match is None:
            raise InvalidRequest("not a hash like $scrypt$ln=14,r=8,p=1$SALT$HASH")
        logN, blockSize, parallelism = map(int, match.groups()[:3])
        if not (logN and blockSize and parallelism) or blockSize * (128 << logN) > MOST_MEMORY:
            raise InvalidRequest("the parameters of the hash are too large, or 0")
        try:
            salt, hashed = (b64decode(part + "=" * (-len(part) % 4)) for part in match.groups()[3:])
        except ValueError:
            raise InvalidRequest("salt or hash is not Base64") from None
        return cls(logN, blockSize, parallelism, salt, hashed)

    def unknown(self) -> PasswordHash:
        """Return the hash of a password that nobody knows; a comparison with it takes as long."""
        salt, hashed = os.urandom(len(self.salt)), os.urandom(len(self.hashed))
        return PasswordHash(self.logN, self.blockSize, self.parallelism, salt, hashed)

    def __str__(self) -> str:
        salt, hashed = (b64encode(part).decode().rstrip("=") for part in (self.salt, self.hashed))
        return f"$scrypt$ln={self.logN},r={self.blockSize},p={self.parallelism}${salt}${hashed}"

    def _hash(self, password: bytes) -> bytes:
        return hashlib.scrypt(
            password,
            salt=self.salt,
            n=1 << self.logN,
            r=self.blockSize,
            p=self.parallelism,
            maxmem=2 * MOST_MEMORY,
            dklen=len(self.hashed),
        )

    def matches(self, password: bytes) -> bool:
        """Return whether this is the hash of a password. Takes some 50 milliseconds."""
        return compare_digest(self._hash(password), self.hashed)


class Account:
    """
    A user who logs in by a password.

    Browsers send the password with each request. So after a slow comparison with the hash, a fast one with a
    digest of the right password is enough; its key is known to this process only.

    @ivar role: role of the user.
    @ivar hash: hash of the password; None if the password itself is stored. With a hash, L{matches} takes
        some 50 milliseconds, and may be called in a thread.
    """

    def __init__(self, password: bytes | PasswordHash, role: UserRole = UserRole.VIEWER) -> None:
        """@param password: hash of the password, or the password itself."""
        self.role = role
        self.hash = password if isinstance(password, PasswordHash) else None
        self._key = os.urandom(_HASH_OCTETS)
        self._digest = b"" if isinstance(password, PasswordHash) else self._digestOf(password)

    def _digestOf(self, password: bytes) -> bytes:
        return digest(self._key, password, "sha256")

    def isKnown(self, password: bytes) -> bool:
        """Return whether this is the right password, as far as that is known without L{matches}."""
        return compare_digest(self._digestOf(password), self._digest)

    def matches(self, password: bytes) -> bool:
        """Return whether this is the right password."""
        if self.hash is None or not self.hash.matches(password):
            return self.isKnown(password)
        self._digest = self._digestOf(password)
        return True

    @classmethod
    def fromText(cls, text: bytes) -> Account:
        """
        Parse the part of a line of a file of users after the name: a hash, and perhaps a role.

        @raise InvalidRequest: it is something else.
        """
        first, colon, role = text.decode("utf-8", "replace").partition(":")
        hashed = PasswordHash.fromText(first)  # before the role, which may be part of a password
        try:
            return cls(hashed, UserRole(role if colon else UserRole.VIEWER))
        except ValueError:
            raise InvalidRequest(f"the role is viewer or operator, not {role!r}") from None
