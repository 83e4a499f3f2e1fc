"""
A program for restricted machines: two processes exchange bytes by endpoint strings, and report the results.

C{python -m txrdma.test.support.restrictedecho SERVER CLIENT ...} prints a JSON object for each pair of
strings. For both ends it has C{mode} and C{reason} of C{smc:}, the exchanged bytes, log entries as C{[level,
text]}, and the error if it failed.

Environment variables: C{RESTRICTED_UID}, the user of both processes after the strings are parsed;
C{RESTRICTED_SERVER}, words before the command of the server; C{RESTRICTED_PYTHON}, if not empty, removes what
PyPy lacks; C{RESTRICTED_REACTOR}, Twisted's name of the reactor, or C{uvloop}.
"""

from __future__ import annotations

import fcntl
import gc
import json
import os
import socket
import subprocess
import sys
from importlib import import_module
from typing import Any, cast, Final

from twisted.application.reactors import installReactor
from twisted.internet.defer import Deferred
from twisted.internet.endpoints import clientFromString, serverFromString
from twisted.internet.protocol import Factory, Protocol
from twisted.internet.threads import deferToThread
from twisted.logger import formatEvent, globalLogBeginner, ILogObserver, LogEvent
from twisted.python.failure import Failure

SIZE: Final = 100_000
SECONDS: Final = 60.0

_entries: list[list[str]] = []


def _observe(event: LogEvent) -> None:
    if event["log_level"].name != "debug":
        _entries.append([event["log_level"].name, formatEvent(event)])


class _End(Protocol):
    """Records the status of the connection; the server echoes, the client sends and closes."""

    def __init__(self, found: dict[str, Any], isClient: bool, done: Deferred[None]) -> None:
        self._found, self._isClient, self._done = found, isClient, done
        self._count = 0

    def connectionMade(self) -> None:
        transport: Any = self.transport
        smc = getattr(transport, "smc", None)
        if smc is not None:
            self._found["mode"], self._found["route"] = smc.mode, smc.route
            self._found["reason"] = getattr(smc.fallbackReason, "name", "")
        if self._isClient:
            transport.write(bytes(SIZE))

    def dataReceived(self, data: bytes) -> None:
        transport: Any = self.transport
        self._count += len(data)
        if not self._isClient:
            transport.write(data)
        elif self._count == SIZE:
            transport.loseConnection()

    def connectionLost(self, reason: Failure) -> None:  # type: ignore[override]  # without a default
        self._found["bytes"], self._found["end"] = self._count, type(reason.value).__name__
        if not self._done.called:
            self._done.callback(None)


def _forget() -> None:
    """Remove names of the standard library that PyPy 3.11 does not have."""
    for module, names in (
        (os, ("eventfd", "eventfd_read", "eventfd_write", "EFD_CLOEXEC", "EFD_NONBLOCK", "memfd_create")),
        (os, ("MFD_CLOEXEC", "MFD_ALLOW_SEALING")),
        (socket, ("SO_PEERCRED", "MSG_NOSIGNAL")),
        (fcntl, tuple(name for name in dir(fcntl) if "SEAL" in name)),
        (gc, ("freeze",)),
    ):
        for name in names:
            delattr(module, name)


def _install(name: str) -> None:
    if name == "uvloop":
        from twisted.internet.asyncioreactor import install

        install(import_module("uvloop").new_event_loop())
    else:
        installReactor(name)


def _becomeUser() -> None:
    user = os.environ.get("RESTRICTED_UID")
    if user:
        os.setgroups([])
        os.setgid(int(user))
        os.setuid(int(user))


async def _exchange(endpoint: Any, isClient: bool) -> dict[str, Any]:
    """Use an endpoint once; return the report."""
    found: dict[str, Any] = {}
    done: Deferred[None] = Deferred()
    factory = Factory.forProtocol(lambda: _End(found, isClient, done))
    factory.noisy = False
    begin = len(_entries)
    try:
        if isClient:
            await endpoint.connect(factory)
            await done
        else:
            port = await endpoint.listen(factory)
            print(port.getHost().port, flush=True)
            await done
            await port.stopListening()
    except Exception as error:
        found["error"] = f"{type(error).__name__}: {error}"
    found["log"] = _entries[begin:]
    return found


def _start(work: Any) -> None:
    """Run the reactor until a coroutine has ended."""
    from twisted.internet import reactor as theReactor

    reactor: Any = theReactor
    globalLogBeginner.beginLoggingTo([cast(ILogObserver, _observe)], redirectStandardIO=False)

    def begin() -> None:
        running = Deferred.fromCoroutine(work(reactor)).addTimeout(SECONDS, reactor)
        running.addErrback(lambda failure: print(failure.getTraceback(), file=sys.stderr))
        running.addBoth(lambda _: reactor.callLater(0, reactor.stop))

    reactor.callWhenRunning(begin)
    reactor.run()


def _serve(texts: list[str]) -> None:
    """Serve one client at each endpoint; print the port, and then the report."""

    async def work(reactor: Any) -> None:
        endpoints = [serverFromString(reactor, text) for text in texts]
        _becomeUser()
        for endpoint in endpoints:
            print(json.dumps(await _exchange(endpoint, False)), flush=True)

    _start(work)


def _connect(texts: list[str], server: Any) -> list[dict[str, Any]]:
    """Connect to each endpoint of a server, and return what both report."""
    results: list[dict[str, Any]] = []

    async def work(reactor: Any) -> None:
        for text in texts:
            clientFromString(reactor, text.format(port=1))  # imports what is needed before the user changes
        _becomeUser()
        for text in texts:
            found, line = {}, server.readline()
            if line.strip().isdigit():
                endpoint = clientFromString(reactor, text.format(port=line.strip()))
                found["client"] = await _exchange(endpoint, True)
                line = await deferToThread(server.readline)
            found["server"] = json.loads(line)
            results.append(found)

    _start(work)
    return results


def main(words: list[str]) -> None:
    """Run the server (C{server STRING...}), or both ends (C{SERVER CLIENT ...})."""
    if os.environ.get("RESTRICTED_PYTHON"):
        _forget()
    if os.environ.get("RESTRICTED_REACTOR"):
        _install(os.environ["RESTRICTED_REACTOR"])
    if words[0] == "server":
        _serve(words[1:])
        return
    command = [sys.executable, "-m", __spec__.name]
    before = os.environ.get("RESTRICTED_SERVER", "").split()
    server = subprocess.Popen([*before, *command, "server", *words[::2]], stdout=subprocess.PIPE, text=True)
    print(json.dumps(_connect(words[1::2], server.stdout)))
    server.wait()


if __name__ == "__main__":
    main(sys.argv[1:])
