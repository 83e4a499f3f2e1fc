"""
The rendezvous of a group's members: each reports its port, and gets the addresses of all.

Messages are lines of JSON, over TCP connections whose ends have proved their identity. They stay open, so
that a member learns that another one has ended even if it has no connection to it yet.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from operator import index
from typing import Any, Final

from twisted.internet.defer import Deferred, maybeDeferred, succeed
from twisted.internet.endpoints import TCP4ClientEndpoint, TCP4ServerEndpoint
from twisted.internet.error import ConnectError
from twisted.internet.interfaces import IAddress, IListeningPort, IWriteDescriptor
from twisted.internet.protocol import connectionDone, Factory
from twisted.logger import Logger
from twisted.protocols.basic import LineOnlyReceiver
from twisted.python.failure import Failure

from txrdma.btl.groups.errors import GroupFailed
from txrdma.btl.groups.terms import GroupTerms, makeKeys
from txrdma.error import Refused
from txrdma.kit.proofs import ProvedClientEndpoint, ProvedServerEndpoint
from txrdma.kit.strings import escaped

_log = Logger()

LONGEST_LINE: Final = 16384
"""Bytes of a line that a member or the rendezvous sends."""

LONGEST_TEXT: Final = 512
"""Characters of the text of a failure."""

_TIMEOUT: Final = 10.0
"""Seconds in which the TCP connection to the rendezvous must be established."""


class _Lines(LineOnlyReceiver):
    """Sends and receives JSON objects, one a line."""

    delimiter = b"\n"
    MAX_LENGTH = LONGEST_LINE

    def sendObject(self, value: dict[str, Any]) -> None:
        self.sendLine(json.dumps(value).encode())  # type: ignore[no-untyped-call]  # of Twisted's

    def lineReceived(self, line: bytes) -> None:
        try:
            self.objectReceived(json.loads(line))
        except (ValueError, TypeError, KeyError, AttributeError, RecursionError) as error:
            text = "Closing a connection of a rendezvous: invalid line: {error}"
            _log.warn(text, error=repr(error)[:LONGEST_TEXT])  # it may contain the whole line
            self.lineReceived = lambda line: None  # type: ignore[method-assign]  # further lines have arrived
            self._transport().abortConnection()

    def objectReceived(self, value: Any) -> None:
        """Process a JSON object; an error closes the connection."""

    def _transport(self) -> Any:
        return self.transport


def _checkedPort(port: Any) -> int:
    if type(port) is not int or not 0 < port < 65536:
        raise ValueError(f"{port!r} is not a port")
    return port


class _MemberLines(_Lines):
    """The connection of a member, at the rendezvous."""

    def __init__(self, rendezvous: Rendezvous, rank: int) -> None:
        self._rendezvous, self._rank = rendezvous, rank

    def connectionMade(self) -> None:
        self._rendezvous.connected(self._rank, self)

    def objectReceived(self, value: Any) -> None:
        if "leave" in value:
            self._rendezvous.left(self._rank)
            return
        if "failed" in value:
            self._rendezvous.ended(self._rank, escaped(str(value["failed"])))
            return
        if "because" in value:
            self._rendezvous.blamed(self._rank, index(value["because"]))
            return
        self._rendezvous.listens(self._rank, self._transport().getPeer().host, _checkedPort(value["port"]))

    def connectionLost(self, reason: Failure = connectionDone) -> None:
        self._rendezvous.ended(self._rank, "its process has ended")

    def read(self) -> None:
        """Process lines that the reactor has not read yet."""
        transport = self._transport()
        if transport.connected:
            transport.doRead()

    def lose(self) -> None:
        """Close the connection when everything is sent."""
        self._transport().loseConnection()


class Rendezvous(Factory):
    """
    Server that collects the ports of a group's members, and sends all addresses to each.

    @ivar failure: rank and text of the first member that could not join, or has ended without leaving the
        group; or None.
    """

    noisy = False

    def __init__(self, reactor: Any, size: int, host: str = "127.0.0.1") -> None:
        """
        @param host: the IPv4 address to listen at, by which members reach it.
        @raise InvalidRequest: the group has no member, or too many.
        """
        self.failure: tuple[int, str] | None = None
        self._reactor, self._size, self._host = reactor, size, host
        self._keys = makeKeys(size)
        self._lines: dict[int, _MemberLines] = {}
        self._addresses: dict[int, tuple[str, int]] = {}
        self._left: set[int] = set()
        self._causes: dict[int, int] = {}  # for each failed member, the one that it has reported as the cause
        self._proved: dict[IAddress | None, int] = {}
        self._port: Any = None

    def listen(self) -> Deferred[None]:
        """Begin to listen. The Deferred fires when members can connect."""
        stream = TCP4ServerEndpoint(self._reactor, 0, interface=self._host)
        endpoint = ProvedServerEndpoint(
            self._reactor, stream, self._size, self._keys[self._size], self._admit
        )
        return endpoint.listen(self).addCallback(self._listens)

    def _listens(self, port: IListeningPort) -> None:
        self._port = port

    def terms(self, rank: int) -> GroupTerms:
        """Return the terms of a member, for its process."""
        return GroupTerms(rank, self._size, self._host, self._port.getHost().port, self._keys[rank])

    def _admit(self, rank: int, address: IAddress | None) -> None:
        if rank in self._lines or rank in self._left:
            raise Refused(f"the member {rank} has connected before")
        self._proved[address] = rank

    def buildProtocol(self, addr: IAddress | None) -> _MemberLines:
        """Return the protocol of a member that has proved its rank."""
        return _MemberLines(self, self._proved.pop(addr))

    def connected(self, rank: int, lines: _MemberLines) -> None:
        self._lines[rank] = lines
        if self.failure is not None:
            self._sendFailure(lines)

    def listens(self, rank: int, host: str, port: int) -> None:
        """
        A member listens at an address; if all do, they get the addresses.

        @raise ValueError: it has reported an address before.
        """
        if rank in self._addresses:
            raise ValueError("another port")
        self._addresses[rank] = host, port
        if len(self._addresses) == self._size and self.failure is None:
            members = [self._addresses[each] for each in range(self._size)]
            for lines in self._lines.values():
                lines.sendObject({"members": members})

    def left(self, rank: int) -> None:
        """A member has left the group in order."""
        self._left.add(rank)

    def blamed(self, rank: int, cause: int) -> None:
        """Record which member has made the operations of another one fail, as that one reports."""
        self._causes.setdefault(rank, cause)

    def causeOf(self, rank: int) -> int:
        """Return the member that has caused the failure of this one, which may be itself."""
        for _ in self._causes:
            rank = self._causes.get(rank, rank)
        return rank

    def exited(self, rank: int, text: str) -> None:
        """Read the last lines of a member whose process has exited, and report its end to the others."""
        lines = self._lines.get(rank)
        if lines is not None:
            lines.read()
        self.ended(rank, text)

    def ended(self, rank: int, text: str) -> None:
        """A member has ended: unless it has left before, report this to the others."""
        if rank in self._left:
            return
        self._left.add(rank)
        if self.failure is None and self._port is not None:
            self.failure = rank, text[:LONGEST_TEXT]
            for other, lines in self._lines.items():
                if other not in self._left:
                    self._sendFailure(lines)

    def _sendFailure(self, lines: _MemberLines) -> None:
        assert self.failure is not None
        rank, text = self.failure
        lines.sendObject({"failed": rank, "text": text})

    def dissolve(self) -> Deferred[None]:
        """Stop listening, and let all members close their connections, because they are connected."""
        port, self._port = self._port, None
        for lines in self._lines.values():
            lines.sendObject({"dissolved": True})
        return succeed(None) if port is None else maybeDeferred(port.stopListening)

    def close(self) -> Deferred[None]:
        """Stop listening, and close all connections."""
        port, self._port = self._port, None
        for lines in self._lines.values():
            lines.lose()
        return succeed(None) if port is None else maybeDeferred(port.stopListening)


class RendezvousClient(_Lines):
    """
    The connection of a member to the rendezvous.

    @ivar members: fires with the addresses of all members, by rank; fails with L{GroupFailed}.
    """

    def __init__(self, size: int, failed: Callable[[int | None, str], None]) -> None:
        """
        @param failed: called with rank and text when another member has failed, or with None and a text if
            the rendezvous has ended.
        """
        self.members: Deferred[list[tuple[str, int]]] = Deferred()
        self._size, self._failed, self._isLeaving = size, failed, False

    def report(self, port: int) -> None:
        """Report the port at which this member listens."""
        self.sendObject({"port": port})

    def blame(self, rank: int) -> None:
        """
        Report the member that has made the group fail.

        The report is written at once, since this process may exit in this iteration of the reactor.
        """
        if not self._isLeaving:
            self.sendObject({"because": rank})
            writer = IWriteDescriptor(self._transport(), None)
            if writer is not None:
                writer.doWrite()

    def leave(self, reason: str | None = None) -> None:
        """
        Leave the group.

        @param reason: why this member cannot join, which is reported to the others; None: it leaves in order.
        """
        if not self._isLeaving:
            self._isLeaving = True
            self.sendObject({"leave": True} if reason is None else {"failed": reason[:LONGEST_TEXT]})
            self._transport().loseConnection()

    def objectReceived(self, value: Any) -> None:
        if "dissolved" in value:
            self.leave()
            return
        if "failed" in value:
            rank, text = index(value["failed"]), escaped(str(value["text"]))[:LONGEST_TEXT]
            self._fail(rank, f"rank {rank} has failed: {text}")
            return
        members = [(str(host), _checkedPort(port)) for host, port in value["members"]]
        if len(members) != self._size:
            raise ValueError(f"{len(members)} members")
        if not self.members.called:
            self.members.callback(members)

    def connectionLost(self, reason: Failure = connectionDone) -> None:
        if not self._isLeaving:
            self._fail(
                None, "the connection to the rendezvous was lost: the program that started it has ended"
            )

    def _fail(self, rank: int | None, text: str) -> None:
        if not self.members.called:
            if rank is not None:
                self.blame(rank)
            self.members.errback(GroupFailed(text, rank))
        elif not self._isLeaving:
            self._failed(rank, text)


async def connectToRendezvous(
    reactor: Any, terms: GroupTerms, failed: Callable[[int | None, str], None]
) -> RendezvousClient:
    """
    Connect to the rendezvous.

    @param failed: see L{RendezvousClient}.
    @raise Refused: it cannot be reached, or does not accept the keys of this member.
    """
    stream = TCP4ClientEndpoint(reactor, terms.host, terms.port, _TIMEOUT)
    endpoint = ProvedClientEndpoint(reactor, stream, terms.rank, terms.size, terms.keys[terms.size])
    factory = Factory.forProtocol(lambda: RendezvousClient(terms.size, failed))
    try:
        client: RendezvousClient = await endpoint.connect(factory)
    except ConnectError as error:
        raise Refused(f"no rendezvous at {terms.host} port {terms.port}: {error}") from error
    return client
