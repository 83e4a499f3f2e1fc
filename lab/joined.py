"""
One command on this machine and one in a guest, joined by a TAP device in a new network namespace.

The machine's network does not change. No privileges are needed if user namespaces are available.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

from lab.guest import FAILED, Guest, GuestOptions, OUT_OF_TIME, TURN_SECONDS
from lab.needs import find, output, Unavailable

CHECKOUT = Path(__file__).resolve().parent.parent
TAP, HERE, THERE = "lab0", "10.80.0.1", "10.80.0.2"
"""The TAP device, the local address on it, and the guest's."""

AGENT_PORT = 4700
DEVICE = "rxe2"
GRACE_SECONDS = 20


def namespace() -> list[str]:
    """
    Return a command prefix that creates a network namespace.

    @raise Unavailable: network namespaces or TAP devices are not permitted.
    """
    words = [find("unshare"), "--net", *([] if os.geteuid() == 0 else ["--map-root-user"])]
    output(*words, "ip", "tuntap", "add", TAP, "mode", "tap")
    return words


def run(wanted: GuestOptions, here: Sequence[str], timeout: float) -> int:
    """
    Run C{here} on this machine while a guest runs C{there}; return the exit status of the former.

    @raise Unavailable: see L{namespace}.
    """
    orders = {
        "here": list(here),
        "there": list(wanted.command),
        "mtu": wanted.mtu,
        "memory": wanted.memory,
        "kernel": wanted.kernel,
        "out": str(wanted.out),
        "environment": dict(wanted.environment),
        "timeout": timeout,
    }
    words = [*namespace(), sys.executable, "-m", "lab.joined", json.dumps(orders)]
    with subprocess.Popen(words, cwd=CHECKOUT, stdin=subprocess.DEVNULL) as process:
        try:
            return process.wait(TURN_SECONDS + timeout + GRACE_SECONDS)
        except subprocess.TimeoutExpired:
            return OUT_OF_TIME
        finally:
            process.terminate()


def main(arguments: list[str]) -> int:
    """Run inside the namespace."""
    [text] = arguments
    orders = json.loads(text)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))
    for line in (
        "ip link set lo up",
        f"ip tuntap add {TAP} mode tap",
        f"ip link set {TAP} mtu {orders['mtu']} up",
        f"ip addr add {HERE}/24 dev {TAP}",
    ):
        output(*line.split())
    out = Path(orders["out"])
    wanted = GuestOptions(
        orders["there"],
        mtu=orders["mtu"],
        taps={TAP: f"{THERE}/24"},
        out=out,
        environment=orders["environment"],
        folder=CHECKOUT,
        memory=orders["memory"],
        kernel=orders["kernel"],
    )
    settings = {**os.environ, **orders["environment"], "LAB_OUT": str(out)}
    settings |= {"LAB_HERE": HERE, "LAB_PEER": f"{THERE}:{AGENT_PORT}"}
    with Guest(wanted) as guest:
        process = subprocess.Popen(orders["here"], cwd=CHECKOUT, env=settings, stdin=subprocess.DEVNULL)
        try:
            return process.wait(orders["timeout"])
        except subprocess.TimeoutExpired:
            return OUT_OF_TIME
        finally:
            process.kill()
            process.wait()
            (out / "console").write_text(guest.console)


if __name__ == "__main__":
    try:
        sys.exit(main(sys.argv[1:]))
    except Unavailable as error:
        print(f"lab: {error}", file=sys.stderr)
        sys.exit(FAILED)
