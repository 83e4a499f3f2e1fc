"""
C{device=auto} with real RDMA ports: tables of physical networks, and the ports selected by them.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Any

from twisted.trial.unittest import SynchronousTestCase

from txrdma.ports.pnet import kernelTable, Networks, rdmaPorts
from txrdma.ports.pnettable import PNETEntry
from txrdma.smc.common.realports import realPorts
from txrdma.test.support.processes import Program
from txrdma.test.system.kernel import Box, OUTSIDE, record, Witness
from txrdma.test.system.kernel.smcworld import PatientTestCase

BOXES = (Box(smc=True, timeout=300),)

SERVER = """
import sys
from twisted.internet import reactor
from twisted.internet.endpoints import serverFromString
from twisted.internet.protocol import Factory, Protocol
from txrdma.smc.handshake import _machine
_machine.CLC_TIMEOUT = 60.0

class Echo(Protocol):
    def dataReceived(self, data):
        smc = self.transport.smc
        self.transport.write(f"{smc.mode} {smc.route} {smc.device} ".encode() + data)

serverFromString(reactor, sys.argv[1]).listen(Factory.forProtocol(Echo)).addCallback(
    lambda port: print(port.getHost().port, flush=True))
reactor.run()
"""


class NetworkTests(SynchronousTestCase):
    """The tables of physical networks, as the kernel reports them."""

    skip = OUTSIDE
    witness = Witness("txrdma.ports.pnet", "smc_pnet", "PNET IDs and network interfaces of RDMA ports")

    def test_kernelTable(self) -> None:
        """The kernel's table equals what C{python -m lab.smc} has written."""
        table = kernelTable()
        networks = {each.member: each.network for each in table}
        self.assertEqual(set(networks), {"v0", "rxe0/1", "v1", "rxe1/1"})
        self.assertEqual(networks["v0"], networks["rxe0/1"])
        self.assertEqual(networks["v1"], networks["rxe1/1"])
        self.assertNotEqual(networks["v0"], networks["v1"])
        record("entries of the kernel's table", len(table))

    def test_netdev(self) -> None:
        """Each rxe device is on its interface."""
        found = {each.name: each.interfaces for each in rdmaPorts()}
        self.assertIn("v0", found["rxe0/1"])
        self.assertIn("v1", found["rxe1/1"])

    def test_ports(self) -> None:
        """An interface selects the port of its network, and without a table its own port."""
        seen = Networks.read()
        for tables in (seen.tables, ()):
            networks = Networks(seen.ports, tables, seen.interfaces)
            for name, port in (("v0", "rxe0/1"), ("v1", "rxe1/1"), ("lo", None)):
                interface = next(each for each in seen.interfaces if each.name == name)
                found = networks.portOf(interface).port
                self.assertEqual(None if found is None else found.name, port)

    def test_file(self) -> None:
        """The file overrides the kernel's table."""
        path = Path(self.mktemp())
        path.write_text("OTHER v0 rxe1/1\n")
        self.patch(os, "environ", {**os.environ, "TXRDMA_PNET": str(path)})
        seen = Networks.read()
        self.assertIn(PNETEntry("OTHER", "v0"), seen.tables[0])
        interface = next(each for each in seen.interfaces if each.name == "v0")
        found = seen.portOf(interface).port
        assert found is not None
        self.assertEqual(found.name, "rxe1/1")


class AutoTests(PatientTestCase):
    """Two processes, each with a table that assigns one of two devices to the loopback interface."""

    timeout = 150
    witness = Witness("smc: device=auto", "smc: device=auto", "SMC-R over pyverbs, ports found by PNET ID")

    def setUp(self) -> None:
        super().setUp()
        self.patch(realPorts, "_until", 0.0)

    def table(self, port: str) -> str:
        path = Path(self.mktemp()).absolute()
        path.write_text(f"BOX lo {port}\n")
        return str(path)

    async def serve_(self) -> int:
        """Start a server whose table names rxe1."""
        words = [sys.executable, "-c", SERVER, "smc:0:interface=127.0.0.1:peer=smc:timeout=60"]
        variables = {"TXRDMA_PNET": self.table("rxe1/1"), "PYTHONPATH": os.pathsep.join(sys.path)}
        server = Program.start(self, *words, **variables)
        return int(await server.line())

    async def answered(self, port: int) -> tuple[Any, bytes]:
        client = await self.connect(f"smc:127.0.0.1:{port}:peer=smc:timeout=60")
        client.transport.write(b"hello")
        return client, await client.receiving(len(b"SMC-R verbs rxe1 hello"))

    async def test_realPorts(self) -> None:
        """Both ends find their ports, and SMC-R connects the two devices."""
        port = await self.serve_()
        self.patch(os, "environ", {**os.environ, "TXRDMA_PNET": self.table("rxe0/1")})
        for _ in range(2):
            client, received = await self.answered(port)
            self.assertEqual(
                (client.smc.mode, client.smc.route, client.smc.device), ("SMC-R", "verbs", "rxe0")
            )
            self.assertEqual(received, b"SMC-R verbs rxe1 hello")
