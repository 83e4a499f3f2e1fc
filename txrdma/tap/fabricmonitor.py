"""C{twistd fabric-monitor}: runs the monitors of one or several fabrics."""

from __future__ import annotations

import os
from typing import Any, Final

from twisted.application.service import IService
from twisted.python import usage

from txrdma.error import RDMAError
from txrdma.monitor.config import parseConfig, readConfig
from txrdma.tap.fabrics import FabricsService
from txrdma.tap.monitor import MonitorService
from txrdma.tap.steadyclock import SteadyClock

_FASTEST: Final = 1e6
"""Highest speed of a replay."""


class Options(usage.Options):
    """The command line of C{twistd fabric-monitor}."""

    synopsis = "[options]"
    longdesc = (
        "Watches an InfiniBand fabric: sweeps it, reads the counters of all ports, reports findings, stores "
        "a history, and serves /metrics for Prometheus and /api/v1 as JSON. A replay writes no history and "
        "no files, and sends no alerts."
    )
    optParameters = [
        ["config", "c", None, "Configuration file (TOML). [default: the default configuration]"],
        ["history", None, None, "With one --replay: history (file or URL) whose counters and links it has."],
        ["begin", None, None, "With --history: begin at this local time. [default: its last day]"],
        ["speed", None, 1.0, "Speed of a replay: 60 shows an hour in a minute.", float],
    ]

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]  # of Twisted's
        self["replay"] = []

    def opt_replay(self, path: str) -> None:
        """Snapshot to show instead of a fabric; several are replayed in the order of their times."""
        self["replay"].append(path)

    def postOptions(self) -> None:
        """Read the configuration, to report errors before the service starts."""
        try:
            self["read"] = parseConfig("") if self["config"] is None else readConfig(self["config"])
            if self["replay"]:
                from txrdma.tap.replay import openPast, readRecordings, silent  # with the simulation

                self["recordings"] = readRecordings(self["replay"])
                self["read"] = silent(self["read"])
                if self["history"] is not None:
                    self["past"] = openPast(self["history"], self["begin"] or "")
        except RDMAError as error:
            raise usage.UsageError(str(error)) from error
        if self["history"] is not None and len(self["replay"]) != 1:
            raise usage.UsageError("--history needs one --replay, the snapshot of its fabric")
        if not 0 < self["speed"] <= _FASTEST:
            raise usage.UsageError(f"--speed {self['speed']:g}: expected a number up to {_FASTEST:g}")


def makeService(options: Options) -> IService:
    """Create the service for C{twistd}."""
    from twisted.internet import reactor

    theReactor: Any = reactor
    clock = theReactor.seconds = SteadyClock()
    service: MonitorService | FabricsService
    try:
        if options["replay"]:
            from txrdma.tap.replay import ReplayService

            recordings, speed = options["recordings"], options["speed"]
            past = options.get("past")
            service = ReplayService(
                *(reactor, options["read"], recordings, speed, clock.aheadSeconds), past=past
            )
        elif options["read"].hasSections:
            service = FabricsService(reactor, options["read"], clock.aheadSeconds)
        else:
            service = MonitorService(reactor, options["read"], aheadSeconds=clock.aheadSeconds)
    except (RDMAError, ValueError) as error:
        raise SystemExit(f"fabric-monitor: {error}") from error
    if options["config"] is not None:
        path = os.path.abspath(options["config"])  # a daemon changes its working directory
        service.reloadBy(lambda: readConfig(path))
    return service
