"""
Run C{txrdma} commands on simulated fabrics and a simulated clock.
"""

from __future__ import annotations

import io
import json
from contextlib import redirect_stderr, redirect_stdout
from typing import Any, cast, NamedTuple

from twisted.python.failure import Failure
from twisted.trial.unittest import SynchronousTestCase

from txrdma.command import run, TxrdmaOptions
from txrdma.commands.common.options import IReactor
from txrdma.mad.ports import openMADPort
from txrdma.sim.clock import SimulatedClock
from txrdma.sim.strings import fabricOf

SECONDS = 300.0
"""Simulated seconds in which every command ends."""


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
        self.clock = SimulatedClock()

    def output(self, name: str, *arguments: str, device: str | None = None) -> Output:
        options = TxrdmaOptions()
        given = [name, *arguments]
        if name != "decode":
            given += ["--device", self.device if device is None else device]
        options.parseOptions(given)
        out, errors = io.StringIO(), io.StringIO()
        with redirect_stdout(out), redirect_stderr(errors):
            done = run(cast(IReactor, self.clock), options)
            end = self.clock.seconds() + SECONDS
            while not done.called and self.clock.calls and self.clock.calls[0].getTime() <= end:
                self.clock.advance(max(0.0, self.clock.calls[0].getTime() - self.clock.seconds()))
        status = None
        ended: list[Any] = []
        done.addBoth(ended.append)
        self.assertTrue(ended, f"{given} has no end")
        if isinstance(ended[0], Failure):
            error = ended[0].value
            if not isinstance(error, SystemExit):
                ended[0].raiseException()
            else:
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
