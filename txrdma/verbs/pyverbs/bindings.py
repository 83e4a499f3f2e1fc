"""
Access to pyverbs, the Python bindings of rdma-core's libibverbs, and translation of its errors.

pyverbs is imported when a device is opened, not before: it is optional, and importing it accesses the system.
Its release has to be that of the system's libibverbs; the source of releases 44 and 59 was read, and 44 is
tested.
"""

from __future__ import annotations

import errno
import logging
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Final

from txrdma.error import DeviceUnavailable, InvalidRequest, RDMAError, ResourceExhausted

_GONE: Final = frozenset(
    {
        errno.EIO,
        errno.ENODEV,
        errno.ENXIO,
        errno.ENOENT,
        errno.EACCES,
        errno.EPERM,
        errno.ETIMEDOUT,
        errno.EHOSTUNREACH,
        errno.ENETUNREACH,
        errno.ENETDOWN,
    }
)
_EXHAUSTED: Final = frozenset(
    {errno.ENOMEM, errno.ENOSPC, errno.EAGAIN, errno.EMFILE, errno.ENFILE, errno.EDQUOT, errno.EBUSY}
)


@dataclass(frozen=True)
class Pyverbs:
    """The classes of pyverbs, which have no annotations: each C{Any} in these modules is one of them."""

    Error: type[Exception]
    Context: Any
    PD: Any
    MR: Any
    AH: Any
    AHAttr: Any
    GID: Any
    GlobalRoute: Any
    CompChannel: Any
    CQ: Any
    QP: Any
    QPAttr: Any
    QPCap: Any
    QPInitAttr: Any
    SRQ: Any
    SrqAttr: Any
    SrqInitAttr: Any
    SGE: Any
    SendWR: Any
    RecvWR: Any


_loaded: Pyverbs | None = None


def loadPyverbs() -> Pyverbs:
    """Import pyverbs, at the first call; raises L{DeviceUnavailable}."""
    global _loaded
    if _loaded is None:
        try:
            with _loggingUntouched():
                _loaded = _load()
        except ImportError as error:
            raise DeviceUnavailable(
                f"pyverbs can't be imported ({error}); install the distribution's python3-pyverbs"
            ) from error
    return _loaded


def _load() -> Pyverbs:
    from pyverbs.addr import AH, AHAttr, GID, GlobalRoute
    from pyverbs.cq import CompChannel, CQ
    from pyverbs.device import Context
    from pyverbs.mr import MR
    from pyverbs.pd import PD
    from pyverbs.pyverbs_error import PyverbsError
    from pyverbs.qp import QP, QPAttr, QPCap, QPInitAttr
    from pyverbs.srq import SRQ, SrqAttr, SrqInitAttr
    from pyverbs.wr import RecvWR, SendWR, SGE

    return Pyverbs(
        Error=PyverbsError,
        Context=Context,
        PD=PD,
        MR=MR,
        AH=AH,
        AHAttr=AHAttr,
        GID=GID,
        GlobalRoute=GlobalRoute,
        CompChannel=CompChannel,
        CQ=CQ,
        QP=QP,
        QPAttr=QPAttr,
        QPCap=QPCap,
        QPInitAttr=QPInitAttr,
        SRQ=SRQ,
        SrqAttr=SrqAttr,
        SrqInitAttr=SrqInitAttr,
        SGE=SGE,
        SendWR=SendWR,
        RecvWR=RecvWR,
    )


@contextmanager
def _loggingUntouched() -> Iterator[None]:
    """Preserve the root logger: C{logging.basicConfig}, which pyverbs calls, ignores one with a handler."""
    root = logging.getLogger()
    handlers, level = tuple(root.handlers), root.level
    root.addHandler(logging.NullHandler())
    try:
        yield
    finally:
        for handler in tuple(root.handlers):
            if handler not in handlers:
                root.removeHandler(handler)
        root.setLevel(level)


def translated(error: Exception, what: str) -> RDMAError:
    """Return the L{RDMAError} for an exception of pyverbs; C{what} is the operation that failed."""
    code = abs(getattr(error, "error_code", 0) or 0)
    text = f"{what}: {error}"
    if code in _GONE:
        return DeviceUnavailable(text)
    if code in _EXHAUSTED:
        return ResourceExhausted(text)
    return InvalidRequest(text)
