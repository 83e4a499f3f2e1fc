"""
One end of programs in a separate process::

    python -m txrdma.test.system.foreign.running serve|use FOLDER STRINGS

C{STRINGS} is JSON: the endpoint string of each program, by its name. Each line that it prints is JSON, too:
the ports of the servers, the routes of their connections, and the result of each C{use}. Its log goes to
standard error.
"""

from __future__ import annotations

import json
import sys
from importlib import import_module
from pathlib import Path
from typing import Any

from twisted.internet.defer import Deferred
from twisted.internet.task import react
from twisted.logger import globalLogBeginner, Logger, textFileLogObserver

from txrdma.test.system.foreign.programs.program import Ends, Program
from txrdma.testing.streams.scriptedprotocol import servedBy

log = Logger()


def programNamed(name: str) -> Program:
    """Return a program by its name: C{MODULE.CLASS} among L{txrdma.test.system.foreign.programs}."""
    module, _, kind = name.partition(".")
    made: Program = getattr(import_module(f"txrdma.test.system.foreign.programs.{module}"), kind)()
    return made


def report(**output: object) -> None:
    """Print a line for the parent process."""
    print(json.dumps(output), flush=True)


class _ReportingEnds(Ends):
    """Ends of a program that report the route of each connection."""

    def __init__(self, name: str, *arguments: Any) -> None:
        super().__init__(*arguments)
        self._name = name

    async def listen(self, factory: Any) -> Any:
        return await super().listen(_Noting(self._name, factory))

    @property
    def endpoint(self) -> Any:
        return _NotingEndpoint(self._name, super().endpoint)


class _Noting:
    """A factory that reports the transports of its protocols, and passes everything else to the program."""

    def __init__(self, name: str, factory: Any) -> None:
        self._name, self._factory = name, factory

    def __getattr__(self, name: str) -> Any:
        return getattr(self._factory, name)

    def buildProtocol(self, address: Any) -> Any:
        protocol = self._factory.buildProtocol(address)
        if protocol is not None:
            made = protocol.makeConnection

            def makeConnection(transport: Any) -> None:
                report(program=self._name, servedBy=servedBy(transport))
                made(transport)

            protocol.makeConnection = makeConnection
        return protocol


class _NotingEndpoint:
    """A client endpoint that reports the transports of its protocols."""

    def __init__(self, name: str, endpoint: Any) -> None:
        self._name, self._endpoint = name, endpoint

    def connect(self, factory: Any) -> Any:
        return self._endpoint.connect(_Noting(self._name, factory))


async def main(reactor: Any, what: str, folder: str, strings: str) -> None:
    """Serve until SIGTERM, or use the servers and report the results."""
    ports = {}
    for name, string in json.loads(strings).items():
        program, ends = programNamed(name), _ReportingEnds(name, reactor, string, Path(folder))
        if what == "serve":
            await program.serve(ends)
            ports[name] = ends.ports[0].getHost().port
        else:
            try:
                report(program=name, saw=await program.use(ends))
            except Exception:
                log.failure("{name} fails", name=name)
    if what == "serve":
        report(ports=ports)
        await Deferred()


if __name__ == "__main__":
    globalLogBeginner.beginLoggingTo([textFileLogObserver(sys.stderr)], redirectStandardIO=False)
    react(lambda reactor, *words: Deferred.fromCoroutine(main(reactor, *words)), sys.argv[1:])
