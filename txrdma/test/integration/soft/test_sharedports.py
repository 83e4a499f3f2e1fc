"""
Access rights of queue pairs over shared memory between real devices.
"""

from __future__ import annotations

from txrdma.iba.verbs import Access, AsyncEventKind, Operation, QPAttributes, QPState, Status
from txrdma.test.support.soft.neighbours import RealCase
from txrdma.test.support.soft.pairs import End


class RightsTests(RealCase):
    """Access rights of queue pairs."""

    def test_readsWithoutRightAreInvalidRequests(self) -> None:
        for changes in ({"maxDestRDAtomic": 0}, {}):
            one, other = End(self.open()), End(self.open())
            one.join(other)
            other.join(one, **changes)
            if not changes:
                other.qp.modify(QPAttributes(state=QPState.RTS, access=Access.REMOTE_WRITE))
            where = {"remoteAddress": other.region.address, "rkey": other.region.rkey}
            one.post(1, Operation.RDMA_WRITE, [one.segment(0, 8)], **where)
            self.assertEqual(self.take(one, 1)[0].status, Status.SUCCESS)
            one.post(2, Operation.RDMA_READ, [one.segment(0, 8)], **where)
            self.refused(one, other)

    def refused(self, one: End, other: End) -> None:
        """Assert that both ends have failed."""
        self.runUntil(lambda: (other.poll(), other.qp.state is QPState.ERR)[1])
        self.assertEqual(self.take(one, 1)[0].status, Status.REM_INV_REQ_ERR)
        self.runUntil(lambda: other.events)
        self.assertEqual(other.events[0].kind, AsyncEventKind.QP_REQUEST_ERROR)
