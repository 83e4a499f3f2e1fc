"""
Processes that share an address are killed at random, while the kernel's programs use others of them.
"""

from __future__ import annotations

import time
from random import Random
from typing import Final

from twisted.internet.endpoints import quoteStringArgument

from txrdma.test.system.kernel import Box, record, Witness
from txrdma.test.system.kernel.cmworld import Program, ProgramTestCase, SHOWN
from txrdma.test.system.kernel.world import PACE

BOXES = (Box(rxe=False, memory=2048, timeout=1500),)

PORTS: Final = ("7471", "7472")
RPING, RSTREAM = "7174", "7473"
ROUTES: Final = ("auto", "rocev2")
SHAPE: Final = ("1000", "50", "2")
"""Bytes, transfers and iterations of each C{rstream}."""

PINGS: Final = 5
"""Number of pings that must succeed after each end of a process."""

SECONDS: Final = 20.0 * PACE
"""Limit of each wait: all processes start at the same time."""


class SharingTests(ProgramTestCase):
    """
    Two services, ten clients, a server of C{rping} and one of C{rstream}, each in its own process.

    @cvar clients: number of clients.
    @cvar questions: number of times that each client asks each service.
    @cvar kills: number of processes that are killed, one after the other: coordinators and clients.
    """

    witness = Witness(
        "14 processes at one address", "rping, rstream on rxe", "killed at random: coordinators, clients"
    )
    programs = ("rping", "rstream")
    clients = 10
    questions = 8
    kills = 4

    def setUp(self) -> None:
        super().setUp()
        seed = Random().randrange(1 << 32)
        self.random = Random(seed)
        record("seed", seed)

    def sharing(self, role: str, route: str, count: int, *ports: str) -> Program:
        """Start one of the processes at the address."""
        device = f"soft:{quoteStringArgument(self.there)}:route={route}"
        return self.ours("txrdma.test.support.cm.sharing", role, device, self.there, str(count), *ports)

    def waitFor(self, program: Program, word: str, times: int = 1, ends: bool = False) -> None:
        """Wait until a program has printed a word, or, with C{ends}, until it has ended afterwards."""
        until = time.monotonic() + SECONDS
        while program.output.count(word) < times or (ends and not program.isOver):
            if time.monotonic() > until or (program.isOver and program.output.count(word) < times):
                self.fail(f"{program.process.args!r} did not print {word!r}: {program.output[-SHOWN:]!r}")
            time.sleep(0.1)

    def coordinator(self) -> Program:
        """Start a process that becomes the coordinator if there is none."""
        idle = self.sharing("idle", "auto", 0)
        self.waitFor(idle, "ready")
        return idle

    def test_killed(self) -> None:
        """The remaining clients get all answers, rping continues, and each rstream succeeds."""
        idle = self.coordinator()
        servers = [self.sharing("server", "auto", 0, port) for port in PORTS]
        endpoint = f"rsocket:{quoteStringArgument(self.there)}:{RSTREAM}"
        shapes = [",".join(SHAPE)] * self.kills
        streaming = self.ours("txrdma.test.system.kernel.rstreamer", "server", endpoint, *shapes)
        pinged = self.ours("txrdma", "rping", "-s", "-a", self.there, "-p", RPING, "-d")
        for program, word in (
            *((each, "ready") for each in servers),
            (streaming, "listening"),
            (pinged, "listening"),
        ):
            self.waitFor(program, word)
        routes = ROUTES * (self.clients // 2)
        clients = [self.sharing("client", route, self.questions, *PORTS) for route in routes]
        for client in clients:
            self.waitFor(client, "0\n")
        ping = ("rping", "-c", "-a", self.there, "-I", self.here, "-p", RPING, "-V", "-v", "-C", "1000000")
        pinging = self.start(*ping)
        victim = idle
        for number in range(self.kills):
            size, count, iterations = SHAPE
            options = ("-S", size, "-C", count, "-I", iterations, "-p", RSTREAM, "-T", "v")
            stream = self.start("rstream", *options, "-s", self.there, "-b", self.here)
            victim.process.kill()
            victim.process.wait()
            pings = pinging.output.count("ping data")
            self.waitFor(pinging, "ping data", pings + PINGS)
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
            self.assertEqual(client.process.returncode, 0, client.output)
        self.assertFalse(pinging.isOver, pinging.output[-SHOWN:])
