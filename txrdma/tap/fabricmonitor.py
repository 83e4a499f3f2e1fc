"""C{twistd fabric-monitor}: runs the monitors of one or several fabrics."""

from __future__ import annotations

import os
from typing import Any

from twisted.application.service import IService
from twisted.python import usage

from txrdma.error import RDMAError
from txrdma.monitor.config import parseConfig, readConfig
from txrdma.tap.fabrics import FabricsService
from txrdma.tap.monitor import MonitorService
from txrdma.tap.steady import SteadyClock


class Options(usage.Options):
    """The command line of C{twistd fabric-monitor}."""

    synopsis = "[options]"
    longdesc = (
        "Watches an InfiniBand fabric: sweeps it, reads the counters of all ports, reports findings, stores "
        "a history, and serves /metrics for Prometheus and /api/v1 as JSON."
    )
    optParameters = [["config", "c", None, "Configuration file (TOML). [default: the default configuration]"]]

    def postOptions(self) -> None:
        """Read the configuration, to report errors before the service starts."""
        try:
            self["read"] = parseConfig("") if self["config"] is None else readConfig(self["config"])
        except RDMAError as error:
            raise usage.UsageError(str(error)) from error


def makeService(options: Options) -> IService:
    """Create the service for C{twistd}."""
    from twisted.internet import reactor

    theReactor: Any = reactor
    clock = theReactor.seconds = SteadyClock()
    service: MonitorService | FabricsService
    try:
        if options["read"].fabrics:
            service = FabricsService(reactor, options["read"], clock.aheadSeconds)
        else:
            service = MonitorService(reactor, options["read"], aheadSeconds=clock.aheadSeconds)
    except (RDMAError, ValueError) as error:
        raise SystemExit(f"fabric-monitor: {error}") from error
    if options["config"] is not None:
        path = os.path.abspath(options["config"])  # a daemon changes its working directory
        service.reloadBy(lambda: readConfig(path))
    return service
