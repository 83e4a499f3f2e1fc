"""
Permitted differences between implementations of verbs.

Tests depend on these where implementations differ. Each attribute documents what the specification requires,
and why an implementation deviates; the default is the behaviour of txrdma's software device.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from txrdma.iba.verbs import Status


@dataclass(frozen=True, slots=True)
class Quirks:
    """
    The behaviour of one implementation of verbs where it has a choice, or deviates from the specification.

    @ivar establishes: whether the first message of a queue pair in RTR raises C{COMMUNICATION_ESTABLISHED}
        (IBA 11.6.3.1).
    @ivar reportsRefusals: whether a responder that refuses a request raises C{QP_ACCESS_ERROR} or
        C{QP_REQUEST_ERROR} (IBA 11.6.3.2).
    @ivar failuresAreSolicited: whether failures raise events of a completion queue armed for solicited
        completions (IBA 11.4.2.2). rxe does not distinguish a flushed receive from an ordinary one.
    @ivar shortReceive: statuses of a message longer than its receive, at the sender and at the receiver. IBA
        9.9.3 requires "invalid request" and a length error. rxe treats it as a broken receive: see
        C{badReceive}.
    @ivar badReceive: the same if the receive's memory cannot be written: an operational error at the sender,
        a protection error at the receiver (IBA 10.10.3). rxe reports LOC_QP_OP_ERR.
    @ivar misalignedIsPosted: whether an atomic to an address that is not divisible by 8 can be posted, and is
        refused by the responder (IBA 9.4.5: NAK "invalid request"). Otherwise the requester's library refuses
        it.
    @ivar longDatagramFails: whether a datagram longer than a packet completes in error. IBA C10-93.1.1 drops
        it silently, which hides the mistake; the software device reports it.
    @ivar hasSQE: whether a failed datagram moves its queue pair to SQE, where it still receives and can
        return to RTS (IBA 10.3.1.6). Otherwise it moves to ERR.
    @ivar drainsWhatIsPosted: whether requests posted before SQD are executed in it. IBA 10.3.1.5 requires
        this only of requests that had begun; rxe retains the others.
    @ivar resumesFromSQD: whether requests posted in SQD are sent upon the transition to RTS (IBA 10.3.1.5).
        rxe sends them when another request is posted.
    @ivar waitsForPort: whether requests posted while the local port is down are retried like unanswered
        ones. rxe has no route then, and fails immediately with C{localFailure}.
    @ivar needsPeerForRTR: whether the transition to RTR resolves the peer's MAC address, and fails without an
        answer, as in Linux. The software device leaves this to the system when it sends.
    @ivar localFailure: status of a send whose memory does not match its segments. IBA 10.10.3 requires a
        local protection error. rxe flushes it with the following requests, which hides the reason.
    """

    establishes: bool = True
    reportsRefusals: bool = True
    failuresAreSolicited: bool = True
    shortReceive: tuple[Status, Status] = (Status.REM_INV_REQ_ERR, Status.LOC_LEN_ERR)
    badReceive: tuple[Status, Status] = (Status.REM_OP_ERR, Status.LOC_PROT_ERR)
    misalignedIsPosted: bool = True
    longDatagramFails: bool = True
    hasSQE: bool = True
    drainsWhatIsPosted: bool = True
    resumesFromSQD: bool = True
    waitsForPort: bool = True
    needsPeerForRTR: bool = False
    localFailure: Status = Status.LOC_PROT_ERR


OURS: Final = Quirks()
"""The quirks of txrdma's software device: the defaults."""

RXE: Final = Quirks(
    establishes=False,
    reportsRefusals=False,
    failuresAreSolicited=False,
    shortReceive=(Status.REM_OP_ERR, Status.LOC_QP_OP_ERR),
    badReceive=(Status.REM_OP_ERR, Status.LOC_QP_OP_ERR),
    misalignedIsPosted=False,
    longDatagramFails=False,
    hasSQE=False,
    drainsWhatIsPosted=False,
    resumesFromSQD=False,
    waitsForPort=False,
    needsPeerForRTR=True,
    localFailure=Status.WR_FLUSH_ERR,
)
"""The Linux kernel's software RoCE (6.12) with libibverbs' provider for it."""
