"""Run C{txrdma} commands on simulated fabrics and a simulated clock."""

from __future__ import annotations

import io
import json
from contextlib import redirect_stderr, redirect_stdout
from pathlib import Path
from typing import Any, cast, NamedTuple

from twisted.internet.defer import Deferred
from twisted.python.failure import Failure
from twisted.python.usage import UsageError
from twisted.trial.unittest import SynchronousTestCase

from txrdma.command import run, TxrdmaOptions
from txrdma.commands.common.options import IReactor
from txrdma.mad.ports import openMADPort
from txrdma.sim.strings import fabricOf
from txrdma.test.support.mad.simulated import TWO_SWITCHES
from txrdma.testing.reactors import ReactorClock

SECONDS = 300.0
"""Simulated seconds in which every command ends."""


class Terminal(io.StringIO):
    """A standard stream of a process that was started at a terminal."""

    def isatty(self) -> bool:
        return True


class Output(NamedTuple):
    out: str
    errors: str
    status: str | int | None

    @property
    def json(self) -> Any:
        return json.loads(self.out)

    @property
    def fields(self) -> dict[str, str]:
        pairs = (line.partition(":") for line in self.out.splitlines() if ":." in line)
        return {name: text.lstrip(".") for name, _, text in pairs}


class CommandTestCase(SynchronousTestCase):
    """
    Commands use one fabric while a port of it is open.

    @cvar device: the device string of the fabric.
    """

    device = "sim:fattree:8"

    def setUp(self) -> None:
        self.clock = ReactorClock()

    def begin(self, name: str, *arguments: str, device: str | None = None) -> Deferred[None]:
        given = [name] if name == "decode" else [name, "--device", self.device if device is None else device]
        options = TxrdmaOptions()
        options.parseOptions([*given, *arguments])
        return run(cast(IReactor, self.clock), options)

    def pump(self, seconds: float) -> None:
        end = self.clock.seconds() + seconds
        while self.clock.calls and self.clock.calls[0].getTime() <= end:
            self.clock.advance(max(0.0, self.clock.calls[0].getTime() - self.clock.seconds()))

    def output(self, name: str, *arguments: str, device: str | None = None) -> Output:
        out, errors = io.StringIO(), io.StringIO()
        ended: list[Any] = []
        with redirect_stdout(out), redirect_stderr(errors):
            self.begin(name, *arguments, device=device).addBoth(ended.append)
            end = self.clock.seconds() + SECONDS
            while not ended and self.clock.calls and self.clock.calls[0].getTime() <= end:
                self.clock.advance(max(0.0, self.clock.calls[0].getTime() - self.clock.seconds()))
        self.assertTrue(ended, f"{name} {arguments} has no end")
        status = None
        if isinstance(ended[0], Failure):
            error = ended[0].value
            if not isinstance(error, SystemExit):
                ended[0].raiseException()
            status = error.code
        return Output(out.getvalue(), errors.getvalue(), status)


class SharedFabricTestCase(CommandTestCase):
    """
    All commands of a test run in one simulated fabric.

    @ivar fabric: that fabric.
    """

    def setUp(self) -> None:
        super().setUp()
        port = openMADPort(self.clock, self.device)
        self.addCleanup(port.close)
        self.fabric = fabricOf(port)


class NetFabricTestCase(SharedFabricTestCase):
    """
    All commands of a test run in the fabric of a net file.

    @cvar net: text of the net file.
    @ivar status: exit status of the last command, and what it wrote to standard error.
    """

    net = TWO_SWITCHES
    status: str | int = 0
    complaints = ""

    def setUp(self) -> None:
        path = Path(self.mktemp())
        path.write_text(self.net)
        self.device = f"sim:{path}"
        super().setUp()

    def lid(self, name: str, number: int | None = None) -> str:
        return str(self.fabric.port(name, number).end.lid)

    def printed(self, name: str, *arguments: str) -> str:
        output = self.output(name, *arguments)
        self.status, self.complaints = output.status or 0, output.errors
        return output.out

    def answerTo(self, name: str, *arguments: str) -> Any:
        return json.loads(self.printed(name, *arguments, "--json"))

    def refusedOptions(self, name: str, *arguments: str) -> str:
        return str(self.assertRaises(UsageError, self.begin, name, *arguments))
