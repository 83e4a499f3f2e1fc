"""Errors that only the byte transfer layer raises."""

from __future__ import annotations

from txrdma.error import RDMAError


class Unreachable(RDMAError):
    """Datagrams of some size do not pass between two modules. Check interface and MTU in the message."""


class MessageFailed(RDMAError):
    """A message has failed. Unless the peer has refused it, it may have arrived."""


class PeerLost(RDMAError):
    """The peer has ended without closing the connection, or no longer answers."""


class CallFailed(RDMAError):
    """
    A call has failed at the peer: its function has raised an exception, or does not exist. The text is that
    of the exception, with characters that are not printable as escape sequences.
    """
