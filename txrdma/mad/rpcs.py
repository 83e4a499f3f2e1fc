"""
The remote procedure calls of the specification, by their names.

Follows InfiniBand Architecture vol. 1, 13.4.5 (methods), and chapters 14 to 16 for which class has which.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from functools import partial
from typing import Any, Final, Generic, TYPE_CHECKING, TypeVar, Union

from typing_extensions import TypedDict, Unpack

from twisted.internet.defer import Deferred

from txrdma.error import InvalidRequest
from txrdma.iba.path import IBPath
from txrdma.mad.calls import Call
from txrdma.mad.core.frames import Keys
from txrdma.mad.layouts.attributes import Attribute, ManagementClass, Method, RPCS
from txrdma.mad.layouts.sa import MultiPathRecord, PathRecord, Query, Record

A = TypeVar("A", bound=Attribute)
R = TypeVar("R", bound=Record)


_NAMES: Final = {(rpc.managementClass, rpc.method): rpc.name for rpc in RPCS.values()}


def nameOf(managementClass: int, method: int) -> str:
    """Name of the call of this class and method; C{""} without one."""
    if managementClass == ManagementClass.SUBN_DIRECTED:
        managementClass = ManagementClass.SUBN_LID
    elif 0x09 <= managementClass <= 0x0F or 0x30 <= managementClass <= 0x4F:
        managementClass = ManagementClass.VENDOR_09
    return _NAMES.get((ManagementClass(managementClass), Method(method)), "")


def checkedKind(name: str, payload: object) -> type[Attribute]:
    """
    Attribute type that a call of that name would carry.

    @raise InvalidRequest: there is no such call, or it carries no such attribute; the message lists what
        there is.
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

    @ivar timeoutSeconds: time to wait for an answer, each time that the request is sent.
    @ivar retries: number of times that a request without an answer is sent again.
    @ivar keys: M_Key, SM_Key and others that a class requires.
    @ivar componentMask: components of a record that are selected; a L{Query} brings its own.
    @ivar transactionID: the transaction ID to send, which no other call of the agent has at present; without
        it, or when it is 0, one is drawn. A port may leave only the lower half to choose:
        C{transactionIDBits}.
    """

    timeoutSeconds: float | None
    retries: int | None
    keys: Keys | None
    componentMask: int
    transactionID: int


class _Calling(partial[Any]):
    """A call of one agent, by name: L{RPCs.call} with its first argument, and without a frame of its own."""

    __slots__ = ()


class Answered(_Calling):
    """A call with an answer of the same attribute: a type or an instance goes in, an instance comes out."""

    __slots__ = ()

    if TYPE_CHECKING:

        def __call__(
            self,
            payload: Union[type[A], A],
            path: IBPath,
            attributeModifier: int = 0,
            **options: Unpack[CallOptions],
        ) -> Deferred[A]: ...


class Unanswered(_Calling):
    """A call without an answer, which is done when it is sent."""

    __slots__ = ()

    if TYPE_CHECKING:

        def __call__(
            self,
            payload: Union[type[A], A],
            path: IBPath,
            attributeModifier: int = 0,
            **options: Unpack[CallOptions],
        ) -> Deferred[None]: ...


class OneRecord(_Calling):
    """A call for the one record that a query describes."""

    __slots__ = ()

    if TYPE_CHECKING:

        def __call__(
            self,
            payload: Union[type[R], R, Query[R]],
            path: IBPath | None = None,
            attributeModifier: int = 0,
            **options: Unpack[CallOptions],
        ) -> Deferred[R]: ...


class ManyRecords(_Calling):
    """A call for all records that a query describes."""

    __slots__ = ()

    if TYPE_CHECKING:

        def __call__(
            self,
            payload: Union[type[R], R, Query[R]],
            path: IBPath | None = None,
            attributeModifier: int = 0,
            **options: Unpack[CallOptions],
        ) -> Deferred[list[R]]: ...


class Paths(_Calling):
    """The call for paths between several ports: its answer is of another kind than the question."""

    __slots__ = ()

    if TYPE_CHECKING:

        def __call__(
            self,
            payload: Union[MultiPathRecord, Query[MultiPathRecord]],
            path: IBPath | None = None,
            attributeModifier: int = 0,
            **options: Unpack[CallOptions],
        ) -> Deferred[list[PathRecord]]: ...


C = TypeVar("C", bound=_Calling)


class _Named(Generic[C]):
    """Descriptor of a call, which has the name of the class attribute that it is assigned to."""

    def __init__(self, kind: type[C]) -> None:
        self._kind = kind
        self._name = ""

    def __set_name__(self, owner: type, name: str) -> None:
        self._name = name

    def __get__(self, agent: RPCs, owner: type | None = None) -> C:
        return self._kind(agent.call, self._name)


class RPCs(ABC):
    """
    Calls of the specification as methods, of agents and their like.

    Each takes the payload as a class, whose content then is zeros, or as an instance; SA records also as a
    L{Query}. C{path} leads to the peer that is asked, and is reversible; calls of subnet administration need
    none. Options are L{CallOptions}.
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

        @param path: leads to the peer that is asked; without one, calls of subnet administration go to the SA
            of the agent's port.
        @param attributeModifier: selects a part of the attribute; some structures have a C{modifier} that
            computes it.
        @return: fires with the answer; fails with L{MADError <txrdma.mad.errors.MADError>},
            L{MADTimeoutError <txrdma.mad.errors.MADTimeoutError>} or
            L{MADClassError <txrdma.mad.errors.MADClassError>}, with C{InvalidRequest} when nothing was sent.
        """

    def issue(
        self, call: Call, path: IBPath, timeoutSeconds: float | None = None, retries: int | None = None
    ) -> None:
        """
        Make a call that was put together already: for callers that make very many.

        The call's own C{answered} or C{failed} is called at its end; C{forget} gives it up.

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
    SubnGet = _Named(Answered)
    SubnSet = _Named(Answered)
    SubnTrap = _Named(Answered)
    SubnTrapRepress = _Named(Unanswered)

    SubnAdmGet = _Named(OneRecord)
    SubnAdmSet = _Named(OneRecord)
    SubnAdmDelete = _Named(OneRecord)
    SubnAdmGetTable = _Named(ManyRecords)
    SubnAdmGetTraceTable = _Named(ManyRecords)
    SubnAdmGetMulti = _Named(Paths)
    SubnAdmReport = _Named(Answered)
    SubnAdmTrap = _Named(Answered)
    SubnAdmTrapRepress = _Named(Unanswered)

    PerformanceGet = _Named(Answered)
    PerformanceSet = _Named(Answered)

    BMGet = _Named(Answered)
    BMSet = _Named(Answered)
    BMSend = _Named(Unanswered)
    BMTrap = _Named(Answered)
    BMTrapRepress = _Named(Unanswered)

    DevMgtGet = _Named(Answered)
    DevMgtSet = _Named(Answered)
    DevMgtTrap = _Named(Answered)
    DevMgtTrapRepress = _Named(Unanswered)

    CommMgtGet = _Named(Answered)
    CommMgtSet = _Named(Answered)
    CommMgtSend = _Named(Unanswered)

    SNMPGet = _Named(Answered)
    SNMPSet = _Named(Answered)
    SNMPSend = _Named(Unanswered)

    VendGet = _Named(Answered)
    VendSet = _Named(Answered)
    VendSend = _Named(Unanswered)
    VendTrap = _Named(Answered)
    VendTrapRepress = _Named(Unanswered)

    DevAdmGet = _Named(Answered)
    DevAdmSet = _Named(Answered)

    BISGet = _Named(Answered)
    BISSet = _Named(Answered)
    BISReport = _Named(Answered)

    CongMgtGet = _Named(Answered)
    CongMgtSet = _Named(Answered)
    CongMgtTrap = _Named(Answered)
    CongMgtTrapRepress = _Named(Unanswered)
