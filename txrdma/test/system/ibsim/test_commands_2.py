"""
The commands for whole fabrics report what infiniband-diags finds in the same ibsim, with OpenSM on it.

Differences:

  - infiniband-diags considers 2X wider than 12X (its bit is higher) for the possible width of a link.
"""

from __future__ import annotations

import io
import re
import subprocess
from contextlib import redirect_stderr, redirect_stdout
from json import loads
from typing import Any

from twisted.internet.defer import Deferred
from twisted.internet.task import deferLater

from txrdma.commands.common.registry import command
from txrdma.error import RDMAError
from txrdma.mad.agent import MADAgent
from txrdma.mad.server import MADServer
from txrdma.mad.vendor import servePing, serveSysstat
from txrdma.sim.nets.fattree import fatTree
from txrdma.test.support.mad.simulated import TWO_SWITCHES
from txrdma.test.system.ibsim.fabric import EXAMPLE, IbsimTestCase, NO_EXAMPLES

_TRIES = 3
_START_SECONDS = 1.0, 5.0, 20.0
"""After which a server should be ready: a request that comes earlier lets it crash."""

_CRASHED = 128
"""From this number on, exit statuses are signals."""

_UNANSWERED = "unknown node and type"
"""What C{ibroute} prints for a node that a busy machine lets answer too late."""


class CommandsTestCase(IbsimTestCase):
    """
    Runs commands in this process.

    @ivar status: exit status of the last one.
    """

    net = TWO_SWITCHES.replace('Rt 2 "d"', 'Hca 2 "d"')
    hasSM = True
    status: object = 0

    async def output(self, name: str, *arguments: str) -> str:
        from twisted.internet import reactor

        each = command(name)
        options: Any = each.makeOptions()
        options.parseOptions(["-d", f"ibsim:{self.fabric.host}:{self.fabric.base}", *arguments])
        out, errors = io.StringIO(), io.StringIO()
        self.status = 0
        with redirect_stdout(out), redirect_stderr(errors):
            try:
                await Deferred.fromCoroutine(each.load().run(reactor, options))
            except SystemExit as end:
                self.status = end.code
            except RDMAError as error:
                self.status = str(error)
        return out.getvalue()

    async def answerTo(self, name: str, *arguments: str) -> Any:
        output = await self.output(name, *arguments, "--json")
        self.assertTrue(output, self.status)
        return loads(output)

    def reference(self, *words: str) -> str:
        for _ in range(_TRIES):
            try:
                output = self.fabric.run(*words)
                if _UNANSWERED not in output:
                    return output
            except subprocess.CalledProcessError as error:
                output = str(error.stdout)
                if output and 0 <= error.returncode < _CRASHED:
                    return output
        return output

    async def lids(self, *kinds: str) -> list[str]:
        return [str(node["lid"]) for node in await self.answerTo("nodes", *kinds) if node["lid"]]


class ListingTests(CommandsTestCase):
    async def test_nodes(self) -> None:
        line = re.compile(r'^\w+\s+: 0x(\w+) ports (\d+) "(.*?)"', re.MULTILINE)
        for option, tool in (("--hosts", "ibhosts"), ("--switches", "ibswitches")):
            ours = await self.answerTo("nodes", option)
            mine = {(node["guid"].replace(":", ""), str(node["numPorts"]), node["name"]) for node in ours}
            found = set(line.findall(self.reference(tool)))
            self.assertEqual(mine, found)
            self.assertTrue(found)


class RouteTests(CommandsTestCase):
    most = 6

    async def test_trace(self) -> None:
        nodes = await self.lids()
        own = str(self.portAt().endPort.lid)
        pairs = [(own, target) for target in nodes[: self.most]]
        pairs += list(zip(nodes[: self.most], nodes[1:], strict=False))
        for source, target in pairs:
            reference = self.reference("ibtracert", source, target)
            ours = await self.output("trace", source, target)
            self.assertEqual((ours, self.status), (reference, 0))
            administered = await self.output("trace", "--sa", source, target)
            self.assertEqual((administered.partition("\n")[2], self.status), (reference, 0))

    async def test_routes(self) -> None:
        switches = await self.lids("--switches")
        for lid in switches[: self.most]:
            self.assertEqual(
                await self.output("routes", lid), self.reference("ibroute", lid).rstrip("\n") + "\n"
            )
        everything = await self.answerTo("routes")
        self.assertEqual(sorted(str(each["lid"]) for each in everything), sorted(switches))


class ErrorTests(CommandsTestCase):
    async def test_clear(self) -> None:
        host = (await self.answerTo("nodes", "--hosts"))[-1]["description"]
        self.fabric.console(f'PerformanceSet "{host}"[1] PortCounters.SymbolErrorCounter=77')
        self.assertIn("[SymbolErrorCounter == 77]", self.reference("ibqueryerrors"))
        self.assertIn("[SymbolErrorCounter == 77]", await self.output("errors", "--clear", "--yes"))
        self.assertNotIn("SymbolErrorCounter", self.reference("ibqueryerrors"))


class VendorTests(CommandsTestCase):
    async def test_theirClients(self) -> None:
        host = (await self.answerTo("nodes", "--hosts"))[1]["description"]
        port = self.portAt(host, isSM=True)
        from twisted.internet import reactor

        agent = MADAgent(reactor, port)
        self.addCleanup(agent.close)
        server = MADServer(agent)
        servePing(server, "ours.example")
        serveSysstat(server, "ours.example")
        lid = str(port.endPort.lid)
        out, _, status = await self.fabric.spawn("ibping", "-c", "2", lid)
        self.assertIn(b"2 packets transmitted, 2 received, 0% packet loss", out)
        self.assertIn(b"Pong from ours.example", out)
        out, _, status = await self.fabric.spawn("ibsysstat", lid, "host")
        self.assertEqual((out, status), (b"ours.example\n", 0))
        out, _, status = await self.fabric.spawn("ibsysstat", lid)
        self.assertEqual((out, status), (b"sysstat ping succeeded\n", 0))

    async def test_theirServers(self) -> None:
        """C{txrdma ping} and C{txrdma sysstat} get answers from servers of infiniband-diags."""
        _, *hosts = await self.answerTo("nodes", "--hosts")
        # OpenSM would end these servers by requests to other managers, which they do not know.
        self.fabric._processes[-1].terminate()
        self.fabric._processes[-1].wait()
        for host, program, name in zip(hosts, ("ibping", "ibsysstat"), ("ping", "sysstat"), strict=False):
            for seconds in _START_SECONDS:
                reported = await self.askedServer(host, program, name, seconds)
                if reported.get("received") == 2 or reported.get("host"):
                    break
            else:
                self.fail(f"{program} does not answer: {reported}")

    async def askedServer(self, host: Any, program: str, name: str, seconds: float) -> Any:
        """Start a server of infiniband-diags; after some seconds, return the answer to our command."""
        from twisted.internet import reactor

        server = subprocess.Popen(
            self.fabric._found(("ibsim-run", program, "-S")),
            cwd=self.fabric.folder,
            env={**self.fabric.environment, "SIM_HOST": host["description"], "SIM_SET_ISSM": "1"},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        try:
            await deferLater(reactor, seconds)
            arguments = ("-c", "2", "-i", "0.1") if name == "ping" else ("host",)
            return loads(await self.output(name, str(host["lid"]), *arguments, "--json") or "{}")
        finally:
            server.terminate()
            server.wait()


class ExampleRouteTests(RouteTests):
    net = EXAMPLE
    skip = NO_EXAMPLES


class TreeRouteTests(RouteTests):
    net = fatTree(40, 8).text()
