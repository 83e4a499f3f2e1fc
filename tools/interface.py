#!/usr/bin/env python3
"""
The public interface of txrdma, as lines of text that can be compared.

C{docs/interface.txt} has the interface of the last release. C{python tools/interface.py} prints what has
changed since; with C{--release} it writes the file, at a release.
"""

from __future__ import annotations

import ast
import re
import sys
from collections.abc import Iterator, Mapping
from importlib import import_module
from importlib.util import find_spec
from inspect import isclass, isfunction, unwrap
from pathlib import Path
from typing import Any, Final, NewType
from unittest.mock import MagicMock

from jsonkeys import jsonKeys, SOURCES
from zope.interface.interface import InterfaceClass

from twisted.internet.error import ConnectionDone
from twisted.python.failure import Failure

CHECKOUT: Final = Path(__file__).resolve().parent.parent
RELEASED: Final = CHECKOUT / "docs" / "interface.txt"

STABLE: Final = (
    "txrdma.btl",
    "txrdma.btl.connections",
    "txrdma.cm",
    "txrdma.error",
    "txrdma.iba.path",
    "txrdma.iba.types",
    "txrdma.interfaces",
    "txrdma.mad",
    "txrdma.messages.interfaces",
    "txrdma.messages.protocol",
    "txrdma.metrics",
    "txrdma.ports",
    "txrdma.verbs.polling",
    "txrdma.web",
)
"""Modules whose names are stable: they are deprecated before they are removed."""

PROVISIONAL: Final = (
    "txrdma.btl.aio",
    "txrdma.btl.groups.errors",
    "txrdma.btl.groups.rendezvous",
    "txrdma.btl.groups.terms",
    "txrdma.cm.core.events",
    "txrdma.cm.layouts.messages",
    "txrdma.cm.manager",
    "txrdma.fabric.discovery",
    "txrdma.iba.verbs",
    "txrdma.mad.layouts.attributes",
    "txrdma.mad.layouts.messages",
    "txrdma.mad.layouts.pma",
    "txrdma.mad.layouts.sa",
    "txrdma.mad.layouts.smp",
    "txrdma.mad.vendor",
    "txrdma.ports.following",
    "txrdma.ports.network",
    "txrdma.ports.pnet",
    "txrdma.sim.clock",
    "txrdma.sim.fabric",
    "txrdma.sim.nets.fattree",
    "txrdma.smc.endpoints",
    "txrdma.smc.terms.options",
    "txrdma.soft.device",
    "txrdma.telemetry",
    "txrdma.testing.contracts",
    "txrdma.testing.streams.catalogue",
    "txrdma.testing.streams.matrix",
    "txrdma.testing.streams.provider",
    "txrdma.testing.streams.runner",
    "txrdma.verbs.devices",
)
"""Modules that the documentation uses; their names may change in a minor release, with a news fragment."""

STRINGS: Final = {
    "smc:": "txrdma.smc.strings",
    "rdma:, ib:, sidr:": "txrdma.cm.strings",
    "rsocket:": "txrdma.cm.rsocket.strings",
    "btl:": "txrdma.btl.stream.strings",
    "umad:, vmad:, ibsim:": "txrdma.mad.ports.strings",
    "sim:": "txrdma.sim.strings",
    "soft:": "txrdma.soft.strings",
    "pyverbs:": "txrdma.verbs.strings",
}
"""The modules that parse endpoint, port and device strings."""

_TAKING: Final = {"take", "required", "number", "size", "seconds", "choice", "isYes", "address", "pop"}
"""Methods whose first argument is a key: those of L{txrdma.kit.strings.Arguments}, and C{left.pop}."""


def namesIn(module: str) -> list[str]:
    """Return the public names of a module: C{__all__}, those loaded on demand, or its definitions."""
    found = import_module(module)
    if hasattr(found, "__all__"):
        return sorted(found.__all__)
    constants = re.findall(
        r"^([A-Z][A-Z0-9_]*)(?:: [^=\n]+)? = ", Path(str(found.__file__)).read_text(), re.MULTILINE
    )
    return sorted(
        name
        for name, thing in vars(found).items()
        if not name.startswith("_")
        and (isclass(thing) or isfunction(unwrap(thing)) or isinstance(thing, (InterfaceClass, NewType)))
        and thing.__module__ == module
        or name in constants
    )


def keysIn(module: str) -> set[str]:
    """Return the keys that a module takes from the strings that it parses."""
    spec = find_spec(module)
    assert spec is not None and spec.origin is not None, module
    calls = [
        node for node in ast.walk(ast.parse(Path(spec.origin).read_text())) if isinstance(node, ast.Call)
    ]
    return {
        call.args[0].value
        for call in calls
        if isinstance(call.func, ast.Attribute)
        and call.func.attr in _TAKING
        and call.args
        and isinstance(call.args[0], ast.Constant)
        and isinstance(call.args[0].value, str)
    }


def settingsIn(schema: Mapping[str, Any], prefix: str = "") -> Iterator[str]:
    """Yield the dotted names of the settings of the fabric monitor's configuration."""
    for name, below in schema.items():
        if isinstance(below, tuple) and isinstance(below[1], Mapping):
            below = below[1]
        if isinstance(below, Mapping):
            yield from settingsIn(below, f"{prefix}{name}.")
        else:
            yield prefix + name


def optionsOf(command: Any) -> list[str]:
    """Return the long options of a command."""
    return sorted(option.rstrip("=") for option in command.load().CommandOptions().longOpt)


def optionsOfServices() -> Iterator[str]:
    """Yield the long options of the services of C{twistd}."""
    from twisted.application.service import ServiceMaker
    from twisted.plugins import txrdma_services

    for maker in vars(txrdma_services).values():
        if isinstance(maker, ServiceMaker):
            for option in sorted(maker.options().longOpt):
                yield f"{maker.tapname} --{option.rstrip('=')}"


def metricsOfStreams() -> Iterator[str]:
    """Yield the metrics of C{smc:} connections, and the labels of each."""
    from txrdma.metrics import SMCCollector
    from txrdma.smc.status.families import families, MetricKind
    from txrdma.smc.status.statistics import statistics

    yield from sorted(family.name for family in SMCCollector(None).collect())  # type: ignore[arg-type]
    for family in sorted(families(statistics()), key=lambda each: each.name):
        if family.kind is not MetricKind.SIZES:  # whose label depends on the metrics library
            yield from (f"txrdma_smc_{family.name} {label}" for label in family.labels)


def metricsOfMonitor() -> list[str]:
    """Return the metrics of the fabric monitor, from a scrape without a fabric."""
    from txrdma.monitor.process import ProcessMeasures
    from txrdma.monitor.series.remotesettings import METRIC
    from txrdma.monitor.web.metrics import Metrics

    watch = MagicMock(fabric="")
    watch.poller.meters = watch.poller.corrections.meters = {}
    watch.seconds.return_value = 0.0
    process = ProcessMeasures(MagicMock())
    families = [*Metrics(watch).families(), process._garbage.pauses.family()]
    families.append(process._iterations.durations.family())
    return sorted({METRIC, *(each.name for each in families if each is not None)})


def keysOfEvents() -> list[str]:
    """Return the keys of the events that connections write when they end."""
    from txrdma.kit.connectionlog import connectionFields, ConnectionLog

    log = MagicMock()
    fields = connectionFields("smc", "client", "tcp", (MagicMock(), MagicMock()), (0, 0), 0.0)
    ConnectionLog(log).ended(Failure(ConnectionDone()), lambda: fields)
    return sorted(log.info.call_args.kwargs)


def interface() -> dict[str, list[str]]:
    """Return the lines of each part of the interface, by the part's title."""
    from txrdma.commands.common.registry import COMMANDS
    from txrdma.monitor.configfile import SCHEMA
    from txrdma.monitor.series.historystore import VERSION as HISTORY
    from txrdma.soft.shared._rendezvous import VERSION as SHARED

    return {
        "Stable names": [f"{module} {name}" for module in STABLE for name in namesIn(module)],
        "Provisional names": [f"{module} {name}" for module in PROVISIONAL for name in namesIn(module)],
        "Keys of strings": [
            f"{kind} {key}" for kind, module in STRINGS.items() for key in sorted(keysIn(module))
        ],
        "Keys of connection events": keysOfEvents(),
        "Options of commands": [f"{each.name} --{option}" for each in COMMANDS for option in optionsOf(each)],
        "JSON of commands": [f"{name} {key}" for name in SOURCES for key in jsonKeys(name)],
        "Options of twistd": [*optionsOfServices()],
        "Metrics of smc:": [*metricsOfStreams()],
        "Metrics of the fabric monitor": metricsOfMonitor(),
        "Configuration of the fabric monitor": sorted(settingsIn(SCHEMA)),
        "Formats": [f"shared-memory {SHARED}", f"history {HISTORY}"],
    }


def lines() -> list[str]:
    """Return the whole interface."""
    return [f"{title}: {line}" for title, part in interface().items() for line in part]


def changed(released: list[str], present: list[str]) -> list[str]:
    """Return the lines that were removed (C{-}) or added (C{+}) since the release."""
    gone, new = set(released) - set(present), set(present) - set(released)
    return [*(f"- {line}" for line in sorted(gone)), *(f"+ {line}" for line in sorted(new))]


def unannounced(changes: list[str], fragments: str) -> list[str]:
    """Return the changes that no news fragment has as code: neither the name, nor its command or module."""
    code = re.findall("`([^`]+)`", fragments)
    words = {word.strip(".-") for each in code for word in re.findall(r"[\w.-]+", each)}
    words |= {word.rpartition(".")[2] for word in words}
    return [
        line for line in changes if line.split()[-1].lstrip("-") not in words and line.split()[-2] not in code
    ]


def main() -> None:
    """Print the changes, or write the file."""
    if sys.argv[1:] == ["--release"]:
        RELEASED.write_text("\n".join(lines()) + "\n")
    else:
        print("\n".join(changed(RELEASED.read_text().splitlines(), lines())))


if __name__ == "__main__":
    sys.path.insert(0, str(CHECKOUT))
    main()
