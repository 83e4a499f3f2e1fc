"""
The client's side of the C{local} carrier across network namespaces: finds the listener of an address.

L{txrdma.smc.signalling.neighbours} describes the protocol.
"""

from __future__ import annotations

import socket
from collections.abc import Callable
from contextlib import ExitStack, suppress
from typing import Final
from weakref import WeakKeyDictionary

from txrdma.kit.delayedcalls import Timer
from txrdma.smc.signalling.interfaces import IDialing
from txrdma.smc.signalling.localclient import (
    AnnouncementChannel,
    ANSWER_SECONDS,
    GIVEN_UP_SECONDS,
    knownChannel,
    LONGEST_WAIT,
    openChannel,
)
from txrdma.smc.signalling.localsignal import LocalClientSignal
from txrdma.smc.signalling.neighbours import listenersAt, ProvingSocket
from txrdma.smc.signalling.owners import sourceFor, TCPAddress
from txrdma.smc.signalling.silence import logUnresponsivePeer
from txrdma.unix.lines import Lines
from txrdma.unix.socketdirectory import SocketDirectory
from txrdma.unix.sockets import Reactor

_RETRY_SECONDS: Final = 0.1
"""Seconds after which a datagram that may be lost is retransmitted."""

_MOST_QUERIED: Final = 64
"""Largest number of listeners at one port that are queried at the same time."""

_ABSENT_SECONDS: Final = 10.0
"""Seconds for which an address has no listener, while the listeners at its port are unchanged."""

Found = Callable[["AnnouncementChannel | None"], None]


class _Candidate:
    """A listener at the target's port, which may be that of the target's address."""

    def __init__(self, search: _Search, connection: socket.socket) -> None:
        self._search = search
        self._proof: ProvingSocket | None = None
        self._nonce = b""  # of the listener
        self._answer = b""  # its second nonce, by UDP
        # The source address and the second nonce that the listener has reported.
        self._proven: tuple[str, bytes] | None = None
        self.lines = Lines(search.reactor, connection, self._linesReceived, self._ended)
        self.lines.send(b"seeking " + search.target.host.encode("ascii"))

    def _linesReceived(self, lines: list[bytes]) -> None:
        """Process C{prove <port> <nonce>} and C{proven <host> <nonce>}."""
        for line in lines:
            try:
                kind, first, nonce = line.split(b" ")
                if kind == b"prove" and self._proof is None:
                    self._prove(int(first), nonce)
                elif kind == b"proven" and self._proof is not None:
                    self._proven = TCPAddress.of(first.decode("ascii"), 0).host, nonce
                else:
                    raise ValueError("unexpected")
            except (ValueError, OverflowError, OSError):
                self.lines.close()
            if not self.lines.isOpen:
                return
        self._check()

    def _prove(self, port: int, nonce: bytes) -> None:
        """Send the nonce to the target address; raises OSError if it is unreachable."""
        target = self._search.target
        family = socket.AF_INET6 if target.isIPv6 else socket.AF_INET
        kind = socket.SOCK_DGRAM | socket.SOCK_NONBLOCK | socket.SOCK_CLOEXEC
        with ExitStack() as undo:
            datagrams = undo.enter_context(socket.socket(family, kind))
            datagrams.connect((target.host, port))
            self._proof = ProvingSocket(self._search.reactor, datagrams, self._challengeReceived)
            undo.pop_all()
        self._nonce = nonce
        self.sendAgain()

    def sendAgain(self) -> None:
        """Send the nonce again, since it or the answer may have been lost."""
        if self._proof is not None and self.lines.isOpen:
            self._proof.send(self._nonce)

    def _challengeReceived(self, data: bytes, sender: tuple[object, ...]) -> None:
        if data:
            self._answer = data
            self._check()
        else:
            self.lines.close()  # the address leads to another host or namespace

    def _check(self) -> None:
        proof = self._proof
        if proof is not None and self._answer and self._proven == (proof.address.host, self._answer):
            self._search.proven(self, TCPAddress(proof.address.host, 0))

    def release(self) -> socket.socket:
        """Release the socket to the listener, for a channel; raises ValueError after unexpected lines."""
        connection = self.lines.release()
        self._endProof()
        return connection

    def _endProof(self) -> None:
        if self._proof is not None:
            self._proof.close()

    def _ended(self) -> None:
        self._endProof()
        self._search.ended(self)


class _Search:
    """A search for the listener of an address, for any number of connections."""

    def __init__(
        self, reactor: Reactor, directory: SocketDirectory, target: TCPAddress, names: frozenset[str]
    ) -> None:
        self.reactor = reactor
        self.target = target
        self.waiting: list[Found] = []
        self._directory = directory
        self._names = names
        self._since = reactor.seconds()
        self._timer = Timer(reactor)
        self._dueAt = 0.0
        self._candidates: list[_Candidate] = []
        self.isOver = False

    def begin(self) -> bool:
        """Query the listeners; return whether there are any."""
        for name in sorted(self._names)[:_MOST_QUERIED]:
            with suppress(OSError):  # no descriptor is left
                connection = self._directory.connect(socket.SOCK_STREAM, name)
                if connection is not None:
                    self._candidates.append(_Candidate(self, connection))
        if self._candidates:
            self._startTimer(_RETRY_SECONDS)
        return bool(self._candidates)

    def _startTimer(self, seconds: float) -> None:
        self._timer.start(seconds, self._retry)
        self._dueAt = self._timer.dueAt

    def _retry(self) -> None:
        """
        Send the nonces again, or give up.

        If this call is late, answers may not have been read yet, or the listener was paused as well.
        """
        now = self.reactor.seconds()
        isPunctual = now < self._dueAt + ANSWER_SECONDS / 20
        limit = ANSWER_SECONDS if isPunctual else max(ANSWER_SECONDS, LONGEST_WAIT)
        if now - self._since < limit:
            self._startTimer(_RETRY_SECONDS if isPunctual else ANSWER_SECONDS / 4)
            for candidate in list(self._candidates):
                candidate.sendAgain()
            return
        if isPunctual:
            logUnresponsivePeer(self.reactor, self.target, now)
        self._finish(None)

    def proven(self, candidate: _Candidate, source: TCPAddress) -> None:
        """End the search: this candidate is the listener."""
        try:
            connection = candidate.release()
        except ValueError:
            candidate.lines.close()
            return
        self._candidates.remove(candidate)
        self._finish(openChannel(self.reactor, self.target, source, connection, self._directory.path))

    def ended(self, candidate: _Candidate) -> None:
        """Remove a candidate that is not the listener."""
        if candidate in self._candidates:
            self._candidates.remove(candidate)
        if not self._candidates and not self.isOver:
            _searchesOn(self.reactor).absent[self._directory.path, self.target] = (
                self._names,
                self.reactor.seconds(),
            )
            self._finish(None)

    def _finish(self, channel: AnnouncementChannel | None) -> None:
        self.isOver = True
        self._timer.stop()
        _searchesOn(self.reactor).current.pop((self._directory.path, self.target), None)
        for candidate in list(self._candidates):
            candidate.lines.close()
        waiting, self.waiting = self.waiting, []
        for found in waiting:
            found(channel)

    def abandon(self) -> None:
        """
        End the search, because no connection waits for it any longer.

        Clients with a shorter timeout than L{ANSWER_SECONDS} would never connect while a process that has
        listened at this port, at whichever address, does not answer.
        """
        if not self.isOver:
            now = self.reactor.seconds()
            if self._since + GIVEN_UP_SECONDS <= now:
                logUnresponsivePeer(self.reactor, self.target, now)
            self._finish(None)


_Key = tuple[str, TCPAddress]


class _Searches:
    """
    The searches of a reactor.

    @ivar current: searches in progress.
    @ivar absent: addresses without a listener, with the listeners that denied them, and the time.
    """

    def __init__(self) -> None:
        self.current: dict[_Key, _Search] = {}
        self.absent: dict[_Key, tuple[frozenset[str], float]] = {}

    def isAbsent(self, key: _Key, names: frozenset[str], now: float) -> bool:
        """Return whether these listeners have recently denied the address."""
        if len(self.absent) > 1024:
            self.absent.clear()
        before, since = self.absent.get(key, (frozenset(), now))
        return before == names and now - since < _ABSENT_SECONDS


_searches: WeakKeyDictionary[object, _Searches] = WeakKeyDictionary()


def _searchesOn(reactor: object) -> _Searches:
    return _searches.setdefault(reactor, _Searches())


def seek(reactor: Reactor, directory: SocketDirectory, target: TCPAddress, found: Found) -> _Search | None:
    """
    Search for the listener at an address of another network namespace; return None without candidates.

    @param found: called later, with the channel or None.
    """
    key, searches = (directory.path, target), _searchesOn(reactor)
    search = searches.current.get(key)
    if search is None:
        names = frozenset(directory.names(listenersAt(target.port)))
        if not names or target.zone or searches.isAbsent(key, names, reactor.seconds()):
            return None
        if sourceFor(target) is not None:
            return None
        search = _Search(reactor, directory, target, names)
        if not search.begin():
            return None
        searches.current[key] = search
    search.waiting.append(found)
    return search


class NeighbourApproach(LocalClientSignal):
    """A connection that is announced to a listener on this host, in any network namespace."""

    def __init__(self, reactor: Reactor, takesTCP: bool, directory: SocketDirectory) -> None:
        super().__init__(reactor, takesTCP)
        self._directory = directory
        self._search: _Search | None = None
        self._found: Found | None = None

    def _seek(self, client: IDialing, proceed: Callable[[], None]) -> bool:
        """Announce the connection by a known channel, or search for the listener; False if there is none."""
        target = client.target
        channel = knownChannel(self._reactor, target, self._directory.path)
        if channel is not None:
            return self._announceBy(channel, client, proceed)

        def found(channel: AnnouncementChannel | None) -> None:
            self._search = self._found = None
            if channel is None or not self._announceBy(channel, client, proceed):
                proceed()

        self._search = seek(self._reactor, self._directory, target, found)
        if self._search is None:
            return False
        self._found = found
        self._silent.query(target, self._reactor.seconds())
        return True

    def failed(self, error: object) -> bool:
        self._forgetSearch()
        return super().failed(error)

    def close(self) -> None:
        self._forgetSearch()
        super().close()

    def _forgetSearch(self) -> None:
        search, self._search = self._search, None
        if search is not None and self._found in search.waiting:
            search.waiting.remove(self._found)
            if not search.waiting:
                search.abandon()
        self._found = None
