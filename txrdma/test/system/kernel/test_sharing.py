"""
Processes that share an address are killed at random, while the kernel's programs use others of them.
"""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from random import Random
from typing import Final

from twisted.internet.endpoints import quoteStringArgument

from txrdma.test.system.kernel import Box, record, Witness
from txrdma.test.system.kernel.cmworld import Program, ProgramTestCase, SHOWN
from txrdma.test.system.kernel.smcworld import environment
from txrdma.test.system.kernel.world import NAMESPACE, PACE

BOXES = (Box(rxe=False, memory=2048, timeout=1500),)

ENTER: Final = ("ip", "netns", "exec", NAMESPACE)
PORTS: Final = ("7471", "7472")
RPING, RSTREAM = "7174", "7473"
ROUTES: Final = ("auto", "rocev2")
SHAPE: Final = ("1000", "50", "2")
"""Bytes, transfers and iterations of each C{rstream}."""

PINGS: Final = 5
"""Number of pings that must succeed after each end of a process."""

SECONDS: Final = 20.0 * PACE
"""Limit of each wait."""


class Forked:
    """A process that L{txrdma.test.support.cm.sharing.forkAll} has forked, which writes to a file."""

    def __init__(self, words: str) -> None:
        self.words, self._path = words, Path("output").with_suffix(f".{time.monotonic_ns()}").absolute()

    @property
    def line(self) -> str:
        """Return the line that requests the process."""
        return f"{self._path} {self.words}\n"

    @property
    def output(self) -> str:
        """Return all output so far."""
        return self._path.read_text(errors="replace") if self._path.exists() else ""

    @property
    def isOver(self) -> bool:
        """Return whether the process has ended, unless it was killed."""
        return "exited" in self.output

    def kill(self) -> None:
        """Kill the process, unless it has ended."""
        if not self.isOver:
            with contextlib.suppress(ProcessLookupError):
                os.kill(int(self.output.split()[1]), signal.SIGKILL)


class SharingTests(ProgramTestCase):
    """
    Two services, ten clients, a server of C{rping} and one of C{rstream}, each in its own process.

    @cvar clients: number of clients.
    @cvar questions: number of times that each client asks each service, and the seconds between.
    @cvar kills: number of processes that are killed, one after the other: coordinators and clients.
    """

    witness = Witness(
        "14 processes at one address", "rping, rstream on rxe", "killed at random: coordinators, clients"
    )
    programs = ("rping", "rstream")
    clients = 10
    questions = "8:10"
    kills = 4

    def setUp(self) -> None:
        super().setUp()
        seed = Random().randrange(1 << 32)
        self.random = Random(seed)
        record("seed", seed)
        self.forking = subprocess.Popen(
            (*ENTER, sys.executable, "-m", "txrdma.test.support.cm.sharing", "fork"),
            stdin=subprocess.PIPE,
            env=environment(),
            text=True,
        )
        self.addCleanup(self.forking.communicate)  # it ends with its input

    def sharing(self, role: str, route: str, count: str, *ports: str) -> Forked:
        """Start one of the processes at the address."""
        device = f"soft:{quoteStringArgument(self.there)}:route={route}"
        forked = Forked(" ".join((role, device, self.there, count, *ports)))
        assert self.forking.stdin is not None
        self.forking.stdin.write(forked.line)
        self.forking.stdin.flush()
        self.waitFor(forked, "\n")
        self.addCleanup(forked.kill)
        return forked

    def waitFor(self, program: Program | Forked, word: str, times: int = 1, ends: bool = False) -> None:
        """Wait until a program has printed a word, or, with C{ends}, until it has ended afterwards."""
        until = time.monotonic() + SECONDS
        while program.output.count(word) < times or (ends and not program.isOver):
            if time.monotonic() > until or (program.isOver and program.output.count(word) < times):
                name = program.words if isinstance(program, Forked) else repr(program.process.args)
                self.fail(f"{name} did not print {word!r}: {program.output[-SHOWN:]!r}")
            time.sleep(0.1)

    def coordinator(self) -> Forked:
        """Start a process that becomes the coordinator if there is none."""
        idle = self.sharing("idle", "auto", "0")
        self.waitFor(idle, "ready")
        return idle

    def test_killed(self) -> None:
        """The remaining clients get all answers, rping continues, and each rstream succeeds."""
        idle = self.coordinator()
        servers = [self.sharing("server", "auto", "0", port) for port in PORTS]
        endpoint = f"rsocket:{quoteStringArgument(self.there)}:{RSTREAM}"
        shapes = [",".join(SHAPE)] * self.kills
        streaming = self.ours("txrdma.test.system.kernel.rstreamer", "server", endpoint, *shapes)
        pinged = self.ours("txrdma", "rping", "-s", "-a", self.there, "-p", RPING, "-d")
        for server in servers:
            self.waitFor(server, "ready")
        for program in (streaming, pinged):
            self.waitFor(program, "listening")
        routes = ROUTES * (self.clients // 2)
        clients = []
        for route in routes:  # one after the other: concurrent starts exceed the client's timeout
            clients.append(self.sharing("client", route, self.questions, *PORTS))
            self.waitFor(clients[-1], "\n0\n")
        ping = ("rping", "-c", "-a", self.there, "-I", self.here, "-p", RPING, "-V", "-v", "-C", "1000000")
        pinging = self.start(*ping)
        self.waitFor(pinging, "ping data", PINGS)
        victim = idle
        for number in range(self.kills):
            size, count, iterations = SHAPE
            options = ("-S", size, "-C", count, "-I", iterations, "-p", RSTREAM, "-T", "v")
            stream = self.start("rstream", *options, "-s", self.there, "-b", self.here)
            victim.kill()
            pinging.process.send_signal(signal.SIGCONT)
            pings = pinging.output.count("ping data")
            self.waitFor(pinging, "ping data", pings + PINGS)
            pinging.process.send_signal(signal.SIGSTOP)  # otherwise it takes most of the processor time
            self.waitFor(stream, "", ends=True)
            self.assertEqual(stream.process.returncode, 0, stream.output)
            if victim is idle:
                idle = self.coordinator()
            else:
                clients.remove(victim)
            victim = idle if number % 2 else self.random.choice(clients[self.clients // 2 :])
        self.waitFor(streaming, "verified", self.kills)
        for client in clients:
            self.waitFor(client, "done", ends=True)
            self.assertIn("done\nexited 0\n", client.output)
        self.assertFalse(pinging.isOver, pinging.output[-SHOWN:])
