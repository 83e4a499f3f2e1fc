"""
Mapped memory of rsocket streams between two processes.
"""

from __future__ import annotations

import sys
from typing import Any

from twisted.internet import reactor as theReactor
from twisted.internet.endpoints import serverFromString
from twisted.internet.protocol import Factory
from twisted.internet.utils import getProcessOutputAndValue

from txrdma.test.integration.cm.test_rsocket import SocketCase
from txrdma.test.support import CHECKOUT
from txrdma.test.system.kernel.riostreamer import MappedStreaming

reactor: Any = theReactor

SHAPES = ((64, 1, 100), (1000, 10, 3), (300_000, 2, 2))


class SharedMemoryTests(SocketCase):
    """The software device's default route on one host."""

    slowBecause = "starts a process"

    async def test_twoProcesses(self) -> None:
        """Two processes write into each other's memory, and verify it."""
        coming = [MappedStreaming(reactor, False, *shape) for shape in SHAPES]
        made = iter(coming)
        listening = serverFromString(reactor, self.serverString())
        self.ports.append(await listening.listen(Factory.forProtocol(lambda: next(made))))
        endpoint = self.clientString(self.ports[-1].getHost().port)
        shapes = (",".join(map(str, shape)) for shape in SHAPES)
        words = ("-m", "txrdma.test.system.kernel.riostreamer", endpoint, *shapes)
        out, err, code = await getProcessOutputAndValue(
            sys.executable, words, env={"PYTHONPATH": str(CHECKOUT)}, path=str(CHECKOUT)
        )
        self.assertEqual((code, err), (0, b""))
        self.assertEqual([int(each) for each in out.split()], [shape[2] for shape in SHAPES])
        for each, shape in zip(coming, SHAPES, strict=True):
            self.assertEqual(await each.played, shape[2])


class RoCETests(SharedMemoryTests):
    more = r"\:route=rocev2"
