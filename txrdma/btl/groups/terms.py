"""
Parameters of a member of a group: its rank, the rendezvous, and keys that prove its rank.

Each pair of members shares a key that no other member has, so none can claim another rank. C{txrdma btl-run}
passes these terms in the environment of each process.
"""

from __future__ import annotations

from base64 import b64decode, b64encode
from collections.abc import Mapping
from dataclasses import dataclass, field
from secrets import token_bytes
from typing import Final

from txrdma.error import InvalidRequest

MOST_MEMBERS: Final = 128
"""Largest size of a group: each member has a connection to each other one."""

KEY_LENGTH: Final = 16
"""Length of a key in bytes."""

PREFIX: Final = "TXRDMA_GROUP_"
"""Prefix of environment variables: C{RANK}, C{SIZE}, C{RENDEZVOUS} and C{KEYS}."""


@dataclass(frozen=True)
class GroupTerms:
    """
    Parameters of a member of a group, which it needs to join.

    @ivar rank: from 0 to C{size} - 1.
    @ivar host: IPv4 address of the L{Rendezvous<txrdma.btl.groups.rendezvous.Rendezvous>}.
    @ivar port: its TCP port.
    @ivar keys: the keys that this member shares with the others, by rank, and with the rendezvous.
    """

    rank: int
    size: int
    host: str
    port: int
    keys: tuple[bytes, ...] = field(repr=False)

    def __post_init__(self) -> None:
        if not 0 <= self.rank < self.size <= MOST_MEMBERS:
            raise InvalidRequest(
                f"rank {self.rank} of a group of {self.size}: at most {MOST_MEMBERS} members"
            )
        if len(self.keys) != self.size + 1 or {len(each) for each in self.keys} != {KEY_LENGTH}:
            raise InvalidRequest(f"a group of {self.size} has {self.size + 1} keys of {KEY_LENGTH} bytes")

    def environment(self) -> dict[str, str]:
        """Return the environment variables for the process of this member."""
        values = {
            "RANK": self.rank,
            "SIZE": self.size,
            "RENDEZVOUS": f"{self.host}:{self.port}",
            "KEYS": b64encode(b"".join(self.keys)).decode(),
        }
        return {PREFIX + name: str(value) for name, value in values.items()}

    @classmethod
    def fromEnvironment(cls, environment: Mapping[str, str]) -> GroupTerms | None:
        """
        Return the terms in an environment, or None if there are none.

        @raise InvalidRequest: they are incomplete or invalid.
        """
        if PREFIX + "RANK" not in environment:
            return None
        try:
            rank, size, where, keys = (
                environment[PREFIX + name] for name in ("RANK", "SIZE", "RENDEZVOUS", "KEYS")
            )
            host, _, port = where.rpartition(":")
            whole = b64decode(keys, validate=True)
            cut = tuple(whole[begin : begin + KEY_LENGTH] for begin in range(0, len(whole), KEY_LENGTH))
            return cls(int(rank), int(size), host, int(port), cut)
        except KeyError as error:
            raise InvalidRequest(f"the environment variable {error.args[0]} is missing") from error
        except ValueError as error:
            raise InvalidRequest(f"invalid environment variables {PREFIX}*: {error}") from error


def makeKeys(size: int) -> list[tuple[bytes, ...]]:
    """
    Make the keys of a group.

    @return: the C{keys} of each member, by rank, and then those of the rendezvous.
    @raise InvalidRequest: the group has no member, or more than L{MOST_MEMBERS}.
    """
    if not 0 < size <= MOST_MEMBERS:
        raise InvalidRequest(f"a group has 1 to {MOST_MEMBERS} members, not {size}")
    pairs = {
        (first, second): token_bytes(KEY_LENGTH)
        for first in range(size + 1)
        for second in range(first, size + 1)
    }
    return [
        tuple(pairs[min(here, there), max(here, there)] for there in range(size + 1))
        for here in range(size + 1)
    ]
