"""
Programs of others play with our devices: rdma-core's C{ibv_rc_pingpong} and C{ibv_ud_pingpong}, on rxe.
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
from txrdma.pingpong.measurement import Measurement
from txrdma.pingpong.plan import Test, Transfer
from txrdma.pingpong.session import Side
from txrdma.test.system.kernel import Box, OUTSIDE, record, Witness
from txrdma.test.system.kernel.world import HERE, InTheBox, MTU_1024, MTU_4096, NAMESPACE, RXE, THERE
from txrdma.verbs.devices import openDevice

BOXES = (Box(mtu=4200, timeout=420),)
PROGRAMS = {Transfer.SEND: "ibv_rc_pingpong", Transfer.UD: "ibv_ud_pingpong"}
LONG = 100_000
"""
Bytes of a message of more packets of 1 KiB than one UDP_SEGMENT holds. Who plays with it sleeps
between them: a program that looks all the time leaves too little of an emulated processor to the kernel.
"""

PATIENT = 19
"""An ACK timeout of two seconds: the emulated kernel may have to share its processors with other guests."""

_ports = count(PORT + 100)
"""For each game another one: those before may not be free again yet."""

LISTENING = "0A"
"""TCP_LISTEN, as C{/proc/net/tcp} writes it."""


class IBVPingpong:
    """One of the programs, started at the near end."""

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
        """Nobody may try it by connecting: it takes one connection only."""
        wanted = f":{port:04X}"
        deadline = time.monotonic() + 60
        while time.monotonic() < deadline and self.process.poll() is None:
            for table in ("/proc/net/tcp", "/proc/net/tcp6"):
                with open(table) as file:
                    rows = [line.split() for line in file]
                if any(row[1].endswith(wanted) and row[3] == LISTENING for row in rows[1:]):
                    return
            time.sleep(0.05)
        raise AssertionError(f"it does not listen: {self.end()}")

    def end(self) -> str:
        """What it has said, when it is over."""
        try:
            output, _ = self.process.communicate(timeout=60)
        except subprocess.TimeoutExpired:
            self.process.kill()
            output, _ = self.process.communicate()
        return output


class Playing(InTheBox):
    """
    Games of our engine with theirs.

    @cvar kernelDevice: where they play, and C{near} by which address of ours its host is reached.
    """

    kernelDevice = RXE
    near = HERE
    payload = 4096

    def openLocal(self) -> IVerbsDevice:
        """Our device."""
        return self.world.openSoft(self.reactor)

    def where(self) -> AbstractContextManager[None]:
        """Where our sockets are made."""
        return self.world.far()

    def play(
        self, transfer: Transfer, size: int, iterations: int, weBegin: bool, *options: str
    ) -> Measurement:
        """A game; both must be content."""
        self.reactor = self.makeReactor()
        side = Side(
            self.reactor,
            lambda address: self.openLocal(),
            lambda device: device.close(),
            timeout=PATIENT,
            stallSeconds=50,
        )
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
            self.fail(f"{measurement.getErrorMessage()}; they say {output}")
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
        """Start theirs."""
        reference = IBVPingpong(transfer, self.kernelDevice, self.kernelGIDIndex(), *words)
        self.addCleanup(reference.process.wait)
        self.addCleanup(reference.process.kill)
        return reference

    def kernelGIDIndex(self) -> int:
        """Of the GID that is their IPv4 address."""
        folder = f"/sys/class/infiniband/{self.kernelDevice}/ports/1/gids"
        for index in range(8):
            with open(f"{folder}/{index}") as file:
                if file.read().startswith("0000:0000:0000:0000:0000:ffff:"):
                    return index
        raise AssertionError(f"{self.kernelDevice} has no GID of an IPv4 address")

    def localAddress(self) -> str:
        """Where they find us."""
        return THERE

    def test_connectedAndWeBegin(self) -> None:
        """Messages of some packets, back and forth; we are the client."""
        self.play(Transfer.SEND, 3000, 20, True, "-c")

    def test_connectedAndTheyBegin(self) -> None:
        """Messages of some packets; they are the client, and sleep until they are woken."""
        self.play(Transfer.SEND, 3000, 20, False, "-c", "-e")

    def test_longAndWeBegin(self) -> None:
        """Messages that leave by UDP_SEGMENT, many packets at once; we are the client."""
        self.play(Transfer.SEND, LONG, 6, True, "-c", "-e")

    def test_longAndTheyBegin(self) -> None:
        """Messages that leave by UDP_SEGMENT; they are the client."""
        self.play(Transfer.SEND, LONG, 6, False, "-c", "-e")

    def test_datagramsAndWeBegin(self) -> None:
        """Datagrams that fill a packet; we are the client."""
        self.play(Transfer.UD, self.payload, 20, True, "-e")

    def test_datagramsAndTheyBegin(self) -> None:
        """Short datagrams; they are the client."""
        self.play(Transfer.UD, 100, 20, False, "-c")


class SoftTests(Playing, SynchronousTestCase):
    """With our software device, packets of up to 4 KiB."""

    skip = OUTSIDE
    mtu = MTU_4096
    witness = Witness("software device", "ibv_rc_pingpong, ibv_ud_pingpong on rxe", "SEND, UD, 4 KiB MTU")

    def test_command(self) -> None:
        """C{txrdma pingpong --compatible} finds device and address by itself, and tells what it measured."""
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
    """With our software device, packets of up to 1 KiB."""

    skip = OUTSIDE
    mtu = MTU_1024
    payload = 1024
    witness = Witness("software device", "ibv_rc_pingpong, ibv_ud_pingpong on rxe", "SEND, UD, 1 KiB MTU")


class PyverbsTests(Playing, SynchronousTestCase):
    """With the kernel's device at the other end of the box's own wire, by pyverbs."""

    skip = OUTSIDE
    kernelDevice = "rxe0"
    near = "127.0.0.1"
    witness = Witness("pyverbs on rxe", "ibv_rc_pingpong, ibv_ud_pingpong on rxe", "SEND, UD, 4 KiB MTU")

    def openLocal(self) -> IVerbsDevice:
        """The kernel's."""
        return openDevice(self.reactor, "pyverbs:rxe1")

    def where(self) -> AbstractContextManager[None]:
        """Both ends are in the first namespace."""
        return nullcontext()

    def localAddress(self) -> str:
        """All on one host."""
        return "127.0.0.1"
