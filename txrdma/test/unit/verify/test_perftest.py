"""Command lines and output of perftest."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from twisted.trial.unittest import SynchronousTestCase

import txrdma.test
from txrdma.iba.verbs import LinkLayer
from txrdma.test.unit.verify.test_checks import end
from txrdma.verify.perftest import measurePerftest, PROGRAMS, resultIn, wordsFor

VECTORS = Path(txrdma.test.__file__).parent / "vectors"


def recorded(program: str) -> str:
    """Return the output of a client, recorded on rxe."""
    return (VECTORS / f"perftest-{program}.txt").read_text()


class PerftestTests(SynchronousTestCase):
    def test_results(self) -> None:
        """The typical latency and the average bandwidth are in the last row of numbers."""
        self.assertEqual(resultIn(recorded("ib_send_lat"), PROGRAMS["ib_send_lat"][1]), 179.07)
        self.assertEqual(resultIn(recorded("ib_write_bw"), PROGRAMS["ib_write_bw"][1]), 0.24)
        self.assertRaises(OSError, resultIn, "Couldn't connect to 127.0.0.1:18515\n", 3)

    def test_words(self) -> None:
        """Words of the command name device, port and GID of the verified end; only RoCE needs a GID."""
        words = " ".join(wordsFor("ib_write_bw", end(port=2), 4000, 65536))
        self.assertEqual(words, "ib_write_bw -d mlx5_0 -i 2 -p 4000 -s 65536 -n 1000 -F -x 3 --report_gbits")
        infiniband = replace(end(), linkLayer=LinkLayer.INFINIBAND)
        words = " ".join(wordsFor("ib_send_lat", infiniband, 4000, 64))
        self.assertEqual(words, "ib_send_lat -d mlx5_0 -i 1 -p 4000 -s 64 -n 1000 -F")

    def test_software(self) -> None:
        """The software device is unknown to perftest."""
        self.assertEqual(list(measurePerftest((end("soft"), end()))), [])
