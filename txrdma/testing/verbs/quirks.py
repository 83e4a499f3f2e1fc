"""
The points in which providers of verbs may differ, and what each of them does.

A test that meets such a place asks here. Each attribute says what the specification wants, and for what
reason a provider does otherwise; the default is what our software device does.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from txrdma.iba.verbs import Status


@dataclass(frozen=True, slots=True)
class Quirks:
    """
    The ways of one provider of verbs where it has, or takes itself, the choice.

    @ivar establishes: the first message of a queue pair in RTR raises C{COMMUNICATION_ESTABLISHED}, as IBA
        11.6.3.1 has it.
    @ivar reportsRefusals: the responder that refuses a request raises C{QP_ACCESS_ERROR} or
        C{QP_REQUEST_ERROR} (IBA 11.6.3.2).
    @ivar failuresAreSolicited: a completion queue that is armed for solicited completions wakes for failures,
        too (IBA 11.4.2.2). rxe makes no difference between a flushed receive and an ordinary one.
    @ivar shortReceive: what becomes of a message that is longer than its receive, at the sender's and at the
        receiver's. IBA 9.9.3 has "invalid request" there, and a length error here. rxe takes it for
        a broken receive: see C{badReceive}.
    @ivar badReceive: the same when the receive's memory can't be written: an operational error there, and
        here a protection error (IBA 10.10.3). rxe says LOC_QP_OP_ERR.
    @ivar misalignedIsPosted: an atomic to an address that is not divisible by 8 can be posted, and the
        responder refuses it (IBA 9.4.5: NAK "invalid request"). Otherwise the poster's library refuses it.
    @ivar longDatagramFails: a datagram that is longer than a packet ends in an error. IBA C10-93.1.1 has it
        vanish without one, which helps nobody to find the mistake; we tell.
    @ivar hasSQE: a datagram that fails leaves its queue pair in SQE, where it still receives, and can be
        brought back to RTS (IBA 10.3.1.6). Otherwise it goes to ERR.
    @ivar drainsWhatIsPosted: what was posted before SQD is carried out in it. IBA 10.3.1.5 says so only of
        requests that had begun; rxe keeps those that had not.
    @ivar resumesFromSQD: what was posted in SQD goes out with the transition to RTS (IBA 10.3.1.5). rxe
        leaves it until something else is posted.
    @ivar waitsForItsPort: what is posted while the own port is down has the usual patience, as what gets no
        answer. rxe has no route then, and fails at once, as with C{localFailure}.
    @ivar needsPeerForRTR: the transition to RTR looks for the peer's MAC address, and fails where there is
        no answer. So does Linux; our device asks the system when it sends.
    @ivar localFailure: how a send ends whose own memory is not as its segments say. IBA 10.10.3: a local
        protection error. rxe flushes it with those behind it, so that nobody learns the reason.
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
    waitsForItsPort: bool = True
    needsPeerForRTR: bool = False
    localFailure: Status = Status.LOC_PROT_ERR


OURS: Final = Quirks()
"""The quirks of our software device: the defaults."""

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
    waitsForItsPort=False,
    needsPeerForRTR=True,
    localFailure=Status.WR_FLUSH_ERR,
)
"""The Linux kernel's software RoCE (6.12) with libibverbs' provider for it."""
