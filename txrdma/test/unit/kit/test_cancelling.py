"""L{txrdma.kit.cancelling}: attempts that fail with the same error whenever they are cancelled."""

from __future__ import annotations

import gc

from twisted.internet.defer import Deferred
from twisted.internet.error import ConnectingCancelledError, ConnectionRefusedError
from twisted.python.failure import Failure
from twisted.trial.unittest import SynchronousTestCase

from txrdma.kit.cancelling import cancellable


class CancellableTests(SynchronousTestCase):
    def test_errorOfCancelledAttempt(self) -> None:
        """A cancelled attempt fails with the given error; another one with its own."""
        for isCancelled, expected in ((True, ConnectingCancelledError), (False, ConnectionRefusedError)):
            connecting: Deferred[str] = Deferred()
            connected = cancellable(connecting, ConnectingCancelledError(None))
            if isCancelled:
                connected.cancel()
            else:
                connecting.errback(ConnectionRefusedError())
            self.failureResultOf(connected, expected)

    def test_cancelledWhileItFails(self) -> None:
        """An attempt can be cancelled by a callback of its failure, as by C{stopFactory}."""
        self.fail_()
        gc.collect()
        self.assertEqual(self.flushLoggedErrors(), [])

    def fail_(self) -> None:
        """Fail an attempt, and cancel it in a callback."""
        connecting: Deferred[str] = Deferred()

        def stopped(failure: Failure) -> Failure:
            connected.cancel()
            return failure

        connected = cancellable(connecting.addErrback(stopped), ConnectingCancelledError(None))
        connecting.errback(ConnectionRefusedError())
        self.failureResultOf(connected, ConnectingCancelledError)
