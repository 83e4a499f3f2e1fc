"""
Suites whose judge is the Linux kernel: C{make test-kernel} runs them as root in a virtual machine.

L{CI_TESTS} are the few that every commit runs, by C{make test-kernel-ci}.

Elsewhere they skip. Each class says what it is a witness of, and measured facts go into the run's
results and into the table of C{docs/interoperability.md}::

    class SendTests(TestCase):
        skip = OUTSIDE
        witness = Witness("software device", "rxe", "RC SEND, netem")

        def test_long(self) -> None:
            ...
            record("bytes", 16 << 20)

Every module runs in a guest with what it asks for, in a process of its own, after other modules that want the
same: what it changes there it puts back::

    BOXES = (Box(mtu=4200), Box(mtu=1500))      # at the module's top; Box() when it says nothing
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import Union

__all__ = ["CI_BOX", "CI_TESTS", "OUTSIDE", "Box", "Fact", "Witness", "record", "recorded"]

Fact = Union[int, float, str]

OUTSIDE: str | None = (
    None if os.environ.get("LAB") == "1" and os.geteuid() == 0 else "needs the kernel's box: make test-kernel"
)
"""Why suites of this package can't run here; None where they can. It suits trial's C{skip} attribute."""

if OUTSIDE is None:
    os.environ.pop("TXRDMA_SMC_OPTION", None)  # the box is there for that


@dataclass(frozen=True, slots=True)
class Witness:
    """
    What a class of tests shows: a line of the table.

    @ivar ours: the device or program of ours, such as C{"software device"} or C{"pyverbs"}.
    @ivar theirs: the other end; the kernel's version is added by the table.
    @ivar what: the operations, in a few words.
    """

    ours: str
    theirs: str
    what: str


@dataclass(frozen=True, slots=True)
class Box:
    """
    A guest that a module wants to run in.

    @ivar rxe: with C{rxe0} on C{v0} (10.77.0.1) and C{rxe1} on C{v1} (10.77.0.2), joined by a wire.
    @ivar smc: with SMC-R between v0 and v1, for AF_SMC sockets that are bound to their addresses.
    @ivar pairs: 2 for C{rxe2} on C{v2} (10.77.0.3) and C{rxe3} on C{v3} (10.77.0.4) as well, of the same
        physical networks as rxe0 and rxe1.
    @ivar tap: the tests run outside of the guest, joined to it by a TAP device; inside is
        L{txrdma.test.system.kernel.agent} on C{rxe2}. C{LAB_HERE} is our address, C{LAB_PEER} the agent's and
        port.
    @ivar mtu: of that wire, or of the TAP device; 4200 gives an active MTU of 4096, 1500 one of 1024.
    @ivar memory: MiB.
    @ivar timeout: seconds for all of the module's tests, and the start of the guest.
    """

    rxe: bool = True
    smc: bool = False
    pairs: int = 1
    tap: bool = False
    mtu: int = 4200
    memory: int = 1024
    timeout: int = 300


CI_BOX = Box(smc=True, mtu=4200, timeout=600)
"""The guest of L{CI_TESTS}; modules that want another one must cope with its devices beside their own."""

CI_TESTS = (
    "test_pyverbs_contract.PyverbsContractTests_EPollReactorTests.test_longSend",
    "test_pyverbs_contract.PyverbsContractTests_EPollReactorTests.test_longRead",
    "test_pyverbs_contract.PyverbsContractTests_EPollReactorTests.test_compareAndSwap",
    "test_pyverbs_contract.PyverbsContractTests_EPollReactorTests.test_datagram",
    "test_soft_rxe.SoftToRXETests.test_longSend",
    "test_soft_rxe.SoftToRXETests.test_longWrite",
    "test_soft_rxe.SoftToRXETests.test_longRead",
    "test_soft_rxe.SoftToRXETests.test_fetchAndAdd",
    "test_soft_rxe.SoftToRXETests.test_datagram",
    "test_soft_rxe.RXEToSoftTests.test_longSend",
    "test_soft_rxe.RXEToSoftTests.test_longWrite",
    "test_soft_rxe.RXEToSoftTests.test_longRead",
    "test_soft_rxe.RXEToSoftTests.test_fetchAndAdd",
    "test_soft_rxe.RXEToSoftTests.test_datagram",
    "test_mad.UmadTests.test_call",
    "test_mad.VerbsPortTests.test_asksTheKernel",
    "test_mad.VerbsPortTests.test_kernelAsks",
    "test_btl.KernelTests.test_messages",
    "test_btl.KernelTests.test_memory",
    "test_smc_peer.ClientTests.test_bytes",
    "test_smc_peer.ServerTests.test_bytes",
    "test_rping.RpingTests.test_theyPing",
    "test_rping.RpingTests.test_wePing",
    "test_rstream.RstreamTests.test_theirClient",
    "test_rstream.RstreamTests.test_theirServer",
)
"""What C{make test-kernel-ci} runs, in one process: each way to interoperate once."""

_facts: dict[str, Fact] = {}


def record(name: str, value: Fact) -> None:
    """Keep a measured fact about the present test, in the results and in the table."""
    _facts[name] = value


def recorded() -> dict[str, Fact]:
    """The facts since this was last called; for who writes the results."""
    taken = dict(_facts)
    _facts.clear()
    return taken
