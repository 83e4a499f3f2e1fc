"""
A private ibsim for a test, with or without OpenSM, and Debian's tools in it.

Names of sockets, folder and processes are unique, so that several can run concurrently.
"""

from __future__ import annotations

import itertools
import os
import shutil
import signal
import socket
import subprocess
import tempfile
import threading
import time
from collections.abc import Mapping
from itertools import zip_longest
from pathlib import Path
from typing import Any

from twisted.internet.defer import Deferred
from twisted.internet.utils import getProcessOutputAndValue
from twisted.trial.unittest import TestCase

from txrdma.iba.verbs import NodeType
from txrdma.mad.agent import MADAgent
from txrdma.mad.ports.ibsim import IbsimPort
from txrdma.sim.nets.netfile import parseNet
from txrdma.test.support.processes import suspend
from txrdma.test.system.ibsim import OUTSIDE

START_SECONDS = 60.0
STOP_SECONDS = 5.0
MOST_DIFFERENCES = 10
_NOTHING = "nothing"
_PROMPT = "sim> "
"""What ibsim prints when it is ready, and after each command of its console."""
_numbers = itertools.count()


class Ibsim:
    """
    A running ibsim.

    @ivar base: prefix of the names of its sockets.
    @ivar environment: environment of programs that use it.
    @ivar host: the host to which tools attach: the first one.
    """

    def __init__(self, net: str, hasSM: bool, smConfiguration: str = "") -> None:
        """
        Start ibsim, and OpenSM at the last host, and wait until OpenSM reports that the subnet is up.

        @param net: the text of a net file; one end of each link is sufficient.
        """
        parsed = parseNet(net)
        nodes = parsed.nodes.values()
        hosts = [node.identifier for node in nodes if node.kind is not NodeType.SWITCH and 1 in node.links]
        self.host, self._hosts = hosts[0], hosts
        self.folder = Path(tempfile.mkdtemp(prefix="txrdma-ibsim-"))
        self.base = f"txrdma-{os.getpid()}-{next(_numbers)}"
        self.environment = {
            **{name: value for name, value in os.environ.items() if not name.startswith("IBSIM_")},
            "PATH": os.environ.get("PATH", "") + ":/usr/sbin:/sbin",
            "IBSIM_SOCKNAME": self.base,
            "SIM_HOST": self.host,
        }
        for name in ("LD_PRELOAD", "SIM_SET_ISSM"):
            self.environment.pop(name, None)
        self._processes: list[subprocess.Popen[bytes]] = []
        self._console = -1
        try:
            self._startSimulator(parsed.text(), nodes)
            if hasSM:
                self._startManager(hosts[-1], smConfiguration)
        except BaseException:
            self.stop()
            raise

    def _startSimulator(self, net: str, nodes: Any) -> None:
        (self.folder / "net").write_text(net)
        os.mkfifo(self.folder / "console")
        self._console = os.open(self.folder / "console", os.O_RDWR)  # both ends open: without an end of file
        count = len(nodes)
        ports = sum(node.ports + 1 for node in nodes)
        sizes = ("-N", str(count + 1), "-S", str(count + 1), "-P", str(ports + 1))
        self._start("ibsim.log", {}, "ibsim", "-s", *sizes, str(self.folder / "net"), console=self._console)
        self._await("ibsim.log", _PROMPT)
        self._awaitSocket()

    def _startManager(self, host: str, configuration: str) -> None:
        self._manage(host, configuration, self.folder)
        self._await("opensm.log", "SUBNET UP")

    def _manage(self, host: str, configuration: str, folder: Path) -> None:
        """Start OpenSM at a host, with its files in a folder."""
        (folder / "opensm.conf").write_text(f"force_log_flush TRUE\n{configuration}\n")
        settings = {"SIM_HOST": host, "OSM_CACHE_DIR": str(folder), "OSM_TMP_DIR": str(folder)}
        options = ("-F", str(folder / "opensm.conf"), "-f", str(folder / "opensm.log"), "-s", "0")
        self._start(f"{folder.name}.out", settings, "ibsim-run", "opensm", *options)

    def standBy(self, host: str, configuration: str = "") -> None:
        """Start another OpenSM at a host, and wait until it is in standby."""
        folder = self.folder / "standby"
        folder.mkdir()
        self._manage(host, configuration, folder)
        self._await("standby/opensm.log", "Entering STANDBY state")

    def stopManager(self) -> None:
        """End the master OpenSM; the standby takes over."""
        self._endManager(signal.SIGTERM)

    def killManager(self) -> None:
        """Kill the master OpenSM; the standby takes over."""
        self._endManager(signal.SIGKILL)

    def _endManager(self, number: signal.Signals) -> None:
        """
        End the master while the standby has no request outstanding.

        A request that reaches the master and is not answered never times out: ibsim reports only what it
        cannot deliver. The standby would wait for it for ever in its first sweep.
        """
        manager, standby = self._processes.pop(1), self._processes[-1]
        suspend(standby.pid)
        self.run("sminfo", host=self._hosts[1])  # answered after all requests of the standby
        manager.send_signal(number)
        manager.wait(START_SECONDS)
        standby.send_signal(signal.SIGCONT)

    def _start(self, log: str, settings: Mapping[str, str], *words: str, console: int | None = None) -> None:
        with open(self.folder / log, "wb") as out:
            process = subprocess.Popen(
                self._found(words),
                cwd=self.folder,
                env={**self.environment, **settings},
                stdin=subprocess.DEVNULL if console is None else console,
                stdout=out,
                stderr=out,
            )
        self._processes.append(process)

    def _found(self, words: tuple[str, ...]) -> list[str]:
        program = shutil.which(words[0], path=self.environment["PATH"])
        if program is None:
            raise FileNotFoundError(words[0])
        return [program, *words[1:]]

    def _await(self, log: str, text: str, count: int = 1) -> None:
        """Wait until a log has this text so often, unless the process that was started last ends."""
        end = time.monotonic() + START_SECONDS
        pause = threading.Event()
        while self.log(log).count(text) < count:
            if self._processes[-1].poll() is not None or time.monotonic() > end:
                raise RuntimeError(f"no {text!r} in {log}: {self.log(log)[-2000:]}")
            pause.wait(0.02)

    def _awaitSocket(self) -> None:
        end = time.monotonic() + START_SECONDS
        pause = threading.Event()
        with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as probe:
            while probe.connect_ex(f"\0{self.base}:ctl\0"):
                if time.monotonic() > end:
                    raise RuntimeError(f"ibsim has no socket: {self.log()[-2000:]}")
                pause.wait(0.02)

    def log(self, name: str = "ibsim.log") -> str:
        try:
            return (self.folder / name).read_text(errors="replace")
        except FileNotFoundError:
            return ""

    def console(self, line: str) -> None:
        """Let ibsim execute a command, and wait until it has."""
        count = self.log().count(_PROMPT)
        os.write(self._console, line.encode() + b"\n")
        self._await("ibsim.log", _PROMPT, count + 1)

    def run(self, *words: str, host: str = "") -> str:
        """
        Return the output of one of Debian's tools, attached to a host.

        @raise subprocess.CalledProcessError: it failed.
        """
        done = subprocess.run(
            self._found(("ibsim-run", *words)),
            cwd=self.folder,
            env={**self.environment, "SIM_HOST": host or self.host},
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=START_SECONDS,
        )
        done.check_returncode()
        return done.stdout

    def spawn(self, *words: str, host: str = "") -> Deferred[Any]:
        program, *rest = self._found(("ibsim-run", *words))
        settings = {**self.environment, "SIM_HOST": host or self.host}
        done: Deferred[Any] = getProcessOutputAndValue(program, rest, env=settings, path=str(self.folder))
        return done

    def pause(self) -> None:
        suspend(self._processes[0].pid)

    def goOn(self) -> None:
        self._processes[0].send_signal(signal.SIGCONT)

    def stop(self) -> None:
        processes, self._processes = self._processes, []
        for process in reversed(processes):
            if process.poll() is None:
                process.terminate()
                try:
                    process.wait(STOP_SECONDS)
                except subprocess.TimeoutExpired:
                    process.kill()
                    process.wait()
        if self._console >= 0:
            os.close(self._console)
            self._console = -1
        shutil.rmtree(self.folder, ignore_errors=True)


EXAMPLES = Path("/usr/share/doc/ibsim-utils/net-examples")


def example(name: str) -> str:
    try:
        return parseNet((EXAMPLES / name).read_text()).text()
    except OSError:
        return ""


EXAMPLE = example("net.2sw2path4hca")
"""Two switches, two paths between them, four hosts."""

NO_EXAMPLES = OUTSIDE or ("" if EXAMPLE else "ibsim's examples are not installed") or None
"""Why tests of the examples skip, or None."""


class IbsimTestCase(TestCase):
    """
    A test in a fabric of ibsim.

    @cvar net: the text of its net file. @cvar hasSM: whether OpenSM configures it. @cvar smConfiguration:
        options of OpenSM, in addition to the necessary ones.
    """

    blocksBecause = "It runs the programs of infiniband-diags until they end."
    skip = OUTSIDE
    slowBecause = "starts ibsim, most often OpenSM, and programs of infiniband-diags"
    timeout = 120
    net = ""
    hasSM = False
    smConfiguration = ""

    def setUp(self) -> None:
        self.addTypeEqualityFunc(list, self._sameLists)
        self.fabric = Ibsim(self.net, self.hasSM, self.smConfiguration)
        self.addCleanup(self.fabric.stop)

    def _sameLists(self, first: list[Any], second: list[Any], msg: object = None) -> None:
        pairs = zip_longest(first, second, fillvalue=_NOTHING)
        different = [f"{at}: {one!r} != {other!r}" for at, (one, other) in enumerate(pairs) if one != other]
        if different:
            reported = "\n".join(different[:MOST_DIFFERENCES])
            self.fail(f"{msg or 'lists differ'}, in {len(different)} places of {len(first)}:\n{reported}")

    def portAt(self, node: str = "", isSM: bool = False) -> IbsimPort:
        from twisted.internet import reactor

        port = IbsimPort(reactor, self.fabric.base, node or self.fabric.host, isSM)
        self.addCleanup(port.close)
        return port

    def agentAt(self, node: str = "") -> MADAgent:
        from twisted.internet import reactor

        agent = MADAgent(reactor, self.portAt(node), timeoutSeconds=2.0, retries=1)
        self.addCleanup(agent.close)
        return agent
