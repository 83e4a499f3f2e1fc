"""
Dask in separate processes, over C{btl://}.
"""

from __future__ import annotations

import asyncio
import logging
import os
import signal
import subprocess
import sys
from functools import partial
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Any
from unittest import SkipTest

from twisted.trial.unittest import SynchronousTestCase

import txrdma

SUPPORT = Path(txrdma.__file__).parent / "test" / "support" / "btl"
PLAYER, ECHO = SUPPORT / "daskplayer.py", SUPPORT / "daskecho.py"


class DaskTests(SynchronousTestCase):
    """A scheduler, a client and two workers."""

    slowBecause = "three processes start, which import Dask"

    def setUp(self) -> None:
        if find_spec("distributed") is None:
            raise SkipTest("distributed is not installed: the extra dask brings it")

    def test_killed(self) -> None:
        """Workers exchange an array; the death of one is detected, and its results are computed again."""
        command = [sys.executable, str(PLAYER), "btl"]
        done = subprocess.run(command, capture_output=True, text=True, timeout=120)
        self.assertEqual(done.stdout, "3000000\nnoticed 3000000\n", done.stderr)

    def test_stoppedPeer(self) -> None:
        """A connection whose peer has received everything closes at once, even if its process is stopped."""
        core: Any = import_module("distributed.comm.core")
        self.patch(import_module("txrdma.btl.dask"), "CLOSE_SECONDS", 100)
        echo = subprocess.Popen([sys.executable, str(ECHO), "btl"], stdout=subprocess.PIPE, text=True)
        assert echo.stdout is not None
        self.addCleanup(echo.wait)
        self.addCleanup(echo.stdout.close)
        self.addCleanup(echo.kill)
        address = echo.stdout.readline().strip()

        async def play() -> None:
            comm = await core.connect(address, timeout=60)
            await comm.write("hello")
            self.assertEqual(await comm.read(), "hello")
            while not comm._connection.transport.isIdle:
                await asyncio.sleep(0)
            os.kill(echo.pid, signal.SIGSTOP)
            await asyncio.wait_for(comm.close(), 10)

        asyncio.run(asyncio.wait_for(play(), 90))

    def test_cluster(self) -> None:
        """A scheduler, two workers and a client compute, and move an array between workers."""
        distributed: Any = import_module("distributed")
        where = {"dashboard_address": None, "host": "127.0.0.1", "protocol": "btl"}

        async def play() -> None:
            async with distributed.Scheduler(port=0, **where) as scheduler:
                worker = partial(distributed.Worker, scheduler.address, nthreads=1, host="127.0.0.1")
                async with worker() as one, worker() as other:
                    self.assertTrue(other.address.startswith("btl://127.0.0.1:"))
                    async with distributed.Client(scheduler.address, asynchronous=True) as client:
                        data = client.submit(bytearray, 3_000_000, workers=[one.address])
                        length = client.submit(len, data, workers=[other.address])
                        self.assertEqual(await length, 3_000_000)
                        found = await client.gather(client.map(abs, range(-20, 0)))
                        self.assertEqual(found, list(range(20, 0, -1)))

        asyncio.run(asyncio.wait_for(play(), 60))


class OwnTests(SynchronousTestCase):
    """
    Dask's own tests of C{tcp://}, with C{btl://}.

    They are in no wheel and need pytest, so a checkout of C{distributed} is put on C{PYTHONPATH} for them.
    """

    slowBecause = "some tests open a hundred devices"

    def setUp(self) -> None:
        try:
            self.own: Any = import_module("distributed.comm.tests.test_comms")
        except ImportError:
            raise SkipTest("wanted: pytest, and a checkout of distributed on PYTHONPATH") from None
        for each in ("comm.utils", "protocol.core"):
            self.patch(logging.getLogger(f"distributed.{each}"), "disabled", True)

    def play(self, name: str, *arguments: object) -> None:
        """Run a coroutine function of Dask's tests."""
        asyncio.run(asyncio.wait_for(getattr(self.own, name)(*arguments), 60))

    def test_addresses(self) -> None:
        """Listeners have the addresses that clients use, and serve many of them at once."""
        local, anywhere, external = map(self.own.tcp_eq, ("127.0.0.1", "0.0.0.0", self.own.EXTERNAL_IP4))
        self.play("check_client_server", "btl://127.0.0.1", local)
        for address in ("btl://", "btl://0.0.0.0"):
            self.play("check_client_server", address, anywhere, external)
        for address in ("btl://", "btl://0.0.0.0", "btl://127.0.0.1"):
            self.play("check_many_listeners", address)

    def test_checks(self) -> None:
        """Messages, the ends of connections, and failures are as over TCP."""
        self.play("check_connect_timeout", "btl://127.0.0.1:1")
        for name in (
            "check_comm_closed_implicit",
            "check_comm_closed_explicit",
            "check_deserialize",
            "check_deserialize_roundtrip",
            "check_deserialize_eoferror",
        ):
            self.play(name, "btl://127.0.0.1")

    def test_pairs(self) -> None:
        """Both ends name each other's addresses."""

        async def check(name: str) -> None:
            await getattr(self.own, name)(*await self.own.get_comm_pair("btl://127.0.0.1"))

        for name in ("check_repr", "check_addresses"):
            asyncio.run(asyncio.wait_for(check(name), 60))
