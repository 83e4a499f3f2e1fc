"""
Types of verbs: states, access rights, attributes, work requests and completions.

Follows InfiniBand Architecture vol. 1, chapters 10 and 11; the numbers are those of libibverbs, so that a
value printed here can be looked up there.
"""

from __future__ import annotations

from collections.abc import Sequence
from enum import Enum, IntEnum, IntFlag
from inspect import get_annotations
from operator import attrgetter
from typing import Any, Final, NamedTuple, Protocol, Union

from txrdma.iba.types import GID, GUID, LID, LKey, MACAddress, MTU, QPN, RKey
from txrdma.kit.values import frozen, record
from txrdma.kit.wire import Code

Buffer = Union[bytes, bytearray, memoryview]
"""A bytes-like object."""


class QPKind(IntEnum):
    """
    The transport service of a queue pair (IBA 9.1.2).

    C{GSI} is queue pair 1 of a port (IBA 11.2.5.1), with the service C{UD}; that of a kernel device belongs
    to the kernel.
    """

    GSI = 1
    RC = 2
    UC = 3
    UD = 4


class QPState(IntEnum):
    """The state of a queue pair (IBA 10.3.1)."""

    RESET = 0
    INIT = 1
    RTR = 2
    RTS = 3
    SQD = 4
    SQE = 5
    ERR = 6


class Access(IntFlag):
    """
    Access rights of a memory region, or of a queue pair (IBA 10.6.3).

    Remote writes and atomics also need C{LOCAL_WRITE} (IBA 10.6.3.1).
    """

    NONE = 0
    LOCAL_WRITE = 1
    REMOTE_WRITE = 2
    REMOTE_READ = 4
    REMOTE_ATOMIC = 8


class Status(IntEnum):
    """Result of a work request (IBA 10.10.3)."""

    SUCCESS = 0
    LOC_LEN_ERR = 1
    LOC_QP_OP_ERR = 2
    LOC_EEC_OP_ERR = 3
    LOC_PROT_ERR = 4
    WR_FLUSH_ERR = 5
    MW_BIND_ERR = 6
    BAD_RESP_ERR = 7
    LOC_ACCESS_ERR = 8
    REM_INV_REQ_ERR = 9
    REM_ACCESS_ERR = 10
    REM_OP_ERR = 11
    RETRY_EXC_ERR = 12
    RNR_RETRY_EXC_ERR = 13
    LOC_RDD_VIOL_ERR = 14
    REM_INV_RD_REQ_ERR = 15
    REM_ABORT_ERR = 16
    INV_EECN_ERR = 17
    INV_EEC_STATE_ERR = 18
    FATAL_ERR = 19
    RESP_TIMEOUT_ERR = 20
    GENERAL_ERR = 21


class Operation(IntEnum):
    """Operation of a send request (IBA 10.8.3)."""

    RDMA_WRITE = 0
    RDMA_WRITE_WITH_IMMEDIATE = 1
    SEND = 2
    SEND_WITH_IMMEDIATE = 3
    RDMA_READ = 4
    COMPARE_AND_SWAP = 5
    FETCH_AND_ADD = 6


class CompletionOpcode(IntEnum):
    """Kind of a completed request."""

    SEND = 0
    RDMA_WRITE = 1
    RDMA_READ = 2
    COMPARE_AND_SWAP = 3
    FETCH_AND_ADD = 4
    RECEIVE = 128
    RECEIVE_RDMA_WITH_IMMEDIATE = 129


COMPLETION_OF: Final = {
    Operation.RDMA_WRITE: CompletionOpcode.RDMA_WRITE,
    Operation.RDMA_WRITE_WITH_IMMEDIATE: CompletionOpcode.RDMA_WRITE,
    Operation.SEND: CompletionOpcode.SEND,
    Operation.SEND_WITH_IMMEDIATE: CompletionOpcode.SEND,
    Operation.RDMA_READ: CompletionOpcode.RDMA_READ,
    Operation.COMPARE_AND_SWAP: CompletionOpcode.COMPARE_AND_SWAP,
    Operation.FETCH_AND_ADD: CompletionOpcode.FETCH_AND_ADD,
}
"""The opcode of the completion of each operation."""


class Segment(NamedTuple):
    """A piece of registered memory: a scatter/gather element (IBA 10.8.3)."""

    address: int
    length: int
    lkey: LKey


class Addressed(Protocol):
    """The address handle of a datagram, as far as requests know it: an address that a device has resolved."""

    @property
    def address(self) -> AddressVector: ...


@record
class SendRequest:
    """
    A request for a send queue.

    It may be changed and reused as soon as C{postSend} has returned.

    @ivar identifier: copied to the completion (C{wr_id}).
    @ivar segments: registered memory to send or, for reads and atomics, to fill. It
        must stay unchanged until the completion.
    @ivar inline: bytes to send instead of C{segments}, copied when posted, at most the queue pair's
        C{maxInline}.
    @ivar signaled: success generates a completion; failure always does.
    @ivar solicited: solicited event: wakes the receiver even if armed for solicited completions only.
    @ivar fence: wait for earlier reads and atomics of this queue pair.
    @ivar immediate: 32 bits for the receiver's completion.
    @ivar remoteAddress: address in the peer's memory (RDMA and atomics). An atomic's is divisible by 8.
    @ivar operand: 64-bit number to add, or to swap in. The previous value is written to the 8 bytes of
        C{segments}.
    @ivar compare: the expected previous value of a swap.
    @ivar address: the destination of a datagram, with C{remoteQPN} and C{remoteQKey}.
    """

    identifier: int
    operation: Operation
    segments: Sequence[Segment] = ()
    inline: Sequence[Buffer] = ()
    signaled: bool = True
    solicited: bool = False
    fence: bool = False
    immediate: int = 0
    remoteAddress: int = 0
    rkey: RKey = RKey(0)
    operand: int = 0
    compare: int = 0
    address: Addressed | None = None
    remoteQPN: QPN = QPN(0)
    remoteQKey: int = 0


@record
class ReceiveRequest:
    """
    A request for a receive queue: the memory for one message.

    It must stay unchanged until its completion; then it may be reused. The first 40 bytes of a received
    datagram are for its GRH (IBA 11.4.2.1).
    """

    identifier: int
    segments: Sequence[Segment] = ()


class Completion(NamedTuple):
    """
    Completion of a work request.

    If C{status} is not C{SUCCESS}, only C{identifier}, C{status} and C{qpn} are valid.

    @ivar length: bytes received, including 40 for the GRH of a datagram.
    @ivar immediate: immediate data of the message, or None.
    @ivar sourceQPN: source queue pair of a datagram.
    @ivar hasGRH: the receive buffer contains a GRH.
    @ivar sourceLID: source LID of a datagram, on InfiniBand; C{serviceLevel}: its service level.
    """

    identifier: int
    status: Status
    opcode: CompletionOpcode
    qpn: QPN
    length: int = 0
    immediate: int | None = None
    sourceQPN: QPN = QPN(0)
    hasGRH: bool = False
    sourceLID: LID = LID(0)
    serviceLevel: int = 0


@frozen
class Capacity:
    """Capacity of a queue pair (IBA 10.2.4): requests, and segments and inline bytes of each."""

    maxSend: int = 64
    maxReceive: int = 64
    maxSendSegments: int = 4
    maxReceiveSegments: int = 4
    maxInline: int = 0


@frozen
class AddressVector:
    """
    Address vector of a remote port (IBA 11.2.2).

    @ivar dgid: destination; on RoCE v2 an IP address in GID form.
    @ivar dmac: MAC address of the next hop on RoCE, if known (SMC-R exchanges it).
    @ivar sourcePathBits: low bits of the source LID, as many as the port's LMC.
    """

    dgid: GID
    sgidIndex: int = 0
    port: int = 1
    hopLimit: int = 64
    trafficClass: int = 0
    flowLabel: int = 0
    serviceLevel: int = 0
    dlid: LID = LID(0)
    dmac: MACAddress | None = None
    sourcePathBits: int = 0


class MigrationState(IntEnum):
    """State of a queue pair's alternate path (IBA 17.2.8)."""

    MIGRATED = 0
    REARM = 1
    ARMED = 2


@frozen
class QPAttributes:
    """
    Attributes of a queue pair; None for "not specified" (IBA 11.2.4.2).

    @ivar timeout: local ACK timeout, 4.096 microseconds times two to this power; 0 for none.
    @ivar alternateAddress: the path to use when the first one fails (IBA 17.2.8); given with
        C{alternateTimeout} and C{alternatePKeyIndex}, which default to those of the first path.
    @ivar migrationState: C{REARM} arms an alternate path, C{MIGRATED} uses it at once.
    @ivar retryCount: number of retransmissions without an answer, 0 to 7.
    @ivar rnrRetry: number of retransmissions after "receiver not ready", 0 to 7; 7 for no limit.
    @ivar minRNRTimer: encoded delay requested from senders after RNR NAK (IBA table 45).
    @ivar maxRDAtomic: maximum number of outstanding reads and atomics as requester.
    @ivar maxDestRDAtomic: maximum number of outstanding reads and atomics as responder.
    """

    state: QPState | None = None
    currentState: QPState | None = None
    pkeyIndex: int | None = None
    port: int | None = None
    access: Access | None = None
    qkey: int | None = None
    address: AddressVector | None = None
    pathMTU: MTU | None = None
    destinationQPN: QPN | None = None
    rqPSN: int | None = None
    sqPSN: int | None = None
    maxRDAtomic: int | None = None
    maxDestRDAtomic: int | None = None
    minRNRTimer: int | None = None
    timeout: int | None = None
    retryCount: int | None = None
    rnrRetry: int | None = None
    alternateAddress: AddressVector | None = None
    alternatePKeyIndex: int | None = None
    alternateTimeout: int | None = None
    migrationState: MigrationState | None = None

    def specified(self) -> dict[str, Any]:
        """The specified attributes by name."""
        values = zip(_ATTRIBUTES, _valuesOf(self), strict=True)
        return {name: value for name, value in values if value is not None}

    def given(self) -> frozenset[str]:
        """Names of the specified attributes: the attribute mask of verbs."""
        return frozenset(self.specified())


_ATTRIBUTES: Final = tuple(get_annotations(QPAttributes))
_valuesOf: Final = attrgetter(*_ATTRIBUTES)


class PortState(Code):
    """Whether a port carries traffic (IBA 7.2.7)."""

    NOP = 0
    DOWN = 1
    INIT = 2
    ARMED = 3
    ACTIVE = 4


class PhysicalState(Code):
    """Physical state of a port (IBA 14.2.5.6)."""

    NOP = 0
    SLEEP = 1
    POLLING = 2
    DISABLED = 3
    TRAINING = 4
    LINK_UP = 5
    ERROR_RECOVERY = 6
    PHY_TEST = 7


class LinkLayer(IntEnum):
    """Link layer of a port."""

    UNSPECIFIED = 0
    INFINIBAND = 1
    ETHERNET = 2


class GIDType(Enum):
    """Type of a GID, with the names of sysfs (IBA annexes A16 and A17)."""

    INFINIBAND = "IB"
    ROCE_V1 = "RoCE v1"
    ROCE_V2 = "RoCE v2"


class GIDEntry(NamedTuple):
    """An entry of a port's GID table; C{gid} is all zeros in an empty one."""

    gid: GID
    type: GIDType
    netdev: str = ""


def usualGID(table: Sequence[GIDEntry]) -> int:
    """The index of the GID that most peers can reach: an IPv4 address, else a GID that is not link-local."""

    def rank(index: int) -> tuple[bool, bool, bool, bool]:
        gid, type, _netdev = table[index]
        return gid.ip is None, not gid.isMapped, gid.isLinkLocal, type is GIDType.ROCE_V1

    return min(range(len(table)), key=rank, default=0)


CM_SUPPORTED: Final = 1 << 16
"""IsCommunicationManagementSupported in PortInfo's CapabilityMask (IBA 14.2.5.6): peers find its CM."""


@frozen
class PortAttributes:
    """
    Current attributes of a port (IBA 11.2.1.2 and 14.2.5.6).

    @ivar rate: link rate in bits per second; 0 if unknown.
    @ivar width: lanes of the link; 0 if unknown.
    @ivar lidMask: LMC: number of low bits of the LID that the port may choose.
    @ivar capabilities: CapabilityMask of PortInfo.
    @ivar maxMessageLength: maximum length of a message in bytes.
    @ivar longestDatagram: maximum length of a datagram to a device of the same kind in bytes; 0 if it is the
        active MTU.
    """

    state: PortState
    maxMTU: MTU
    activeMTU: MTU
    lid: LID = LID(0)
    rate: int = 0
    netdev: str = ""
    mac: MACAddress | None = None
    physicalState: PhysicalState = PhysicalState.NOP
    linkLayer: LinkLayer = LinkLayer.UNSPECIFIED
    width: int = 0
    lidMask: int = 0
    smLID: LID = LID(0)
    smServiceLevel: int = 0
    capabilities: int = 0
    maxMessageLength: int = 1 << 31
    badPKeys: int = 0
    badQKeys: int = 0
    longestDatagram: int = 0


class NodeType(Code):
    """Type of an RDMA device, with the numbers of libibverbs."""

    UNKNOWN = 0
    CHANNEL_ADAPTER = 1
    SWITCH = 2
    ROUTER = 3
    RNIC = 4
    USNIC = 5
    USNIC_UDP = 6
    UNSPECIFIED = 7


class AtomicCapability(IntEnum):
    """Scope in which atomic operations are atomic (IBA 11.2.1.2)."""

    NONE = 0
    HCA = 1
    GLOBAL = 2


@frozen
class DeviceAttributes:
    """
    Attributes of a device, except its limits (IBA 11.2.1.2).

    @ivar atomics: C{HCA} if they are atomic only with respect to each other, within the device.
    @ivar acknowledgesByProgram: packets are acknowledged by the program that has opened the device, and
        probably by the peer's program, but not while it is busy: an adapter's C{timeout} is too short.
    @ivar ackDelay: encoded maximum time until the device acknowledges a packet; 0 is almost none.
    @ivar canMigrate: whether queue pairs can have alternate paths (IBA 17.2.8). The device may still refuse a
        path.
    @ivar canDisarm: whether queue pairs can give up an alternate path: they provide
        L{IDisarmable<txrdma.interfaces.IDisarmable>}.
    """

    nodeType: NodeType
    nodeGUID: GUID
    systemImageGUID: GUID
    firmware: str = ""
    vendorID: int = 0
    vendorPartID: int = 0
    hardwareVersion: int = 0
    atomics: AtomicCapability = AtomicCapability.NONE
    acknowledgesByProgram: bool = False
    ackDelay: int = 0
    canMigrate: bool = False
    canDisarm: bool = False


_UNLIMITED: Final = 1 << 16


@frozen
class DeviceLimits:
    """
    Maximum numbers and sizes of a device's objects (IBA 11.2.1.2).

    @ivar maxInline: inline bytes of a request; a queue pair's C{capacity} has its actual limit.
    @ivar maxRDAtomic: outstanding reads and atomics of a queue pair as requester.
    @ivar maxDestRDAtomic: outstanding reads and atomics of a queue pair as responder.
    """

    maxQueuePairs: int
    maxQueuePairRequests: int
    maxSegments: int
    maxCompletionQueues: int
    maxCompletionQueueDepth: int
    maxMemoryRegions: int
    maxMemoryRegionLength: int
    maxInline: int
    maxRDAtomic: int
    maxDestRDAtomic: int
    maxProtectionDomains: int
    maxAddressHandles: int
    maxSharedReceiveQueues: int
    maxSharedReceiveQueueRequests: int
    maxSharedReceiveQueueSegments: int

    @property
    def hasUnlimitedInline(self) -> bool:
        """Whether any message can be sent inline, so that no registered memory is needed."""
        return self.maxInline >= _UNLIMITED


class AsyncEventKind(Enum):
    """Kind of an asynchronous event of a device (IBA 11.6.3)."""

    QP_FATAL = "queue pair fatal error"
    QP_REQUEST_ERROR = "queue pair got an invalid request"
    QP_ACCESS_ERROR = "queue pair got a request without the right"
    COMMUNICATION_ESTABLISHED = "first message before ready to send"
    SQ_DRAINED = "send queue drained"
    PATH_MIGRATED = "path migrated"
    PATH_MIGRATION_FAILED = "path migration failed"
    CQ_ERROR = "completion queue overrun"
    PORT_ACTIVE = "port became active"
    PORT_ERROR = "port went down"
    GID_CHANGE = "GID table changed"
    LID_CHANGE = "LID changed"
    PKEY_CHANGE = "P_Key table changed"
    SM_CHANGE = "subnet manager changed"
    CLIENT_REREGISTER = "clients must register again"
    QP_LAST_WQE_REACHED = "queue pair took its last receive from a shared queue"
    SRQ_LIMIT_REACHED = "shared receive queue below its limit"
    SRQ_ERROR = "shared receive queue failed"
    DEVICE_FATAL = "device fatal error"
