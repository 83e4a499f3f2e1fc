"""
Tests with rdma-core's C{ibv_rc_pingpong} and C{ibv_ud_pingpong} on rxe as peers of txrdma's devices.
"""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
import time
from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from itertools import count

from twisted.internet.defer import Deferred, maybeDeferred
from twisted.internet.endpoints import TCP4ClientEndpoint, TCP4ServerEndpoint
from twisted.internet.interfaces import IListeningPort
from twisted.python.failure import Failure
from twisted.trial.unittest import SkipTest, SynchronousTestCase

from txrdma.interfaces import IVerbsDevice
from txrdma.pingpong.compatible import OneGame, playFirst, PORT
from txrdma.pingpong.link import TestSide
from txrdma.pingpong.measurement import Measurement
from txrdma.pingpong.plan import Test, Transfer
from txrdma.test.system.kernel import Box, record, Witness
from txrdma.test.system.kernel.world import HERE, InTheBox, MTU_1024, MTU_4096, NAMESPACE, RXE, THERE
from txrdma.verbs.devices import openDevice

BOXES = (Box(mtu=4200, timeout=420),)
PROGRAMS = {Transfer.SEND: "ibv_rc_pingpong", Transfer.UD: "ibv_ud_pingpong"}
LONG = 100_000
"""
Bytes of a message with more packets of 1 KiB than fit into one UDP_SEGMENT. Its user must sleep between
messages: a busy-polling program leaves too little of an emulated processor to the kernel.
"""

PATIENT = 19
"""An ACK timeout of two seconds, since the emulated kernel may share its processors with other guests."""

_ports = count(PORT + 100)
"""A new port for each test: earlier ones may still be in use."""

LISTENING = "0A"
"""TCP_LISTEN in C{/proc/net/tcp}."""


class IBVPingpong:
    """A process that runs C{ibv_rc_pingpong} or C{ibv_ud_pingpong}."""

    def __init__(self, transfer: Transfer, device: str, gidIndex: int, *options: str) -> None:
        name = PROGRAMS[transfer]
        if shutil.which(name) is None:
            raise SkipTest(f"{name} is not installed")
        self.process = subprocess.Popen(
            [name, "-d", device, "-g", str(gidIndex), *options],
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )

    def waitUntilListening(self, port: int) -> None:
        """Wait until the program listens. Connecting is not possible, as it accepts one connection only."""
        wanted = f":{port:04X}"
        deadline = time.monotonic() + 60
        while time.monotonic() < deadline and self.process.poll() is None:
            for table in ("/proc/net/tcp", "/proc/net/tcp6"):
                with open(table) as file:
                    rows = [line.split() for line in file]
                if any(row[1].endswith(wanted) and row[3] == LISTENING for row in rows[1:]):
                    return
            time.sleep(0.05)
        raise AssertionError(f"the program does not listen: {self.end()}")

    def end(self) -> str:
        """Return the output after the end."""
        try:
            output, _ = self.process.communicate(timeout=60)
        except subprocess.TimeoutExpired:
            self.process.kill()
            output, _ = self.process.communicate()
        return output


class Playing(InTheBox):
    """
    Tests of txrdma's engine with the programs.

    @cvar kernelDevice: the device of the program; C{near} is the address at which txrdma reaches it.
    """

    kernelDevice = RXE
    near = HERE
    payload = 4096

    def openLocal(self) -> IVerbsDevice:
        """Return txrdma's device."""
        return self.world.openSoft(self.reactor)

    def where(self) -> AbstractContextManager[None]:
        """Return the network namespace of txrdma's sockets."""
        return self.world.far()

    def play(
        self, transfer: Transfer, size: int, iterations: int, weBegin: bool, *options: str
    ) -> Measurement:
        """Play; both ends must report success."""
        self.reactor = self.makeReactor()
        side = TestSide(self.reactor, lambda address: self.openLocal(), timeout=PATIENT, stallSeconds=50)
        test = Test(transfer, size=size, iterations=iterations, warmup=0, check=True)
        mtu = self.payload if transfer is Transfer.SEND else 0
        tcp = next(_ports)
        words = ["-p", str(tcp), "-s", str(size), "-n", str(iterations), *options]
        if mtu:
            words += ["-m", str(mtu)]
        if weBegin:
            reference = self.start(transfer, words)
            reference.waitUntilListening(tcp)
            with self.where():
                endpoint = TCP4ClientEndpoint(self.reactor, self.near, tcp)
                game = Deferred.fromCoroutine(playFirst(endpoint, side, test, mtu))
        else:
            factory = OneGame(side, test, mtu)
            game = factory.done
            with self.where():
                listening = TCP4ServerEndpoint(self.reactor, tcp).listen(factory)
            port = self.successResultOf(listening)
            self.addCleanup(self._stopListening, port)
            reference = self.start(transfer, [*words, self.localAddress()])
        ended: list[Measurement | Failure] = []
        game.addBoth(ended.append)
        self.runUntil(lambda: bool(ended))
        output = reference.end()
        (measurement,) = ended
        if isinstance(measurement, Failure):
            self.fail(f"{measurement.getErrorMessage()}; output: {output}")
        self.assertEqual(reference.process.returncode, 0, output)
        self.assertNotIn("invalid data", output)
        self.assertIn(f"{iterations} iters in", output)
        self.assertEqual(measurement.wrong, 0)
        self.assertGreaterEqual(measurement.messages, iterations - 1)
        record(f"{transfer.value} {size} bytes, us", round(measurement.samples.summary().median / 1000))
        return measurement

    def _stopListening(self, port: IListeningPort) -> None:
        stopped = maybeDeferred(port.stopListening)
        self.runUntil(lambda: stopped.called)

    def start(self, transfer: Transfer, words: Sequence[str]) -> IBVPingpong:
        reference = IBVPingpong(transfer, self.kernelDevice, self.kernelGIDIndex(), *words)
        self.addCleanup(reference.process.wait)
        self.addCleanup(reference.process.kill)
        return reference

    def kernelGIDIndex(self) -> int:
        """Return the index of the GID with the IPv4 address."""
        folder = f"/sys/class/infiniband/{self.kernelDevice}/ports/1/gids"
        for index in range(8):
            with open(f"{folder}/{index}") as file:
                if file.read().startswith("0000:0000:0000:0000:0000:ffff:"):
                    return index
        raise AssertionError(f"{self.kernelDevice} has no GID of an IPv4 address")

    def localAddress(self) -> str:
        """Return the address at which the program reaches txrdma."""
        return THERE

    def test_connectedAndWeBegin(self) -> None:
        """Messages of several packets; txrdma is the client."""
        self.play(Transfer.SEND, 3000, 20, True, "-c")

    def test_connectedAndTheyBegin(self) -> None:
        """Messages of several packets; the program is the client and sleeps between them."""
        self.play(Transfer.SEND, 3000, 20, False, "-c", "-e")

    def test_longAndWeBegin(self) -> None:
        """Messages sent by UDP_SEGMENT, many packets at once; txrdma is the client."""
        self.play(Transfer.SEND, LONG, 6, True, "-c", "-e")

    def test_longAndTheyBegin(self) -> None:
        """Messages sent by UDP_SEGMENT; the program is the client."""
        self.play(Transfer.SEND, LONG, 6, False, "-c", "-e")

    def test_datagramsAndWeBegin(self) -> None:
        """Datagrams that fill a packet; txrdma is the client."""
        self.play(Transfer.UD, self.payload, 20, True, "-e")

    def test_datagramsAndTheyBegin(self) -> None:
        """Short datagrams; the program is the client."""
        self.play(Transfer.UD, 100, 20, False, "-c")


class SoftTests(Playing, SynchronousTestCase):
    """txrdma's software device, with packets of up to 4 KiB."""

    mtu = MTU_4096
    witness = Witness("software device", "ibv_rc_pingpong, ibv_ud_pingpong on rxe", "SEND, UD, 4 KiB MTU")

    def test_command(self) -> None:
        """C{txrdma pingpong --compatible} chooses device and address, and reports the measurement."""
        reference = self.start(Transfer.SEND, ["-n", "50"])
        reference.waitUntilListening(PORT)
        command = [sys.executable, "-m", "txrdma", "pingpong", "--compatible", "--json", "-n", "50"]
        completed = subprocess.run(
            ["ip", "netns", "exec", NAMESPACE, *command, HERE],
            capture_output=True,
            text=True,
            timeout=120,
        )
        output = reference.end()
        self.assertEqual(
            (completed.returncode, reference.process.returncode), (0, 0), completed.stderr + output
        )
        (reported,) = json.loads(completed.stdout)
        self.assertEqual((reported["bytes"], reported["messages"], reported["route"]), (4096, 50, "rocev2"))
        self.assertGreater(reported["latency"]["median"], 0)


class SoftSmallTests(Playing, SynchronousTestCase):
    """txrdma's software device, with packets of up to 1 KiB."""

    mtu = MTU_1024
    payload = 1024
    witness = Witness("software device", "ibv_rc_pingpong, ibv_ud_pingpong on rxe", "SEND, UD, 1 KiB MTU")


class PyverbsTests(Playing, SynchronousTestCase):
    """The kernel's device at the other end of the guest's wire, by pyverbs."""

    kernelDevice = "rxe0"
    near = "127.0.0.1"
    witness = Witness("pyverbs on rxe", "ibv_rc_pingpong, ibv_ud_pingpong on rxe", "SEND, UD, 4 KiB MTU")

    def openLocal(self) -> IVerbsDevice:
        """Return the kernel's device."""
        return openDevice(self.reactor, "pyverbs:rxe1")

    def where(self) -> AbstractContextManager[None]:
        """Return the first namespace, which has both ends."""
        return nullcontext()

    def localAddress(self) -> str:
        """Return the address on the same host."""
        return "127.0.0.1"
