"""
Suites that test against the Linux kernel: C{make test-kernel} runs them as root in a virtual machine.

C{make test-kernel-ci} runs the selection L{CI_TESTS}, for every commit.

Elsewhere they skip. Each class states what it is a witness of; measured facts are added to the results of the
run and to the table of C{docs/interoperability.md}::

    class SendTests(TestCase):
        skip = OUTSIDE
        witness = Witness("software device", "rxe", "RC SEND, netem")

        def test_long(self) -> None:
            ...
            record("bytes", 16 << 20)

Every module runs in its own process, in a guest with the configuration that it requests. Modules with the
same configuration share a guest, so each restores what it changes::

    BOXES = (Box(mtu=4200), Box(mtu=1500))      # at the module's top; Box() by default
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
"""The reason why suites of this package can't run here, or None: the value of trial's C{skip} attribute."""

if OUTSIDE is None:
    os.environ.pop("TXRDMA_SMC_OPTION", None)  # the guest exists for these modules


@dataclass(frozen=True, slots=True)
class Witness:
    """
    What a class of tests demonstrates: a line of the table.

    @ivar ours: txrdma's device or program, such as C{"software device"} or C{"pyverbs"}.
    @ivar theirs: the other end; the table adds the kernel's version.
    @ivar what: the operations, in a few words.
    """

    ours: str
    theirs: str
    what: str


@dataclass(frozen=True, slots=True)
class Box:
    """
    Configuration of a guest for a module.

    @ivar rxe: create C{rxe0} on C{v0} (10.77.0.1) and C{rxe1} on C{v1} (10.77.0.2), joined by a wire.
    @ivar smc: provide SMC-R between v0 and v1, for AF_SMC sockets that are bound to their addresses.
    @ivar pairs: 2 adds C{rxe2} on C{v2} (10.77.0.3) and C{rxe3} on C{v3} (10.77.0.4), in the same physical
        networks as rxe0 and rxe1.
    @ivar tap: run the tests outside of the guest, joined to it by a TAP device; inside,
        L{txrdma.test.system.kernel.agent} serves C{rxe2}. C{LAB_HERE} is the local address, C{LAB_PEER} the
        agent's address and port.
    @ivar mtu: MTU of the wire or of the TAP device; 4200 gives an active MTU of 4096, 1500 one of 1024.
    @ivar memory: MiB.
    @ivar timeout: seconds for the start of the guest and all tests of the module.
    """

    rxe: bool = True
    smc: bool = False
    pairs: int = 1
    tap: bool = False
    mtu: int = 4200
    memory: int = 1024
    timeout: int = 300


CI_BOX = Box(smc=True, mtu=4200, timeout=600)
"""The guest of L{CI_TESTS}; modules that request another one must tolerate its devices beside their own."""

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
    "test_memlock.UnprivilegedTests.test_transports",
    "test_mad.UmadTests.test_call",
    "test_mad.VerbsPortTests.test_asksTheKernel",
    "test_mad.VerbsPortTests.test_kernelAsks",
    "test_btl.KernelTests.test_messages",
    "test_btl.KernelTests.test_memory",
    "test_smc_peer.ClientTests.test_bytes",
    "test_smc_peer.ServerTests.test_bytes",
    "test_rping.RpingTests.test_theyPing",
    "test_rping.RpingTests.test_wePing",
    "test_perftest.PerftestTests.test_theyWrite",
    "test_perftest.PerftestTests.test_weSend",
    "test_rstream.RstreamTests.test_theirClient",
    "test_rstream.RstreamTests.test_theirServer",
)
"""The tests that C{make test-kernel-ci} runs in one process: each kind of interoperability once."""

_facts: dict[str, Fact] = {}


def record(name: str, value: Fact) -> None:
    """Add a measured fact about the current test to the results and the table."""
    _facts[name] = value


def recorded() -> dict[str, Fact]:
    """Return the facts recorded since the last call."""
    taken = dict(_facts)
    _facts.clear()
    return taken
