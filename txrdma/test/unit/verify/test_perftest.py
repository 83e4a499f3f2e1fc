"""
Command lines and output of perftest.
"""

from __future__ import annotations

from dataclasses import replace

from twisted.trial.unittest import SynchronousTestCase

from txrdma.iba.verbs import LinkLayer
from txrdma.test.unit.verify.test_checks import end
from txrdma.verify.perftest import measurePerftest, PROGRAMS, resultIn, wordsFor

LATENCY = """\
 local address: LID 0000 QPN 0x0011 PSN 0xd8b6c2 RKey 0x000201 VAddr 0x0055d9b7a3f000
 GID: 00:00:00:00:00:00:00:00:00:00:255:255:10:77:00:01
---------------------------------------------------------------------------------------
 #bytes #iterations    t_min[usec]    t_max[usec]  t_typical[usec]    t_avg[usec]    t_stdev[usec]
 64      1000          7.96           35.97        8.25     	       8.31        	0.11
---------------------------------------------------------------------------------------
"""
BANDWIDTH = """\
 #bytes     #iterations    BW peak[Gb/sec]    BW average[Gb/sec]   MsgRate[Mpps]
 65536      1000             92.55              92.54  		     0.176508
"""


class PerftestTests(SynchronousTestCase):
    """Programs of perftest."""

    def test_results(self) -> None:
        """The typical latency and the average bandwidth are in the last row of numbers."""
        self.assertEqual(resultIn(LATENCY, PROGRAMS["ib_write_lat"][1]), 8.25)
        self.assertEqual(resultIn(BANDWIDTH, PROGRAMS["ib_write_bw"][1]), 92.54)
        self.assertRaises(OSError, resultIn, "Couldn't connect to 127.0.0.1:18515\n", 3)

    def test_words(self) -> None:
        """Device, port and GID are those of the verified end; only RoCE needs a GID."""
        words = " ".join(wordsFor("ib_write_bw", end(port=2), 4000, 65536))
        self.assertEqual(words, "ib_write_bw -d mlx5_0 -i 2 -p 4000 -s 65536 -n 1000 -F -x 3 --report_gbits")
        infiniband = replace(end(), linkLayer=LinkLayer.INFINIBAND)
        words = " ".join(wordsFor("ib_send_lat", infiniband, 4000, 64))
        self.assertEqual(words, "ib_send_lat -d mlx5_0 -i 1 -p 4000 -s 64 -n 1000 -F")

    def test_software(self) -> None:
        """The software device is unknown to perftest."""
        self.assertEqual(list(measurePerftest((end("soft"), end()))), [])
