"""
One end of a program in a separate process::

    python -m txrdma.test.system.foreign.running PROGRAM serve|use STRING FOLDER

Each line that it prints is JSON: the port that it listens at, the routes of its connections, and at the end
of C{use} its result. Its log goes to standard error.
"""

from __future__ import annotations

import json
import sys
from importlib import import_module
from pathlib import Path
from typing import Any

from twisted.internet.defer import Deferred
from twisted.internet.task import react
from twisted.logger import globalLogBeginner, textFileLogObserver

from txrdma.test.system.foreign.programs.program import Ends, Program
from txrdma.testing.streams.scriptedprotocol import servedBy


def programNamed(name: str) -> Program:
    """Return a program by its name: C{MODULE.CLASS} among L{txrdma.test.system.foreign.programs}."""
    module, _, kind = name.partition(".")
    made: Program = getattr(import_module(f"txrdma.test.system.foreign.programs.{module}"), kind)()
    return made


def report(**output: object) -> None:
    """Print a line for the parent process."""
    print(json.dumps(output), flush=True)


class _ReportingEnds(Ends):
    """Ends that report the route of each connection."""

    async def listen(self, factory: Any) -> Any:
        return await super().listen(_Noting(factory))

    @property
    def endpoint(self) -> Any:
        return _NotingEndpoint(super().endpoint)


class _Noting:
    """A factory that reports the transports of its protocols, and passes everything else to the program."""

    def __init__(self, factory: Any) -> None:
        self._factory = factory

    def __getattr__(self, name: str) -> Any:
        return getattr(self._factory, name)

    def buildProtocol(self, address: Any) -> Any:
        protocol = self._factory.buildProtocol(address)
        if protocol is not None:
            made = protocol.makeConnection

            def makeConnection(transport: Any) -> None:
                report(servedBy=servedBy(transport))
                made(transport)

            protocol.makeConnection = makeConnection
        return protocol


class _NotingEndpoint:
    """A client endpoint that reports the transports of its protocols."""

    def __init__(self, endpoint: Any) -> None:
        self._endpoint = endpoint

    def connect(self, factory: Any) -> Any:
        return self._endpoint.connect(_Noting(factory))


async def main(reactor: Any, name: str, what: str, string: str, folder: str) -> None:
    """Serve until SIGTERM, or use the server and report the result."""
    program, ends = programNamed(name), _ReportingEnds(reactor, string, Path(folder))
    if what == "use":
        report(saw=await program.use(ends))
        return
    await program.serve(ends)
    report(port=ends.ports[0].getHost().port)
    await Deferred()


if __name__ == "__main__":
    globalLogBeginner.beginLoggingTo([textFileLogObserver(sys.stderr)], redirectStandardIO=False)
    react(lambda reactor, *words: Deferred.fromCoroutine(main(reactor, *words)), sys.argv[1:])
