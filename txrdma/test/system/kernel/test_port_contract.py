"""
The contract of L{IMADPort} with the kernel's management ports, between rxe devices.
"""

from __future__ import annotations

import subprocess
from typing import Any

from twisted.trial.unittest import SkipTest

from txrdma.iba.path import IBPath
from txrdma.interfaces import IMADPort
from txrdma.mad.ports import openMADPort
from txrdma.test.system.kernel import Box, Witness
from txrdma.test.system.kernel.mads import linkLocal, MADCase, run
from txrdma.testing.contracts import MADPortContract

BOXES = (Box(mtu=4200, timeout=900),)


class UmadTests(MADPortContract, MADCase):
    """C{/dev/infiniband/umadN} of the kernel's two devices, with RMPP in the kernel."""

    witness = Witness("umad port", "kernel MAD layer on rxe", "the contract of management ports")
    rmpp = "kernel"

    def setUp(self) -> None:
        self.deleting: dict[int, subprocess.Popen[bytes]] = {}
        super().setUp()

    def makePort(self, number: int) -> IMADPort:
        return openMADPort(self.reactor, f"umad:rxe{number}:rmpp={self.rmpp}")

    def pathTo(self, number: int, qpn: int = 1) -> IBPath:
        return MADCase.pathTo(self, number, qpn)

    def step(self) -> None:
        self.reactor.iterate(0.005)

    def time(self) -> Any:
        return self.reactor

    def lose(self, number: int) -> None:
        self.deleting[number] = subprocess.Popen(["rdma", "link", "del", f"rxe{number}"])
        self.addCleanup(self.haveBack, number)

    def restore(self, number: int) -> None:
        self.assertEqual(self.deleting.pop(number).wait(60), 0)
        run("rdma", "link", "add", f"rxe{number}", "type", "rxe", "netdev", f"v{number}")
        self.gids[number] = linkLocal(f"rxe{number}")

    def haveBack(self, number: int) -> None:
        """Recreate a device that the test has deleted, for later tests."""
        if number in self.deleting:
            self.ports[number].close()
            self.restore(number)


class UmadOwnRMPPTests(UmadTests):
    """The same with RMPP in this process."""

    witness = Witness("umad port", "kernel MAD layer on rxe", "the contract of management ports, own RMPP")
    rmpp = "own"

    def returning(self, number: int) -> None:
        """Skip slow tests that the other class runs."""
        raise SkipTest("the loss of a port does not depend on who segments RMPP transfers")
