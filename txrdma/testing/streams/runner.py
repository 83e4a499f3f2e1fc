"""
Runs conversations in processes that a forkserver forks, and records what they report.

It uses no reactor: a run is one blocking call, and several threads may have one each.
"""

from __future__ import annotations

import atexit
import os
import selectors
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from contextlib import ExitStack, suppress
from dataclasses import dataclass, field
from ipaddress import ip_address
from pathlib import Path
from secrets import randbelow
from typing import Any, Final

import txrdma
from txrdma.testing.streams import transcript
from txrdma.testing.streams.conversation import Conversation, Via
from txrdma.testing.streams.orders import CLIENT, Order, PROXY, SERVER
from txrdma.testing.streams.provider import Provider, TCP
from txrdma.testing.streams.transcript import Entry, joined, PROCESS, View, viewOf

PATIENCE: Final = 20.0
"""Seconds that a conversation may take in addition to the duration of its scripts."""

PEER_ENDED: Final = "peer-ended"
_STARTS: Final = 4
"""Number of conversations that may start concurrently, since starting needs the most processor time."""

_FORKSERVER: Final = "txrdma.testing.streams.forkserver"
_START_SECONDS: Final = 10.0
_SETTLING: Final = 0.3
_STEP: Final = 0.1


@dataclass(frozen=True, slots=True)
class ConversationRun:
    """
    A recorded run of one conversation over one route on one reactor.

    @ivar entries: transcripts of the processes, by C{"client"}, C{"server"} and C{"proxy"}.
    @ivar logs: standard output and error of each process.
    @ivar seconds: duration of the run.
    """

    conversation: Conversation
    provider: Provider
    reactor: str
    entries: dict[str, list[Entry]]
    logs: dict[str, str]
    seconds: float

    @property
    def views(self) -> dict[str, View]:
        """The views of all processes, without random details."""
        return {who: viewOf(entries) for who, entries in self.entries.items()}

    @property
    def servedBy(self) -> dict[str, Provider]:
        """The provider that must be used at each end."""
        match self.conversation.via:
            case Via.NEAR_PROXY:
                return {CLIENT: TCP, SERVER: self.provider}
            case Via.FAR_PROXY:
                return {CLIENT: self.provider, SERVER: TCP}
            case _:
                return {CLIENT: self.provider, SERVER: self.provider}


class Closed(Exception):
    """Raised when the runner is closed, and a conversation cannot be finished."""


class ForkserverEnded(Exception):
    """Raised when the forkserver has ended by itself; its standard error has the reason."""


class ConversationRunner:
    """
    A forkserver, and a folder for sockets and logs, for any number of conversations.

    @ivar path: the folder.
    """

    def __init__(self) -> None:
        self.path = tempfile.mkdtemp(prefix="txrdma-conversations-")
        self._folder = Path(self.path)
        self._forkserver: subprocess.Popen[bytes] | None = None
        self._lock = threading.Lock()
        self._plays = 0
        self.isClosed = False
        self.starts = threading.BoundedSemaphore(_STARTS)
        atexit.register(self.close)

    def close(self) -> None:
        """End all processes, and remove the folder; further calls do nothing."""
        atexit.unregister(self.close)
        self.isClosed = True
        forkserver, self._forkserver = self._forkserver, None
        if forkserver is not None:
            assert forkserver.stdin is not None
            with suppress(BrokenPipeError):  # it has ended with an order unread
                forkserver.stdin.close()
            forkserver.wait()
        shutil.rmtree(self._folder, ignore_errors=True)

    def order(self, order: Order) -> None:
        """Send an order to the forkserver, which forks a process for it; start it if necessary."""
        with self._lock:
            if self.isClosed:
                raise Closed
            if self._forkserver is None:
                self._forkserver = subprocess.Popen(
                    [sys.executable, "-m", _FORKSERVER, self.path],
                    stdin=subprocess.PIPE,
                    cwd=Path(txrdma.__file__).parent.parent,
                )
            stdin: Any = self._forkserver.stdin
            with suppress(BrokenPipeError):  # check() raises
                stdin.write(order.encode())
                stdin.flush()

    def check(self) -> None:
        """
        Check that conversations can be continued.

        @raise Closed: the runner was closed.
        @raise ForkserverEnded: there are no processes any more.
        """
        if self.isClosed:
            raise Closed
        forkserver = self._forkserver
        if forkserver is not None and forkserver.poll() is not None:
            raise ForkserverEnded(f"the forkserver has ended with status {forkserver.returncode}")

    def folder(self) -> Path:
        with self._lock:
            self._plays += 1
            folder = self._folder / str(self._plays)
        folder.mkdir()
        return folder

    def certificate(self) -> str:
        """Return the folder with the certificate of all conversations with TLS."""
        from txrdma.testing.streams.certificate import makeCertificate

        folder = self._folder / "certificate"
        with self._lock:
            if not folder.exists():
                folder.mkdir()
                (folder / "server.pem").write_bytes(makeCertificate())
        return str(folder)

    def play(self, conversation: Conversation, provider: Provider, reactor: str = "epoll") -> ConversationRun:
        """
        Run a conversation; return when all its processes have ended, or after its time limit.

        @raise Closed: the runner was closed meanwhile.
        @raise ForkserverEnded: processes cannot be started.
        """
        folder = self.folder()
        try:
            return _Play(self, folder, conversation, provider, reactor).run()
        finally:
            shutil.rmtree(folder, ignore_errors=True)


@dataclass(slots=True)
class _Process:
    """
    One process of a conversation.

    @ivar pid: 0 before its first report.
    @ivar events: events to send as soon as it has connected.
    @ivar isReady: whether its connection was made or has failed, or the process has ended.
    """

    who: str
    log: Path
    pid: int = 0
    connection: socket.socket | None = None
    entries: list[Entry] = field(default_factory=list)
    events: list[str] = field(default_factory=list)
    hasEnded: bool = False
    isReady: bool = False

    @property
    def isOver(self) -> bool:
        """Whether the process has ended, and all its reports were read."""
        return self.hasEnded and self.connection is None


class _Play:
    """One conversation while it runs."""

    def __init__(
        self,
        runner: ConversationRunner,
        folder: Path,
        conversation: Conversation,
        provider: Provider,
        reactor: str,
    ) -> None:
        self._runner = runner
        self._folder = folder
        self._conversation = conversation
        self._provider = provider
        self._reactor = reactor
        self._processes: dict[str, _Process] = {}
        self._children: list[socket.socket] = []
        self._selector = selectors.DefaultSelector()
        self._timers: list[tuple[float, Callable[[], None]]] = []
        self._isEnding = self._isLate = False
        # Loopback has 2^24 addresses, a part of which is for clients.
        self._address = str(ip_address((127 << 24) + (1 << 23) + randbelow(1 << 22)))

    def run(self) -> ConversationRun:
        """Run the conversation, and return its transcripts, logs and duration."""
        begun = time.monotonic()
        patience = self._provider.patience
        with ExitStack() as stack:
            stack.callback(self._close)
            self._listener = socket.socket(socket.AF_UNIX)
            stack.enter_context(self._listener)
            self._listener.bind(str(self._folder / "runner"))
            self._listener.listen()
            self._selector.register(self._listener, selectors.EVENT_READ, self._accept)
            self._runner.starts.acquire()
            self._starting = stack.enter_context(ExitStack())  # closed early when both ends have started
            self._starting.callback(self._runner.starts.release)
            self._timers.append((time.monotonic() + _START_SECONDS * patience, self._starting.close))
            deadline = time.monotonic() + (self._conversation.seconds + PATIENCE) * patience
            self._start(SERVER if self._conversation.server else CLIENT)
            while not self._isOver():
                if time.monotonic() > deadline:
                    self._outOfTime()
                    break
                self._turn()
        logs = {each.who: _text(each.log) for each in self._processes.values()}
        entries = {each.who: _inOrder(each.entries) for each in self._processes.values()}
        seconds = time.monotonic() - begun
        return ConversationRun(self._conversation, self._provider, self._reactor, entries, logs, seconds)

    def _isOver(self) -> bool:
        ends = [self._processes.get(CLIENT)]
        if self._conversation.server:
            ends.append(self._processes.get(SERVER))
        isOver = all(each is not None and each.isOver for each in ends)
        proxy = self._processes.get(PROXY)
        if isOver and proxy is not None and not proxy.isOver:
            if not self._isEnding:  # a stopped reactor would log an error for a second signal
                self._isEnding = True
                self._signal(proxy, signal.SIGTERM)
            return False
        # A server that cannot listen has no client.
        server = self._processes.get(SERVER)
        return isOver or (server is not None and server.isOver and CLIENT not in self._processes)

    def _turn(self) -> None:
        for key, _ in self._selector.select(_STEP):
            key.data()
        self._runner.check()
        now = time.monotonic()
        due = [call for at, call in self._timers if at <= now]
        self._timers = [(at, call) for at, call in self._timers if at > now]
        for call in due:
            call()

    # Processes

    def _start(self, who: str, port: str = "0") -> None:
        """Order a process to be forked; a client or proxy connects to C{port}."""
        if self._isLate:
            return
        conversation, provider = self._conversation, self._provider
        near, far = provider, provider  # on the client's side of a proxy, and on the server's
        if conversation.via is Via.NEAR_PROXY:
            near = TCP
        elif conversation.via is Via.FAR_PROXY:
            far = TCP
        log = self._folder / f"{who}.log"
        self._processes[who] = _Process(who, log)
        isSecret = conversation.via is Via.TLS
        listen = {SERVER: far.listen, PROXY: near.listen}.get(who, "")
        connect = {CLIENT: near.connect, PROXY: far.connect}.get(who, "")
        order = Order(
            who,
            str(self._folder / "runner"),
            str(log),
            self._reactor,
            listen=listen.format(address=self._address),
            connect=connect.format(address=self._address, port=port),
            script={CLIENT: conversation.client, SERVER: conversation.server}.get(who, ""),
            tls=self._runner.certificate() if isSecret else "",
            imports=provider.imports,
            settling=_SETTLING * provider.patience,
        )
        self._runner.order(order)

    def _listens(self, process: _Process, port: str) -> None:
        """Start the process that connects to the port of this one."""
        hasProxy = self._conversation.via in (Via.NEAR_PROXY, Via.FAR_PROXY)
        self._start(PROXY if process.who == SERVER and hasProxy else CLIENT, port)

    def _signal(self, process: _Process, number: int) -> None:
        if process.pid and not process.hasEnded:
            try:
                os.kill(process.pid, number)
            except ProcessLookupError:
                pass  # it has ended, and the forkserver has not reported that yet

    def _outOfTime(self) -> None:
        self._isLate = True
        until = time.monotonic() + _START_SECONDS * self._provider.patience
        while time.monotonic() < until and any(
            not each.pid and not each.hasEnded for each in self._processes.values()
        ):
            self._turn()  # a starting process reports its PID, and can then be killed
        for process in self._processes.values():
            if not process.isOver:
                process.entries.append(
                    Entry(time.monotonic(), PROCESS, transcript.ENDED, transcript.OUT_OF_TIME)
                )

    def _close(self) -> None:
        for process in self._processes.values():
            self._signal(process, signal.SIGKILL)
            if process.connection is not None:
                process.connection.close()
        for child in self._children:
            child.close()
        self._selector.close()

    # Reports of processes

    def _accept(self) -> None:
        connection, _ = self._listener.accept()
        lines = _Lines(connection)
        self._selector.register(connection, selectors.EVENT_READ, lambda: self._read(lines))

    def _read(self, lines: _Lines) -> None:
        for line in lines.read():
            self._entryReceived(lines, Entry.decode(line))
        if lines.isOver:
            self._selector.unregister(lines.connection)
            lines.connection.close()
            if lines.process is not None:
                lines.process.connection = None

    def _entryReceived(self, lines: _Lines, entry: Entry) -> None:
        if entry.kind == transcript.HELLO:
            who, pid = entry.about.split()
            process = self._processes[who]
            process.pid, process.connection, lines.process = int(pid), lines.connection, process
            for event in process.events:
                self._give(process, event)
        elif entry.kind == transcript.CHILD:
            self._children.append(lines.connection)
        elif entry.kind == transcript.ENDED:
            who, _, how = entry.about.partition(" ")
            self._ended(self._processes[who], Entry(entry.at, PROCESS, transcript.ENDED, how))
        elif lines.process is not None:
            lines.process.entries.append(entry)
            self._happened(lines.process, entry)

    def _ended(self, process: _Process, entry: Entry) -> None:
        # Its last reports may still be in flight; they are sorted before its end.
        process.hasEnded = True
        process.entries.append(entry)
        self._ready(process)
        self._cue(process, PEER_ENDED)

    def _happened(self, process: _Process, entry: Entry) -> None:
        if entry.kind == transcript.LISTENING:
            self._listens(process, entry.about)
        elif entry.kind == transcript.EVENT:
            self._cue(process, entry.about)
        elif entry.kind == transcript.FREEZES:
            wake = time.monotonic() + float(entry.about)
            self._timers.append((wake, lambda: self._signal(process, signal.SIGCONT)))
        elif entry.kind in (transcript.MADE, transcript.FAILED):
            self._ready(process)

    def _ready(self, process: _Process) -> None:
        process.isReady = True
        if all(each.isReady for each in self._processes.values() if each.who != PROXY):
            if CLIENT in self._processes:
                self._starting.close()

    def _cue(self, giver: _Process, name: str) -> None:
        """Pass an event on to the other end."""
        other = self._processes.get(CLIENT if giver.who == SERVER else SERVER)
        if giver.who == PROXY or other is None:
            return
        if other.pid:
            self._give(other, name)
        else:
            other.events.append(name)

    @staticmethod
    def _give(process: _Process, event: str) -> None:
        if process.connection is not None:
            try:
                process.connection.sendall(event.encode() + b"\n")
            except OSError:
                pass  # it has ended


class _Lines:
    """
    The lines that one process sends to the runner.

    @ivar process: the process, as soon as it is known.
    @ivar isOver: whether the connection has ended.
    """

    def __init__(self, connection: socket.socket) -> None:
        self.connection = connection
        self.process: _Process | None = None
        self.isOver = False
        self._read = b""

    def read(self) -> list[bytes]:
        """Return received lines, without an incomplete last line of a killed process."""
        try:
            data = self.connection.recv(65_536)
        except OSError:
            data = b""
        self.isOver = not data
        *lines, self._read = (self._read + data).split(b"\n")
        return lines


def _inOrder(entries: list[Entry]) -> list[Entry]:
    """Sort entries by time: a process's end may be reported before all its lines are read."""
    return list(joined(sorted(entries, key=lambda entry: entry.at)))


def _text(path: Path) -> str:
    return path.read_text(errors="replace") if path.exists() else ""
