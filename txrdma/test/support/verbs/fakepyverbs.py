"""The classes of pyverbs that txrdma uses, without a device: they record posts, and tests complete them."""

from __future__ import annotations

import ctypes
import errno
import os
from collections import deque
from copy import copy
from types import SimpleNamespace
from typing import Any

from txrdma.iba.verbs import Status
from txrdma.verbs.pyverbs.bindings import Pyverbs


class FakeError(Exception):
    def __init__(self, code: int) -> None:
        super().__init__(os.strerror(code))
        self.error_code = code


class Thing:
    """
    An object that is closed once.

    @cvar log: the closed objects, in order.
    """

    log: list[Thing] = []
    isClosed = False
    stuck = False

    def close(self) -> None:
        """Close, or raise if C{stuck}. Idempotent."""
        if self.stuck:
            raise FakeError(errno.EBUSY)
        if not self.isClosed:
            self.isClosed = True
            self.log.append(self)


class Record(SimpleNamespace):
    """Attributes that are 0 by default."""

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return 0


class AHAttr(Record):
    """A path, with its global route in C{gr}."""

    def __init__(self, gr: Any = None, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        if gr is not None:
            vars(self).update({**vars(gr), "dgid": gr.dgid.text})


class GID:
    """A GID of a port, as text."""

    def __init__(self, text: str) -> None:
        self.text = text


class WR(Thing):
    """
    A work request of either kind, with copies of its segments.

    @cvar made: all that were created.
    """

    made: list[WR] = []

    def __init__(self, num_sge: int, sg: list[SGE], next_wr: WR | None = None) -> None:
        assert num_sge == len(sg) >= 1
        self.made.append(self)
        self.next_wr = next_wr
        self.wr_id = 0
        self.num_sge = num_sge
        self.sg = [copy(each) for each in sg]
        self.kinds: dict[str, tuple[Any, ...]] = {}

    def close(self) -> None:
        assert not any(each.isClosed for each in self.sg), "what it shares with a segment was freed"
        super().close()

    def set_wr_rdma(self, *args: Any) -> None:
        self.kinds["rdma"] = args

    def set_wr_atomic(self, *args: Any) -> None:
        self.kinds["atomic"] = args

    def set_wr_ud(self, *args: Any) -> None:
        self.kinds["ud"] = args


class SendWR(WR):
    """A send; a single segment may be shared."""

    opcode = imm_data = send_flags = 0

    def _share(self, piece: SGE) -> None:
        self.sg = [piece]

    sg_list = property(None, _share)


class RecvWR(WR):
    """A receive."""


class SGE(Thing):
    """
    A segment.

    @cvar made: how many were created, except for copies.
    """

    made = 0

    def __init__(self, addr: int, length: int, lkey: int) -> None:
        type(self).made += 1
        self.addr, self.length, self.lkey = addr, length, lkey

    def __setattr__(self, name: str, value: Any) -> None:
        if not 0 <= value < 1 << (64 if name == "addr" else 32):
            raise OverflowError("value too large")
        super().__setattr__(name, value)


class Context(Thing):
    """A device with one port."""

    cmd_fd = 0

    def __init__(self, name: str) -> None:
        if name != "fake0":
            raise FakeError(errno.ENODEV)
        self.name = name
        self.events: deque[Any] = deque()

    def query_device(self) -> Any:
        return Record(
            phys_port_cnt=1,
            max_cqe=100,
            max_qp_rd_atom=8,
            max_qp_init_rd_atom=8,
            fw_version="1",
            local_ca_ack_delay=15,
            device_cap_flags=1 << 4,
        )

    def query_port(self, number: int) -> Any:
        return Record(pkey_tbl_len=1, gid_tbl_len=1, state=4, max_mtu=5, active_mtu=3)

    def get_async_event(self) -> Any:
        if not self.events:
            raise FakeError(errno.EAGAIN)
        return self.events.popleft()


class PD(Thing):
    def __init__(self, context: Context) -> None:
        self.context = context


class MR(Thing):
    lkey = rkey = 7

    def __init__(self, domain: PD, length: int, access: int, address: int) -> None:
        self.domain, self.length, self.access, self.address = domain, length, access, address


class CompChannel(Thing):
    """A completion channel, with the descriptor of later releases."""

    def __init__(self, context: Context) -> None:
        self.fd = os.eventfd(0, os.EFD_CLOEXEC)

    def close(self) -> None:
        if not self.isClosed:
            os.close(self.fd)
        super().close()

    def get_cq_event(self, queue: CQ) -> None:
        try:
            os.eventfd_read(self.fd)
        except BlockingIOError as error:
            raise FakeError(errno.EAGAIN) from error


class CQ(Thing):
    """
    A completion queue.

    @ivar found: the completions to poll.
    @ivar polls: number of polls.
    """

    polls = 0

    def __init__(
        self, context: Context, depth: int, token: object = None, channel: Any = None, vector: int = 0
    ) -> None:
        self.cqe = depth
        self.token = id(token)
        self.channel = channel
        self.armed: list[bool] = []
        self.found: deque[Any] = deque()

    def req_notify(self, solicited: bool) -> None:
        self.armed.append(solicited)

    def ack_events(self, count: int) -> None:
        pass

    def poll(self, limit: int) -> tuple[int, list[Any]]:
        assert not self.isClosed
        self.polls += 1
        taken = [self.found.popleft() for _ in range(min(limit, len(self.found)))]
        return len(taken), taken


class QP(Thing):
    """
    A queue pair.

    @ivar sends: requests in the send queue; C{receives} those in the receive queue.
    @ivar room: number of requests until it is full.
    """

    numbers = iter(range(100, 1 << 24))

    def __init__(self, domain: PD, wanted: Any) -> None:
        self.qp_num = next(self.numbers)
        self.wanted = wanted
        self.sends: deque[Any] = deque()
        self.receives: deque[Any] = deque()
        self.modified: list[tuple[Any, int]] = []
        self.room = 1 << 30

    def close(self) -> None:
        """Destroy it; its completions in the queues are lost, as with mlx5."""
        super().close()
        for queue in (self.wanted.scq, self.wanted.rcq):
            queue.found = deque(each for each in queue.found if each.qp_num != self.qp_num)

    def modify(self, output: Any, mask: int) -> None:
        assert not self.isClosed
        self.modified.append((output, mask))

    def query(self, mask: int) -> tuple[Any, Any]:
        assert not self.isClosed
        return self.modified[-1][0] if self.modified else Record(), None

    def post_send(self, first: WR, bad: WR) -> None:
        self._post(self.sends, first, bad)

    def post_recv(self, first: WR, bad: WR) -> None:
        self._post(self.receives, first, bad)

    def _post(self, queue: deque[Any], wr: WR | None, bad: WR) -> None:
        assert not self.isClosed
        while wr is not None:
            if self.room <= 0:
                bad.wr_id = wr.wr_id
                raise FakeError(errno.ENOMEM)
            self.room -= 1
            assert not wr.isClosed
            pieces = [copy(each) for each in wr.sg[: wr.num_sge]]
            output = {name: getattr(wr, name, 0) for name in ("wr_id", "opcode", "imm_data", "send_flags")}
            queue.append(Record(**output, kinds=dict(wr.kinds), sg=pieces, inline=_inline(wr, pieces)))
            wr = wr.next_wr

    def complete(
        self, queue: CQ, status: Status = Status.SUCCESS, receive: bool = False, **more: Any
    ) -> None:
        """Complete the oldest request; unsignaled ones that succeed report nothing."""
        wr = (self.receives if receive else self.sends).popleft()
        if receive or status or wr.send_flags & 2:
            queue.found.append(
                Record(
                    wr_id=wr.wr_id,
                    status=int(status),
                    qp_num=self.qp_num,
                    opcode=128 if receive else 0,
                    **more,
                )
            )


class SRQ(Thing):
    """A shared receive queue."""

    def __init__(self, domain: PD, wanted: Any) -> None:
        self.attributes = wanted.attributes
        self.receives: deque[Any] = deque()

    def query(self) -> Any:
        return self.attributes

    def modify(self, attributes: Any, mask: int) -> None:
        self.attributes = attributes

    def post_recv(self, first: WR, bad: WR) -> None:
        wr: WR | None = first
        while wr is not None:
            self.receives.append(Record(wr_id=wr.wr_id))
            wr = wr.next_wr


class AH(Thing):
    def __init__(self, domain: PD, attr: Any) -> None:
        self.attr = attr


def _inline(wr: WR, pieces: list[SGE]) -> bytes:
    """Return the inline bytes, which a device reads when they are posted."""
    if not getattr(wr, "send_flags", 0) & 8:
        return b""
    return b"".join(ctypes.string_at(each.addr, each.length) for each in pieces)


FAKE = Pyverbs(
    Error=FakeError,
    Context=Context,
    PD=PD,
    MR=MR,
    AH=AH,
    AHAttr=AHAttr,
    GID=GID,
    GlobalRoute=Record,
    CompChannel=CompChannel,
    CQ=CQ,
    QP=QP,
    QPAttr=Record,
    QPCap=Record,
    QPInitAttr=Record,
    SRQ=SRQ,
    SrqAttr=Record,
    SrqInitAttr=lambda attributes: Record(attributes=attributes),
    SGE=SGE,
    SendWR=SendWR,
    RecvWR=RecvWR,
)
"""The complete fake."""
