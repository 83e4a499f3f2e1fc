"""
The remote procedure calls of the specification, by their names.

Follows InfiniBand Architecture vol. 1, 13.4.5 (methods), and chapters 14 to 16 for the methods of each class.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import Any, cast, Final, TypeVar, Union

from typing_extensions import TypedDict, Unpack

from twisted.internet.defer import Deferred

from txrdma.error import InvalidRequest
from txrdma.iba.path import IBPath
from txrdma.mad.core.frames import Keys
from txrdma.mad.core.transactions import Call
from txrdma.mad.layouts.attributes import Attribute, ManagementClass, RPCS
from txrdma.mad.layouts.sa import MultiPathRecord, PathRecord, Query, Record

A = TypeVar("A", bound=Attribute)
R = TypeVar("R", bound=Record)


_NAMES: Final[dict[tuple[int, int], str]] = {
    (rpc.managementClass, rpc.method): rpc.name for rpc in RPCS.values()
}


def nameOf(managementClass: int, method: int) -> str:
    """Name of the call of this class and method; C{""} without one."""
    if managementClass == ManagementClass.SUBN_DIRECTED:
        managementClass = ManagementClass.SUBN_LID
    elif 0x09 <= managementClass <= 0x0F or 0x30 <= managementClass <= 0x4F:
        managementClass = ManagementClass.VENDOR_09
    return _NAMES.get((managementClass, method), "")


def checkedKind(name: str, payload: object) -> type[Attribute]:
    """
    Attribute type that a call of that name would carry.

    @raise InvalidRequest: there is no such call, or it carries no such attribute; the message lists the
        existing ones.
    """
    kind = payload if isinstance(payload, type) else type(payload)
    if not issubclass(kind, Attribute):
        raise InvalidRequest(f"{name} carries attributes, classes or instances, but not {payload!r}")
    if name in kind.rpcs:
        return kind
    if name not in RPCS:
        from difflib import get_close_matches  # seldom needed

        near = get_close_matches(name, RPCS, 6, 0.5) or RPCS
        raise InvalidRequest(f"there is no call {name}; there are {', '.join(near)}")
    raise InvalidRequest(f"{kind.__name__} is not for {name}, but for {', '.join(sorted(kind.rpcs))}")


class CallOptions(TypedDict, total=False):
    """
    Options of any call, by keyword.

    @ivar timeoutSeconds: time to wait for an answer after each transmission of the request.
    @ivar retries: number of times that a request without an answer is sent again.
    @ivar keys: M_Key, SM_Key and others that a class requires.
    @ivar componentMask: components of a record that are selected; a L{Query} brings its own.
    @ivar transactionID: the transaction ID to send, which no other call of the agent has at present; without
        it, or if it is 0, one is drawn. With some ports only the lower half can be chosen:
        C{transactionIDBits}.
    """

    timeoutSeconds: float | None
    retries: int | None
    keys: Keys | None
    componentMask: int
    transactionID: int


F = TypeVar("F", bound=Callable[..., Deferred[Any]])


def _answered(
    self: RPCs,
    payload: Union[type[A], A],
    path: IBPath,
    attributeModifier: int = 0,
    **options: Unpack[CallOptions],
) -> Deferred[A]:
    """Make this call; its answer is an instance of the same attribute."""
    raise NotImplementedError


def _unanswered(
    self: RPCs,
    payload: Union[type[A], A],
    path: IBPath,
    attributeModifier: int = 0,
    **options: Unpack[CallOptions],
) -> Deferred[None]:
    """Make this call, which has no answer: it is done when it is sent."""
    raise NotImplementedError


def _oneRecord(
    self: RPCs,
    payload: Union[type[R], R, Query[R]],
    path: IBPath | None = None,
    attributeModifier: int = 0,
    **options: Unpack[CallOptions],
) -> Deferred[R]:
    """Make this call for the one record that a query describes."""
    raise NotImplementedError


def _manyRecords(
    self: RPCs,
    payload: Union[type[R], R, Query[R]],
    path: IBPath | None = None,
    attributeModifier: int = 0,
    **options: Unpack[CallOptions],
) -> Deferred[list[R]]:
    """Make this call for all records that a query describes."""
    raise NotImplementedError


def _multiPath(
    self: RPCs,
    payload: Union[MultiPathRecord, Query[MultiPathRecord]],
    path: IBPath | None = None,
    attributeModifier: int = 0,
    **options: Unpack[CallOptions],
) -> Deferred[list[PathRecord]]:
    """Make this call for the paths between several ports."""
    raise NotImplementedError


def _method(name: str, signature: F) -> F:
    """Define the method of C{RPCs} that makes the call of this name, with the types of C{signature}."""

    def method(
        self: RPCs,
        payload: Any,
        path: IBPath | None = None,
        attributeModifier: int = 0,
        **options: Unpack[CallOptions],
    ) -> Deferred[Any]:
        return self.call(name, payload, path, attributeModifier, **options)

    method.__name__ = name
    method.__qualname__ = f"RPCs.{name}"
    method.__doc__ = signature.__doc__
    return cast("F", method)


class RPCs(ABC):
    """
    Calls of the specification as methods, for agents and similar classes.

    The payload is a class, to send zeros, or an instance, or for SA records a L{Query}. C{path} leads to the
    peer and is reversible; SA calls need none. Options are L{CallOptions}.
    """

    retries: int | None = None
    """Number of times that a request without an answer is sent again; None where that is unknown."""

    @abstractmethod
    def call(
        self,
        rpc: str,
        payload: Any,
        path: IBPath | None = None,
        attributeModifier: int = 0,
        **options: Unpack[CallOptions],
    ) -> Deferred[Any]:
        """
        Make the call of this name.

        @param path: path to the peer; without one, SA calls go to the SA of the agent's port.
        @param attributeModifier: selects a part of the attribute; some structures have a method C{modifier}.
        @return: fires with the answer; fails with L{MADError <txrdma.mad.errors.MADError>},
            L{MADTimeoutError <txrdma.mad.errors.MADTimeoutError>} or
            L{MADClassError <txrdma.mad.errors.MADClassError>}, with C{InvalidRequest} when nothing was sent.
        """

    def issue(
        self, call: Call, path: IBPath, timeoutSeconds: float | None = None, retries: int | None = None
    ) -> None:
        """
        Make a call from a prepared object, for callers that make very many.

        The call's own C{answered} or C{failed} is called at its end; C{forget} cancels it.

        @param timeoutSeconds: time to wait for an answer; by default that of all calls. C{retries} likewise.
        """
        payload = call.kind.decode(call.content) if call.content else call.kind
        options: CallOptions = {
            "componentMask": call.mask,
            "timeoutSeconds": timeoutSeconds,
            "retries": retries,
        }
        answer = self.call(call.rpc.name, payload, path, call.modifier, **options)
        call.forget = lambda call: answer.cancel()
        answer.addCallbacks(call.answered, lambda failure: call.failed(failure.value))

    # Subnet management: LID routed, or by a directed route where the path is one.
    SubnGet = _method("SubnGet", _answered)
    SubnSet = _method("SubnSet", _answered)
    SubnTrap = _method("SubnTrap", _answered)
    SubnTrapRepress = _method("SubnTrapRepress", _unanswered)

    SubnAdmGet = _method("SubnAdmGet", _oneRecord)
    SubnAdmSet = _method("SubnAdmSet", _oneRecord)
    SubnAdmDelete = _method("SubnAdmDelete", _oneRecord)
    SubnAdmGetTable = _method("SubnAdmGetTable", _manyRecords)
    SubnAdmGetTraceTable = _method("SubnAdmGetTraceTable", _manyRecords)
    SubnAdmGetMulti = _method("SubnAdmGetMulti", _multiPath)
    SubnAdmReport = _method("SubnAdmReport", _answered)
    SubnAdmTrap = _method("SubnAdmTrap", _answered)
    SubnAdmTrapRepress = _method("SubnAdmTrapRepress", _unanswered)

    PerformanceGet = _method("PerformanceGet", _answered)
    PerformanceSet = _method("PerformanceSet", _answered)

    BMGet = _method("BMGet", _answered)
    BMSet = _method("BMSet", _answered)
    BMSend = _method("BMSend", _unanswered)
    BMTrap = _method("BMTrap", _answered)
    BMTrapRepress = _method("BMTrapRepress", _unanswered)

    DevMgtGet = _method("DevMgtGet", _answered)
    DevMgtSet = _method("DevMgtSet", _answered)
    DevMgtTrap = _method("DevMgtTrap", _answered)
    DevMgtTrapRepress = _method("DevMgtTrapRepress", _unanswered)

    CommMgtGet = _method("CommMgtGet", _answered)
    CommMgtSet = _method("CommMgtSet", _answered)
    CommMgtSend = _method("CommMgtSend", _unanswered)

    SNMPGet = _method("SNMPGet", _answered)
    SNMPSet = _method("SNMPSet", _answered)
    SNMPSend = _method("SNMPSend", _unanswered)

    VendGet = _method("VendGet", _answered)
    VendSet = _method("VendSet", _answered)
    VendSend = _method("VendSend", _unanswered)
    VendTrap = _method("VendTrap", _answered)
    VendTrapRepress = _method("VendTrapRepress", _unanswered)

    DevAdmGet = _method("DevAdmGet", _answered)
    DevAdmSet = _method("DevAdmSet", _answered)

    BISGet = _method("BISGet", _answered)
    BISSet = _method("BISSet", _answered)
    BISReport = _method("BISReport", _answered)

    CongMgtGet = _method("CongMgtGet", _answered)
    CongMgtSet = _method("CongMgtSet", _answered)
    CongMgtTrap = _method("CongMgtTrap", _answered)
    CongMgtTrapRepress = _method("CongMgtTrapRepress", _unanswered)
