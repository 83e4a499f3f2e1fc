"""Run librdmacm's measuring programs at both ends: C{cmtime} for connections, C{rstream} for streams."""

from __future__ import annotations

import re
import subprocess
import time
from typing import Any, Final

from benchmarks.orders import Orders

MODULE: Final = __name__
"""The name of this module in orders."""

_SECONDS: Final = 240
_BEGINNING: Final = 2.0
"""Seconds between the starts of server and client: neither program reports that it listens."""

_STEP: Final = re.compile(r"^(?P<step>[a-z ]+?) *: +(?P<total>[0-9.]+)", re.MULTILINE)
_PASSING: Final = ("resolve", "create qp", "connect", "disconnect", "destroy")
"""Prefixes of the steps of C{cmtime} that txrdma's connections have as well."""

_FIGURES: Final = re.compile(
    r"(?P<seconds>[0-9.]+)s +(?P<gigabits>[0-9.]+) +(?P<each>[0-9.]+)\s*$", re.MULTILINE
)


class ProgramFailed(Exception):
    """A program failed or printed no figures."""


def connectsPerSecond(output: str) -> float:
    """
    Parse the output of C{cmtime}'s client: connections per second from the first to the last step, for one
    connection.

    @raise ProgramFailed: the output has no durations.
    """
    steps = {match["step"].strip(): float(match["total"]) for match in _STEP.finditer(output)}
    taken = sum(total for step, total in steps.items() if step.startswith(_PASSING))
    if not steps.keys() >= {"connect", "disconnect"} or not taken:
        raise ProgramFailed(f"cmtime printed {output[-200:]!r}")
    return 1e3 / taken


def streamFigures(output: str) -> tuple[float, float]:
    """
    Parse the output of C{rstream}'s client: bytes per second, and seconds of a transfer in one direction.

    @raise ProgramFailed: the output has no figures.
    """
    found = list(_FIGURES.finditer(output))
    if not found:
        raise ProgramFailed(f"rstream printed {output[-200:]!r}")
    return float(found[-1]["gigabits"]) * 1e9 / 8, float(found[-1]["each"]) / 1e6


def measure(orders: Orders) -> dict[str, Any]:
    """
    Measure once; return the result in the form of txrdma's clients.

    @raise ProgramFailed: a program is not installed, or failed.
    """
    if orders["scenario"] == "connects":
        count = orders["count"]
        output = _both(orders, "cmtime", ["-c", str(count)])
        return {"value": connectsPerSecond(output) * count, "mode": "cmtime"}
    if orders["scenario"] == "throughput":
        size, transfers = orders["write"], orders["bytes"] // orders["write"]
        output = _both(orders, "rstream", ["-S", str(size), "-C", str(transfers), "-I", "1"])
        return {"value": streamFigures(output)[0], "mode": "rstream"}
    size, count = orders["size"], orders["count"]
    output = _both(orders, "rstream", ["-S", str(size), "-C", "1", "-I", str(count)])
    return {"value": 2 * streamFigures(output)[1], "mode": "rstream"}


def _both(orders: Orders, program: str, words: list[str]) -> str:
    """Run both ends, and return the client's output."""
    here, there = orders["addresses"]
    common = [program, *words, "-p", str(orders["port"])]
    try:
        server = subprocess.Popen(
            [*common, "-b", there], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
        )
    except OSError as error:
        raise ProgramFailed(f"{program}: {error.strerror}") from error
    try:
        time.sleep(_BEGINNING)
        client = [*common, "-b", here, "-s", there]
        done = subprocess.run(
            client, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, timeout=_SECONDS
        )
    except subprocess.TimeoutExpired as error:
        raise ProgramFailed(f"{program} takes longer than {_SECONDS} s") from error
    finally:
        server.kill()
        server.wait()
    if done.returncode:
        raise ProgramFailed(f"{program} ended with {done.returncode}: {done.stdout[-200:]}")
    return done.stdout
