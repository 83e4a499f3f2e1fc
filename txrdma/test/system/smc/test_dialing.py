"""
Connections that are announced before they are made, and those that cannot be, on a real reactor.
"""

from __future__ import annotations

import json
import subprocess
import sys
from unittest import SkipTest

from twisted.trial.unittest import SynchronousTestCase

from txrdma.test.support import CHECKOUT
from txrdma.test.support.namespaces import unshared

SCARCE = """
import json, subprocess, sys
from collections import Counter
from twisted.internet.defer import Deferred
from twisted.internet.endpoints import clientFromString, serverFromString
from twisted.internet.protocol import Factory
from twisted.internet.task import react
from twisted.protocols.wire import Echo
from txrdma.testing.protocols import Recorder

class Client(Recorder):
    greeting = b"x"

async def serve(reactor):
    port = await serverFromString(reactor, "smc:0:interface=127.0.0.1").listen(Factory.forProtocol(Echo))
    print(port.getHost().port, flush=True)
    await Deferred()

async def connect(reactor, text, count):
    modes = Counter()
    endpoint = clientFromString(reactor, text)
    for _ in range(count):
        client = await endpoint.connect(Factory.forProtocol(Client))
        modes[client.transport.smc.mode] += 1
        await client.receiving(1)
        client.transport.loseConnection()
        await client.lost
    print(json.dumps(modes))

Factory.noisy = False
if len(sys.argv) == 1:
    react(serve)
elif len(sys.argv) == 3:
    react(connect, [sys.argv[1], int(sys.argv[2])])
else:
    low, high, count = map(int, sys.argv[1:])
    subprocess.run(["ip", "link", "set", "lo", "up"], check=True)
    with open("/proc/sys/net/ipv4/ip_local_port_range", "w") as file:
        file.write(f"{low} {high}")
    server = subprocess.Popen([sys.executable, "-c", sys.orig_argv[2]], stdout=subprocess.PIPE, text=True)
    try:
        text = f"smc:127.0.0.1:{int(server.stdout.readline())}"
        subprocess.run([sys.executable, "-c", sys.orig_argv[2], text, str(count)], check=True)
    finally:
        server.kill()
"""


class ScarcePortsTests(SynchronousTestCase):
    """Two processes in a network namespace with few client ports."""

    slowBecause = "two processes open hundreds of connections"

    PORTS, CONNECTIONS = 100, 350

    def test_portsOfOldConnectionsAreReused(self) -> None:
        before = unshared()
        if not before:
            raise SkipTest("no network namespace can be made here")
        low, high = 40_000, 40_000 + self.PORTS - 1
        command = [sys.executable, "-c", SCARCE, str(low), str(high), str(self.CONNECTIONS)]
        done = subprocess.run([*before, *command], capture_output=True, text=True, timeout=100, cwd=CHECKOUT)
        self.assertEqual((done.returncode, done.stderr), (0, ""))
        modes = json.loads(done.stdout)
        self.assertEqual(sum(modes.values()), self.CONNECTIONS)
        # Nearly all; a client that cannot announce uses TCP.
        self.assertGreater(modes["SMC-R"], 2 * self.PORTS)
