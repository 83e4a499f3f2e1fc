"""
Several processes at one address: services, clients, and the process that coordinates them.
"""

from __future__ import annotations

import os
import signal
import subprocess
from collections.abc import Sequence
from pathlib import Path
from threading import Timer
from unittest import skipUnless

from twisted.trial.unittest import SynchronousTestCase, TestCase

from txrdma.soft.device import openSoftDevice
from txrdma.test.support.processes import loopbackAddress, started
from txrdma.test.support.soft.sharingports import memberOf
from txrdma.testing.reactors import RealTime, unqueuedSeconds

PROGRAM = "txrdma.test.support.cm.sharing"
PORTS = ("7471", "7472")
ROUTES = ("auto", "rocev2")
PATIENCE = 60
"""Seconds after which a process that has not ended is killed."""

TAKEOVER_SECONDS = 0.1
"""Limit of the time between the end of a coordinator and its replacement."""


CONTAINER = (
    *("unshare", "--user", "--map-current-user"),
    *("--mount", "--uts", "--ipc", "--pid", "--fork", "--kill-child", "--mount-proc"),
)
"""Words that run a command in new namespaces, except that of the network."""


def canUnshare() -> bool:
    """Return whether L{CONTAINER} works for this user."""
    try:
        return subprocess.run([*CONTAINER, "true"], capture_output=True).returncode == 0
    except OSError:
        return False


def delayed(process: subprocess.Popen[str]) -> float:
    """Return the seconds for which a process, even a killed one, was runnable without a processor."""
    return int(Path(f"/proc/{process.pid}/schedstat").read_text().split()[1]) * 1e-9


class SharingTests(TestCase):
    """
    Two services and several clients, each in its own process, at one address.

    @cvar clients: number of clients while processes are killed.
    @cvar questions: number of times that each of them asks each service.
    @cvar kills: number of processes that are killed.
    """

    slowBecause = "seven to ten processes start"
    clients = 4
    questions = 12
    kills = 3

    def setUp(self) -> None:
        self.address = loopbackAddress()
        self.errors: dict[subprocess.Popen[str], Path] = {}

    def start(
        self,
        role: str,
        route: str,
        count: int,
        *ports: str,
        address: str = "",
        before: Sequence[str] = (),
    ) -> subprocess.Popen[str]:
        """
        Start a process, with the server's address unless it gets its own.

        @param before: words before the command.
        """
        device = f"soft:{address or self.address}:route={route}"
        words = (role, device, self.address, str(count), *ports)
        errors = Path(self.mktemp())
        with errors.open("w") as stderr:
            process = started(self, "-m", PROGRAM, *words, before=before, stderr=stderr)
        self.errors[process] = errors
        return process

    def printed(self) -> str:
        """Return what all processes have written to standard error."""
        return "".join(errors.read_text() for errors in self.errors.values())

    def awaitReady(self, process: subprocess.Popen[str]) -> None:
        self.assertIn("ready", self.line(process), self.printed())

    def line(self, process: subprocess.Popen[str]) -> str:
        """Return the next line that a process prints."""
        assert process.stdout is not None
        return process.stdout.readline().strip()

    def begin(self) -> list[subprocess.Popen[str]]:
        """Start the coordinator, and the services."""
        coordinator = self.start("idle", "auto", 0)
        self.awaitReady(coordinator)
        servers = [self.start("server", "auto", 0, port) for port in PORTS]
        for server in servers:
            self.awaitReady(server)
        return [coordinator, *servers]

    def finish(self, clients: list[subprocess.Popen[str]]) -> None:
        """Check that each client has received all its answers."""
        for client in clients:
            assert client.stdout is not None
            watchdog = Timer(PATIENCE, client.kill)
            watchdog.start()
            output = client.stdout.read()  # including what readline has buffered
            client.wait()
            watchdog.cancel()
            ended = output.split()[-1:], client.returncode
            self.assertEqual(ended, (["done"], 0), self.printed())

    def test_killed(self) -> None:
        """When coordinators and clients are killed, the other clients get all answers."""
        idle = self.begin()[:1]
        routes = ROUTES * (self.clients // 2)
        clients = [self.start("client", route, self.questions, *PORTS) for route in routes]
        for client in clients:
            self.assertEqual(self.line(client), "0")
        victim = idle[0]
        for number in range(self.kills):
            victim.kill()
            if victim in idle:
                idle = [self.start("idle", "auto", 0)]
                self.awaitReady(idle[0])
            else:
                clients.remove(victim)
            self.line(clients[number % len(clients)])
            victim = idle[0] if number % 2 or len(clients) <= self.clients // 2 else clients[-1]
        self.finish(clients)

    def test_nextCoordinator(self) -> None:
        """
        A service that another process provides cannot be listened for until that process ends. After a
        coordinator and its successor have been killed, new clients can connect.
        """
        coordinator, *servers = self.begin()
        late = self.start("server", "auto", 0, PORTS[0])
        late.communicate(timeout=60)
        self.assertIn("is in use by another program", self.errors[late].read_text())
        servers[0].kill()
        servers[0].wait()
        self.awaitReady(self.start("server", "auto", 0, PORTS[0]))
        for _ in range(2):
            follower = self.start("idle", "auto", 0)
            self.awaitReady(follower)
            coordinator.kill()
            self.finish([self.start("client", route, 1, *PORTS) for route in ROUTES])
            coordinator = follower

    def test_stopped(self) -> None:
        """
        A coordinator that is stopped is replaced; when it runs again, it is a member. Clients at another
        address, which they share as well, use both services.
        """
        coordinator = self.begin()[0]
        other = "127.251." + self.address.partition(".")[2].partition(".")[2]
        for each, address in ((signal.SIGSTOP, ""), (signal.SIGCONT, other)):
            coordinator.send_signal(each)
            self.finish([self.start("client", route, 1, *PORTS, address=address) for route in ROUTES])

    @skipUnless(canUnshare(), "no namespaces can be created here")
    def test_namespaces(self) -> None:
        """
        Processes share an address if they have the same user and network namespace; as with containers, their
        other namespaces may differ. One of them replaces a killed coordinator on the host.
        """
        coordinator = self.start("idle", "auto", 0)
        self.awaitReady(coordinator)
        for port, before in zip(PORTS, ((), CONTAINER), strict=True):
            self.awaitReady(self.start("server", "auto", 0, port, before=before))
        for befores in (((), CONTAINER), (CONTAINER, ())):
            started = zip(ROUTES, befores, strict=True)
            self.finish([self.start("client", route, 2, *PORTS, before=before) for route, before in started])
            coordinator.kill()


class TakeoverTests(RealTime, SynchronousTestCase):
    """The device of this process, and a coordinator in another process."""

    slowBecause = "three processes start"
    slowness = 10.0

    def setUp(self) -> None:
        self.createReactor()
        self.address = loopbackAddress()

    def coordinator(self) -> subprocess.Popen[str]:
        """Start a process that becomes the coordinator."""
        process = started(self, "-m", PROGRAM, "idle", f"soft:{self.address}", self.address, "0")
        assert process.stdout is not None
        self.assertIn("ready", process.stdout.readline())
        return process

    def takeover(self) -> float:
        """Return the seconds until a member replaces a killed coordinator, both of which had a processor."""
        coordinator = self.coordinator()
        device = openSoftDevice(self.reactor, (self.address,))
        self.addCleanup(device.close)
        member = memberOf(device)
        self.runUntil(lambda: member.isAnswered)
        self.assertFalse(member.isCoordinator)
        delay, begun = delayed(coordinator), unqueuedSeconds()
        coordinator.kill()
        os.waitid(os.P_PID, coordinator.pid, os.WEXITED | os.WNOWAIT)
        delay = delayed(coordinator) - delay
        self.runUntil(lambda: member.isCoordinator)
        seconds = unqueuedSeconds() - begun - delay
        device.close()
        return seconds

    def test_seconds(self) -> None:
        """A member replaces a killed coordinator within 0.1 seconds."""
        for _ in range(3):
            self.assertLess(self.takeover(), TAKEOVER_SECONDS)
