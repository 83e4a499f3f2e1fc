"""
Compare the software device with the kernel's rxe in a guest of L{lab}, by L{benchmarks.verbs}.

Both ends of a pair run in the guest; each pair has its own veth pair, all with the same MTU. The ends of rxe
are in the first network namespace, the only one where rxe has a socket; the ends of the software device are
in two.
"""

from __future__ import annotations

import json
import os
import subprocess
import tempfile
from pathlib import Path
from typing import Any, Final

from benchmarks.report import table
from benchmarks.results import Section, section
from benchmarks.verbs import Compared, rows

CHECKOUT: Final = Path(__file__).resolve().parent.parent
TIMEOUT_SECONDS: Final = 1800
TITLE: Final = "Beside the kernel's rxe, in a guest"
MANAGED: Final = "box-managed"
MANAGED_TITLE: Final = "Beside librdmacm's programs, in a guest"
MTU: Final = 4200
"""Ethernet MTU that allows an RDMA MTU of 4096."""

_WIRE: Final = """
set -e
ip netns add far
ip link add near0 mtu {mtu} type veth peer name far0 mtu {mtu} netns far
ip addr add 10.79.0.1/24 dev near0
ip netns exec far ip addr add 10.79.0.2/24 dev far0
ip link set near0 up
ip netns exec far ip link set lo up
ip netns exec far ip link set far0 up
exec "$@"
"""
_OUT: Final = "/run/lab/out"
_PAIRS: Final = [
    "--device=soft:10.79.0.1:route=rocev2",
    "--device=far@soft:10.79.0.2:route=rocev2",
    "--name=software",
    "--device=pyverbs:rxe0",
    "--device=pyverbs:rxe1",
    "--name=rxe",
]


def measure(rounds: int, seconds: float) -> tuple[dict[str, Any] | None, str]:
    """
    Boot guests and measure in them: pairs of devices in one, streams in the other.

    @return: the results for JSON, or None with the reason.
    """
    try:
        from lab import needs
    except ImportError as error:
        return None, f"there is no lab: {error}"
    script = _WIRE.format(mtu=MTU)
    options = [*_PAIRS, f"--rounds={rounds}", f"--seconds={seconds}"]
    try:
        needs.ensure()
        print("a guest for devices", flush=True)
        devices = _inGuest("benchmarks.verbs", options, ["sh", "-c", script, "sh"], rxe=True, mtu=MTU)
        print("a guest for streams", flush=True)
        streams = _inGuest("benchmarks.boxstreams", [f"--rounds={rounds}"], [], smc=True, mtu=MTU)
        return {**devices, "streams": streams["outcomes"]}, ""
    except needs.Unavailable as error:
        return None, str(error)
    except (OSError, subprocess.SubprocessError) as error:
        return None, f"no guest: {error}"


def managed(rounds: int) -> Section:
    """
    Measure connections and streams beside librdmacm's programs, and return the section.

    @param rounds: number of measurements of each case.
    """
    try:
        from lab import needs

        needs.ensure()
        print("a guest for librdmacm", flush=True)
        found = _inGuest("benchmarks.boxmanaged", [f"--rounds={rounds}"], [], rxe=True, mtu=MTU)
    except ImportError as error:
        return section(MANAGED, MANAGED_TITLE, why=f"there is no lab: {error}")
    except needs.Unavailable as error:
        return section(MANAGED, MANAGED_TITLE, why=str(error))
    except (OSError, subprocess.SubprocessError) as error:
        return section(MANAGED, MANAGED_TITLE, why=f"no guest: {error}")
    about = (
        f"Two processes in a guest of `lab` (Linux {found['kernel']} under QEMU's emulation, about a tenth "
        "of native speed), alternating with librdmacm's own C programs: `cmtime`, which performs each step "
        "for all connections before the next step, and `rstream`, which echoes. All use librdmacm over rxe. "
        "60 connections, 20 at a time; streams are `rsocket:`."
    )
    lines = table("librdmacm's", "txrdma", found["outcomes"])
    return section(MANAGED, MANAGED_TITLE, details=found, about=about, lines=lines)


def _inGuest(module: str, options: list[str], before: list[str], **what: Any) -> dict[str, Any]:
    """
    Run a module in its own guest, and return the JSON that it writes, with the version of the kernel.

    @param before: words of the command before Python.
    @param what: further fields of L{lab.guest.GuestOptions}.
    """
    from lab import environment, kernel
    from lab.guest import Guest, GuestOptions

    python = environment.choose(CHECKOUT)
    which = os.environ.get("LAB_KERNEL", "backports")
    version = kernel.obtain(kernel.cacheFolder(), which).version
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder)
        path = environment.pyverbsOnly(out / "path")
        command = [*before, str(python), "-m", module, *options, f"--json={_OUT}/found.json"]
        guestOptions = GuestOptions(
            command, out=out, environment={"PYTHONPATH": str(path)}, folder=CHECKOUT, kernel=which, **what
        )
        with Guest(guestOptions) as guest:
            status = guest.wait(TIMEOUT_SECONDS)
        found = out / "found.json"
        if not found.exists():
            raise OSError(f"{module} ended with status {status} there")
        return {**json.loads(found.read_text()), "kernel": version}


def result(rounds: int, seconds: float) -> Section:
    """
    Measure, and return the section of the page.

    @param rounds: number of measurements of each case.
    @param seconds: duration of each measurement of a device.
    """
    found, why = measure(rounds, seconds)
    if found is None:
        return section("box", TITLE, why=why)
    about, lines = _words(found)
    return section("box", TITLE, details=found, about=about, lines=lines)


def _words(found: dict[str, Any]) -> tuple[str, list[str]]:
    """Return the texts before and after the charts."""
    about = (
        "The software device over UDP beside the kernel's rxe, in one guest of `lab` (Linux "
        f"{found['kernel']} under QEMU's emulation, about a tenth of native speed): two processes of "
        "Python on two cores, using `txrdma.interfaces` only, each pair over a veth pair with an RDMA MTU "
        f"of 4096; {found['rounds']} alternating runs of each; medians. Round trips have one "
        "outstanding message, the others 64."
    )
    lines = [
        *rows([Compared.fromDict(pair) for pair in found["pairs"]]),
        "",
        (
            "Streams of the same two programs in such a guest, alternating: `smc:` with "
            "`device=pyverbs:rxe0` and `rxe1`, `smc:` with `backend=kernel` (AF_SMC sockets of Linux over "
            "the same devices), and `tcp:` over the veth pair between them."
        ),
        "",
        *table("the second", "the first", found["streams"]),
    ]
    return about, lines
