"""
The guest itself, from inside: properties on which every other suite of this package relies.
"""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

from twisted.trial.unittest import SynchronousTestCase

from txrdma.test.system.kernel import Box, OUTSIDE, record

BOXES = (Box(mtu=4200), Box(mtu=1500))

INFINIBAND = Path("/sys/class/infiniband")


def output(command: str) -> str:
    """Return the output of a command, which must succeed."""
    done = subprocess.run(command.split(), capture_output=True, text=True)
    assert done.returncode == 0, f"{command}: {done.stderr}"
    return done.stdout


class BoxTests(SynchronousTestCase):
    """A kernel with RDMA devices, and the host's files."""

    skip = OUTSIDE

    def test_devices(self) -> None:
        """There are two RDMA devices with active ports, and the tools for them."""
        record("kernel", os.uname().release)
        self.assertEqual(sorted(path.name for path in INFINIBAND.iterdir()), ["rxe0", "rxe1"])
        for device in INFINIBAND.iterdir():
            self.assertEqual((device / "ports/1/state").read_text().strip(), "4: ACTIVE")
        for name in ("uverbs0", "uverbs1", "umad0", "umad1", "rdma_cm"):
            self.assertTrue(Path("/dev/infiniband", name).is_char_device(), name)

    def test_mtu(self) -> None:
        """The wire has the requested MTU, and RDMA the largest one that fits."""
        wire = int(Path("/sys/class/net/v0/mtu").read_text())
        expected = {4200: 4096, 1500: 1024}[wire]
        self.assertIn(f"active_mtu:\t\t{expected} ", output("ibv_devinfo -d rxe0"))

    def test_wire(self) -> None:
        """Packets between the two addresses cross the wire."""
        counter = Path("/sys/class/net/v1/statistics/rx_packets")
        before = int(counter.read_text())
        output("busybox ping -c 3 -I 10.77.0.1 10.77.0.2")
        self.assertGreaterEqual(int(counter.read_text()) - before, 3)

    def test_netem(self) -> None:
        """The wire can lose packets."""
        self.addCleanup(output, "tc qdisc del dev v0 root")
        output("tc qdisc add dev v0 root netem loss 100%")
        lost = subprocess.run("busybox ping -c 1 -W 1 -I 10.77.0.1 10.77.0.2".split(), capture_output=True)
        self.assertEqual(lost.returncode, 1)

    def test_files(self) -> None:
        """Changes to the host's files are possible here, and results are kept outside."""
        here = Path(__file__).with_name("written-in-the-box")
        here.write_text("and gone with it")
        self.addCleanup(here.unlink)
        results = Path(os.environ["LAB_OUT"], "written")
        results.write_text("and kept")
        self.assertEqual(results.read_text(), "and kept")
