"""
The C{local} carrier: names, and what the two sides of an announcement say to each other.
"""

from __future__ import annotations

from twisted.trial.unittest import SynchronousTestCase

from txrdma.smc.signalling.local import candidateNames, listenerName
from txrdma.smc.signalling.owners import TCPAddress


class NameTests(SynchronousTestCase):
    """Under which names listeners answer."""

    def test_listenerNamesInOrder(self) -> None:
        self.assertEqual(listenerName(TCPAddress("127.0.0.1", 80)), "\0txrdma/smc/127.0.0.1:80")
        self.assertEqual(listenerName(TCPAddress("0.0.0.0", 80)), "\0txrdma/smc/*:80")
        self.assertEqual(
            candidateNames(TCPAddress("127.0.0.1", 80)),
            ("\0txrdma/smc/127.0.0.1:80", "\0txrdma/smc/*:80", "\0txrdma/smc/[::]:80"),
        )
        self.assertEqual(
            candidateNames(TCPAddress("::1", 80)), ("\0txrdma/smc/[::1]:80", "\0txrdma/smc/[::]:80")
        )
