"""
Names of listeners for the C{local} signalling method.
"""

from __future__ import annotations

from twisted.trial.unittest import SynchronousTestCase

from txrdma.smc.signalling.local import candidateNames, listenerName
from txrdma.smc.signalling.owners import TCPAddress


class NameTests(SynchronousTestCase):
    """The names under which listeners answer."""

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
