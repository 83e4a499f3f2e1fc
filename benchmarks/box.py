"""
The software device beside the kernel's rxe, in the same guest: what L{lab} boots, for L{benchmarks.verbs}.

Both ends of each pair are in the guest, each pair over a veth pair of its own with the same MTU. rxe's ends
are in the first network namespace, since rxe's socket is only there; those of the software device are in two.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Final

from benchmarks.verbs import Compared, rows

CHECKOUT: Final = Path(__file__).resolve().parent.parent
TIMEOUT_SECONDS: Final = 1800
MTU: Final = 4200
"""Of Ethernet: it gives RDMA's 4096."""

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


def measure(rounds: int, seconds: float) -> tuple[dict[str, object] | None, str]:
    """
    Boot a guest and measure in it.

    @return: what came out, as JSON has it; without anything, why.
    """
    try:
        from lab import environment, kernel, needs
        from lab.guest import Guest, Wish
    except ImportError as error:
        return None, f"there is no lab: {error}"
    try:
        needs.ensure()
        python = environment.choose(CHECKOUT)
        which = os.environ.get("LAB_KERNEL", "backports")
        version = kernel.obtain(kernel.cacheFolder(), which).version
        with tempfile.TemporaryDirectory() as folder:
            out = Path(folder)
            path = environment.pyverbsOnly(out / "path")
            options = [
                *_PAIRS,
                f"--rounds={rounds}",
                f"--seconds={seconds}",
                "--json=/run/lab/out/found.json",
            ]
            script = _WIRE.format(mtu=MTU)
            command = ["sh", "-c", script, "sh", str(python), "-m", "benchmarks.verbs", *options]
            wish = Wish(
                command,
                rxe=True,
                mtu=MTU,
                out=out,
                environment={"PYTHONPATH": str(path)},
                folder=CHECKOUT,
                kernel=which,
            )
            with Guest(wish) as guest:
                status = guest.wait(TIMEOUT_SECONDS)
            found = out / "found.json"
            if not found.exists():
                return None, f"the guest's measurement ended with status {status}"
            return {**json.loads(found.read_text()), "kernel": version}, ""
    except needs.Unavailable as error:
        return None, str(error)
    except (OSError, subprocess.SubprocessError) as error:
        return None, f"no guest: {error}"


def section(told: dict[str, object] | None, why: str) -> list[str]:
    """Of the page."""
    lines = ["## In the kernel's box", ""]
    if told is None:
        return [*lines, f"Not measured: {why}."]
    pairs = told["pairs"]
    assert isinstance(pairs, list)  # as measure made it
    return [
        *lines,
        (
            "The software device over UDP beside the kernel's rxe, in one guest of `lab` (Linux "
            f"{told['kernel']} under QEMU's emulation, about a tenth of native speed): two processes of "
            "Python on two cores, by `txrdma.interfaces` only, each pair over a veth pair with an RDMA MTU "
            f"of 4096; {told['rounds']} runs of each, in turns; medians. Round trips are of one message, "
            "there and back; the others of 64 outstanding."
        ),
        "",
        *rows([Compared.fromDict(pair) for pair in pairs]),
    ]


if __name__ == "__main__":
    print("\n".join(section(*measure(int(sys.argv[1]), float(sys.argv[2])))))
