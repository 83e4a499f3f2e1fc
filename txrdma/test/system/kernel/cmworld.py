"""
Shared by suites of connection management: txrdma's manager in a second namespace, librdmacm's programs.
"""

from __future__ import annotations

import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

from twisted.python.failure import Failure
from twisted.trial.unittest import SkipTest, SynchronousTestCase

from txrdma.cm.connections.adapter import Adapter, adapterOf
from txrdma.cm.connections.endpoints import RDMAClientEndpoint, RDMAServerEndpoint, USUAL
from txrdma.cm.connections.protocol import RDMAProtocol
from txrdma.cm.terms import Terms
from txrdma.messages.protocol import MessageFactory
from txrdma.soft.device import SoftDevice
from txrdma.test.system.kernel.smcworld import environment
from txrdma.test.system.kernel.world import InTheBox, NAMESPACE, PACE, RXE

SHOWN: Final = 1000
"""Number of characters of a program's output that a failure shows."""

_COUNTERS: Final = Path(f"/sys/class/infiniband/{RXE}/ports/1")


class Program:
    """A process that writes its output to a file, since it would block on a pipe without a reader."""

    def __init__(self, *words: str, **settings: str) -> None:
        """@param settings: further environment variables."""
        self._out = tempfile.NamedTemporaryFile("w+")  # the temporary file is closed with the process
        self.process = subprocess.Popen(
            words,
            stdin=subprocess.DEVNULL,
            stdout=self._out,
            stderr=subprocess.STDOUT,
            env={**environment(), **settings},
        )

    @property
    def output(self) -> str:
        """Return all output so far."""
        return Path(self._out.name).read_text(errors="replace")

    @property
    def isOver(self) -> bool:
        """Return whether the process has ended."""
        return self.process.poll() is not None

    def expectOutput(self, word: str, times: int = 1) -> None:
        """Wait for a word in the output, without running a reactor."""
        end = time.monotonic() + 9.0 * PACE
        while self.output.count(word) < times:
            if time.monotonic() > end or self.isOver:
                break
            time.sleep(0.05)
        if self.output.count(word) < times:
            raise AssertionError(f"no {word!r} in {self.output[-SHOWN:]!r}")

    def end(self) -> tuple[int, str]:
        """Wait for the end, without running a reactor; return the exit status and the output."""
        try:
            return self.process.wait(timeout=9.0 * PACE), self.output
        except subprocess.TimeoutExpired:
            raise AssertionError(f"the process does not end: {self.output[-SHOWN:]!r}") from None


def counted() -> dict[str, int]:
    """Return the counters of the kernel's CM: C{"rx_msgs req"}, C{"tx_retries rep"}..."""
    folders = ("rx_msgs", "rx_duplicates", "tx_msgs", "tx_retries")
    return {
        f"{folder} {each.name}": int(each.read_text())
        for folder in folders
        for each in (_COUNTERS / f"cm_{folder}").iterdir()
    }


def since(before: dict[str, int]) -> dict[str, int]:
    """
    Return the number of the kernel's messages since then, by direction and kind, without retries.

    MRAs are not counted: whether they are sent depends on the load of the machine.
    """
    now = counted()
    changed = {name: n - before[name] for name, n in now.items()}
    found = {}
    for direction, again in (("rx", "rx_duplicates"), ("tx", "tx_retries")):
        for kind in ("req", "rep", "rtu", "rej", "dreq", "drep", "lap", "apr", "sidr_req", "sidr_rep"):
            number = changed[f"{direction}_msgs {kind}"] - changed[f"{again} {kind}"]
            if number:
                found[f"{direction} {kind}"] = number
    return found


class Meeting(RDMAProtocol):
    """
    A local end of a connection, which records its events.

    @ivar messages: messages of the peer.
    @ivar isMade: whether the connection is established.
    @ivar lost: the reason of the end; None before.
    """

    def __init__(self) -> None:
        self.messages: list[bytes] = []
        self.isMade = False
        self.lost: Failure | None = None

    def connectionMade(self) -> None:
        self.isMade = True

    def messageReceived(self, data: bytes, immediate: int | None) -> None:
        self.messages.append(data)

    def connectionLost(self, reason: Failure) -> None:
        self.lost = reason


class ProgramTestCase(InTheBox, SynchronousTestCase):
    """
    Tests with programs in both network namespaces.

    @cvar programs: the tests skip if one of these is not installed.
    """

    programs: tuple[str, ...] = ()

    def setUp(self) -> None:
        super().setUp()
        for program in self.programs:
            if shutil.which(program) is None:
                raise SkipTest(f"{program} is not installed")

    def start(self, *words: str, **settings: str) -> Program:
        """Start a program, whose output is flushed at the end of each line."""
        program = Program("stdbuf", "-oL", *words, **settings)
        self.addCleanup(program.process.wait)
        self.addCleanup(program.process.kill)
        return program

    def ours(self, *words: str) -> Program:
        """Start a Python module in the other namespace."""
        return self.start("ip", "netns", "exec", NAMESPACE, sys.executable, "-m", *words)


class CMTestCase(ProgramTestCase):
    """Tests of txrdma's manager, in another network namespace, with programs in this one."""

    soft: SoftDevice

    def setUp(self) -> None:
        super().setUp()
        self.reactor = self.makeReactor()
        self.soft = self.world.openSoft(self.reactor, address=self.there)
        self.addCleanup(self.soft.close)
        self.made: list[Any] = []
        self.addCleanup(self._endConnections)

    def _endConnections(self) -> None:
        for each in self.made:
            transport = getattr(each, "transport", None)
            if transport is not None:
                transport.abortConnection()
        self.runFor(0.2)

    @property
    def adapter(self) -> Adapter:
        """Return the adapter of txrdma's device, while it is in use."""
        return adapterOf(self.reactor, self.soft)

    def serve(self, port: int, make: Callable[[], Any] = Meeting, terms: Terms = USUAL) -> Any:
        """Listen in the other namespace; C{made} records the protocols."""
        return self.listening(RDMAServerEndpoint(self.reactor, port, self.soft, terms), self.recording(make))

    def recording(self, make: Callable[[], Any]) -> MessageFactory:
        """Return a factory whose protocols C{made} records."""

        def made() -> Any:
            protocol = make()
            if protocol is not None:
                self.made.append(protocol)
            return protocol

        return MessageFactory(made)

    def listening(self, endpoint: Any, factory: Any) -> Any:
        """Return the port of an endpoint, which listens until the end of the test."""
        port = self.result(endpoint.listen(factory))
        self.addCleanup(port.stopListening)
        return port

    def connect(self, port: int, terms: Terms = USUAL, privateData: bytes = b"") -> Any:
        """Connect from the other namespace to a program, and record the protocol in C{made}."""
        return self.connectWith(port, Meeting, terms, privateData)

    def connectWith(
        self, port: int, make: Callable[[], Any], terms: Terms = USUAL, privateData: bytes = b""
    ) -> Any:
        """Connect with the given protocol."""
        endpoint = RDMAClientEndpoint(self.reactor, self.here, port, self.soft, terms, privateData)
        return endpoint.connect(self.recording(make))

    def expectOutput(self, program: Program, word: str, times: int = 1) -> None:
        """Run the reactor until a program has printed a word that many times."""
        self.untilOutput(program, lambda: program.output.count(word) >= times)

    def ends(self, program: Program, seconds: float = 9.0) -> tuple[int, str]:
        """Run the reactor until a program ends; return the exit status and the output."""
        self.untilOutput(program, lambda: False, seconds)
        assert program.process.returncode is not None
        return program.process.returncode, program.output

    def succeeded(self, program: Program, seconds: float = 9.0) -> str:
        """Run the reactor until a program ends, which must succeed; return the output."""
        status, output = self.ends(program, seconds)
        self.assertEqual(status, 0, output)
        return output

    def untilOutput(self, program: Program, condition: Callable[[], bool], seconds: float = 9.0) -> None:
        """Run the reactor until a condition holds or a program has ended."""
        end = time.monotonic() + seconds * PACE
        while not condition() and not program.isOver:
            if time.monotonic() > end:
                self.fail(f"no progress of {program.process.args!r}: {program.output[-SHOWN:]!r}")
            self.runFor(0.02)
