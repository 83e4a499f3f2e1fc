"""
Programs without SMC support, whose TCP sockets become AF_SMC sockets, and HTTP over txrdma's SMC-R.

A preloaded library, compiled in the guest, replaces the address family of sockets. txrdma's ends accept SMC-R
only (C{fallback=no}), so all data is carried by it.
"""

from __future__ import annotations

import json
import os
import re
import socket
import subprocess
import sys
import tempfile
import time
from hashlib import sha256
from pathlib import Path
from random import Random
from typing import Any
from unittest import SkipTest

from treq.client import HTTPClient

from twisted.internet.endpoints import clientFromString, serverFromString
from twisted.internet.protocol import connectionDone, Factory, Protocol
from twisted.internet.task import deferLater
from twisted.python.failure import Failure
from twisted.web.client import Agent

from txrdma.smc.kernel.sockdiag import kernelSockets
from txrdma.smc.terms.options import Options
from txrdma.test.support.smc.ends import EndsTestCase, reactor
from txrdma.test.system.kernel import Box, OUTSIDE, record, Witness
from txrdma.test.system.kernel.smcworld import environment, HERE, OURS, THERE, UEID
from txrdma.testing.reactors import waitUntil
from txrdma.web import SMCAgentEndpointFactory

BOXES = (Box(smc=True, timeout=400),)

SOURCE = Path(__file__).with_name("smcfamily.c")
LENGTH = 4 << 20
ONLY = f"{OURS}:fallback=no"
START_SECONDS = 60.0
END_SECONDS = 15.0


NGINX = """
daemon off;
master_process off;
pid nginx.pid;
events {{}}
http {{
    access_log off;
    client_body_temp_path body;
    proxy_temp_path proxy;
    fastcgi_temp_path fastcgi;
    uwsgi_temp_path uwsgi;
    scgi_temp_path scgi;
    server {{ listen {address}:{port}; root {folder}; }}
}}
"""
"""A configuration that writes only to the folder in which nginx is started."""


def freePort() -> int:
    """Return an unused port of the other end's address."""
    with socket.create_server((THERE, 0)) as free:
        return int(free.getsockname()[1])


class ProgramTestCase(EndsTestCase):
    """A test with programs in their own processes."""

    timeout = 150

    def setUp(self) -> None:
        super().setUp()
        temporary = tempfile.TemporaryDirectory()
        self.addCleanup(temporary.cleanup)
        self.folder = Path(temporary.name)
        self.library = self.folder / "smcfamily.so"
        words = ["cc", "-shared", "-fPIC", "-o", str(self.library), str(SOURCE), "-ldl"]
        subprocess.run(words, check=True)
        self.content = Random(5).randbytes(LENGTH)
        (self.folder / "content").write_bytes(self.content)

    def start(self, *words: str, swapped: bool) -> tuple[subprocess.Popen[bytes], Path]:
        """Start a program, optionally with AF_SMC sockets; return its process and output file."""
        kernelStatus = self.folder / f"said-{len(list(self.folder.iterdir()))}"
        settings = environment()
        if swapped:
            settings["LD_PRELOAD"] = str(self.library)
        with open(kernelStatus, "wb") as file:
            process = subprocess.Popen(
                words, env=settings, stdin=subprocess.DEVNULL, stdout=file, stderr=subprocess.STDOUT
            )
        self.addCleanup(self._end, process)
        return process, kernelStatus

    async def _end(self, process: subprocess.Popen[bytes]) -> None:
        process.terminate()
        self.assertIsNotNone(await self.status(process, END_SECONDS))

    async def status(self, process: subprocess.Popen[bytes], seconds: float) -> int | None:
        """Return the exit status of a process, or None after a timeout."""
        end = time.monotonic() + seconds
        while process.poll() is None and time.monotonic() < end:
            await deferLater(reactor, 0.05)
        return process.returncode

    async def found(self, kernelStatus: Path, pattern: str) -> str:
        """Wait until a program's output matches; return the match."""
        try:
            await waitUntil(reactor, lambda: re.search(pattern, kernelStatus.read_text()), START_SECONDS)
        except AssertionError:
            self.fail(f"only this was printed: {kernelStatus.read_text()!r}")
        return str(re.findall(pattern, kernelStatus.read_text())[0])


class HTTPTests(ProgramTestCase):
    skip = OUTSIDE
    witness = Witness(
        "twistd web --listen smc:, treq",
        "curl, nginx and Python's http.server over AF_SMC",
        "files by HTTP, hashes",
    )

    async def test_curl(self) -> None:
        """curl fetches a file of C{twistd web}."""
        listen = rf"--listen=smc:{HERE}:0:{ONLY}"
        words = (sys.executable, "-m", "twisted", "web", listen, f"--path={self.folder}")
        _, kernelStatus = self.start(*words, swapped=False)
        port = await self.found(kernelStatus, r"starting on (\d+)")
        address = f"http://{HERE}:{port}/content"
        got = str(self.folder / "got")
        curl, complaint = self.start(
            "curl", "--silent", "--show-error", "--interface", THERE, "--output", got, address, swapped=True
        )
        self.assertEqual(await self.status(curl, 60), 0, complaint.read_text())
        self.assertEqual(sha256((self.folder / "got").read_bytes()).digest(), sha256(self.content).digest())

    async def test_treq(self) -> None:
        """treq fetches a file of Python's own server."""
        words = (sys.executable, "-m", "http.server", "0", f"--bind={THERE}", f"--directory={self.folder}")
        _, kernelStatus = self.start(*words, swapped=True)
        port = await self.found(kernelStatus, r"port (\d+)")
        self.assertEqual(await self.fetched(f"http://{THERE}:{port}/content"), sha256(self.content).digest())

    async def test_nginx(self) -> None:
        """treq fetches a file of nginx."""
        program = os.environ.get("LAB_NGINX")
        if program is None:
            raise SkipTest("nginx could not be fetched")
        number = freePort()
        (self.folder / "nginx.conf").write_text(NGINX.format(address=THERE, port=number, folder=self.folder))
        words = (program, "-e", "stderr", "-p", str(self.folder), "-c", "nginx.conf")
        process, kernelStatus = self.start(*words, swapped=True)
        await waitUntil(
            reactor,
            lambda: process.poll() is not None or any(each.state == "LISTEN" for each in kernelSockets()),
            START_SECONDS,
        )
        self.assertIsNone(process.poll(), kernelStatus.read_text())
        self.assertEqual(
            await self.fetched(f"http://{THERE}:{number}/content"), sha256(self.content).digest()
        )

    async def fetched(self, address: str) -> bytes:
        """Return the SHA-256 of what txrdma's client downloads, over SMC-R only."""
        options = Options(
            device="pyverbs:rxe0", ueids=(UEID,), bindAddress=HERE, timeout=30.0, fallback=False
        )
        client = HTTPClient(
            Agent.usingEndpointFactory(reactor, SMCAgentEndpointFactory(reactor, options=options))
        )
        response = await client.get(address)
        self.assertEqual(response.code, 200)
        return sha256(await response.content()).digest()


class Half(Protocol):
    """One side of a forwarded connection, which queues data until the other side exists."""

    transport: Any
    other: Any = None

    def __init__(self) -> None:
        self.waiting: list[bytes] = []

    def join(self, other: Half) -> None:
        self.other = other
        for data in self.waiting:
            other.transport.write(data)
        other.transport.registerProducer(self.transport, True)

    def dataReceived(self, data: bytes) -> None:
        if self.other is None:
            self.waiting.append(data)
        else:
            self.other.transport.write(data)

    def connectionLost(self, reason: Failure = connectionDone) -> None:
        if self.other is not None:
            self.other.transport.loseConnection()


class Passing(Factory):
    noisy = False

    def __init__(self, endpoint: Any) -> None:
        self._endpoint = endpoint
        self.modes: list[str] = []

    def buildProtocol(self, addr: Any) -> Half:
        near = Half()
        joining = self._endpoint.connect(Factory.forProtocol(Half)).addCallback(self._join, near)
        joining.addErrback(self._failed, near)
        return near

    def _failed(self, failure: Failure, near: Half) -> None:
        self.modes.append(failure.getErrorMessage())
        near.transport.abortConnection()

    def _join(self, far: Half, near: Half) -> None:
        self.modes += [near.transport.smc.mode, far.transport.smc.mode]
        near.join(far)
        far.join(near)


class IperfTests(ProgramTestCase):
    """Two iperf3 programs, and a txrdma process that forwards between them."""

    skip = OUTSIDE
    witness = Witness("smc: both roles, forwarding", "iperf3 over AF_SMC, both ends", "iperf3 through txrdma")

    async def measure(self, *more: str) -> None:
        """Run iperf3 through txrdma's process."""
        number = freePort()
        server, _ = self.start("iperf3", "-s", "-1", "-B", THERE, "-p", str(number), swapped=True)
        await waitUntil(
            reactor, lambda: any(each.state == "LISTEN" for each in kernelSockets()), START_SECONDS
        )
        endpoint = clientFromString(reactor, f"smc:{THERE}:{number}:bindAddress={HERE}:{ONLY}")
        passing = Passing(endpoint)
        port = await serverFromString(reactor, f"smc:{HERE}:0:{ONLY}").listen(passing)
        self.addCleanup(port.stopListening)
        words = ("iperf3", "-c", HERE, "-p", str(port.getHost().port), "-B", THERE, "-t", "5", "-J", *more)
        client, report = self.start(*words, swapped=True)
        self.assertEqual(await self.status(client, 90), 0, report.read_text())
        self.assertEqual(passing.modes, ["SMC-R"] * 4)
        total = json.loads(report.read_text())["end"]["sum_received"]
        record("Mbit/s", round(total["bits_per_second"] / 1e6, 1))
        self.assertGreater(total["bytes"], 1 << 20)
        await self.status(server, 20)

    async def test_forward(self) -> None:
        """iperf3's client sends."""
        await self.measure()

    async def test_backward(self) -> None:
        """iperf3's server sends."""
        await self.measure("-R")
