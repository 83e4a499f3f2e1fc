"""Interfaces that have several implementations, or that applications implement or use."""

from __future__ import annotations

from collections.abc import Callable, Sequence, Sized
from enum import Enum
from typing import Any, TYPE_CHECKING

from zope.interface import Attribute, Interface

from twisted.internet.defer import Deferred
from twisted.internet.interfaces import ITransport

from txrdma.iba.types import GID, LKey, PKey, QPN, RKey
from txrdma.iba.verbs import (
    Access,
    AddressVector,
    AsyncEventKind,
    Buffer,
    Capacity,
    Completion,
    DeviceAttributes,
    DeviceLimits,
    GIDEntry,
    PortAttributes,
    QPAttributes,
    QPKind,
    QPState,
    ReceiveRequest,
    SendRequest,
)
from txrdma.kit.values import frozen

if TYPE_CHECKING:
    from typing_extensions import Unpack

    from txrdma.iba.path import IBPath, MADEndPort  # streams have no paths: 4 ms of their imports
    from txrdma.mad.layouts.messages import MADRequest
    from txrdma.mad.rpcs import CallOptions


@frozen
class AsyncEvent:
    """
    An asynchronous event of a device (IBA 11.6.3). Of the objects, only the affected one is not None.

    @ivar port: number of the affected port.
    """

    kind: AsyncEventKind
    port: int | None = None
    queuePair: IQueuePair | None = None
    completionQueue: ICompletionQueue | None = None
    sharedReceiveQueue: ISharedReceiveQueue | None = None


class IVerbsDevice(Interface):
    """An open RDMA device. Its opener closes it, after all objects created from it."""

    name: str = Attribute("Name of the device in device strings.")
    portCount: int = Attribute("Number of ports; they are numbered from 1.")
    attributes: DeviceAttributes = Attribute("Vendor, version, GUIDs and capabilities.")
    limits: DeviceLimits = Attribute("Maximum numbers and sizes of objects.")

    def gids(port: int) -> Sequence[GID]:
        """GID table of a port, indexed by C{sgidIndex}."""

    def gidTable(port: int) -> Sequence[GIDEntry]:
        """GID table of a port, with the type and the network interface of each GID."""

    def pkeys(port: int) -> Sequence[PKey]:
        """P_Key table of a port, indexed by C{pkeyIndex}."""

    def portAttributes(port: int) -> PortAttributes:
        """Current attributes of a port, such as its state and LID."""

    def createProtectionDomain() -> IProtectionDomain:
        """Allocate a protection domain."""

    def createChannel() -> ICompletionChannel:
        """Create a completion channel."""

    def createCompletionQueue(depth: int, channel: ICompletionChannel) -> ICompletionQueue:
        """Create a completion queue for at least C{depth} completions."""

    def subscribe(listener: Callable[[AsyncEvent], None]) -> Callable[[], None]:
        """Call C{listener} with asynchronous events, in the reactor's thread; returns a function to stop."""

    def close() -> None:
        """Close the device. Idempotent."""


class IProtectionDomain(Interface):
    """A protection domain: its queue pairs can access only its own memory regions (IBA 10.2.3)."""

    device: IVerbsDevice = Attribute("Device of the domain.")

    def allocateMemory(length: int, access: Access) -> IMemoryRegion:
        """Allocate and register zeroed memory, of the kind that is fastest for this device."""

    def registerMemory(buffer: memoryview, access: Access) -> IMemoryRegion:
        """Register a writable, contiguous buffer."""

    def createAddressHandle(address: AddressVector) -> IAddressHandle:
        """Create the address of a remote port, for datagrams."""

    def createSharedReceiveQueue(maxReceive: int, maxSegments: int) -> ISharedReceiveQueue:
        """Create a queue of at least C{maxReceive} receives with C{maxSegments} segments each."""

    def createQueuePair(
        kind: QPKind,
        send: ICompletionQueue,
        receive: ICompletionQueue,
        capacity: Capacity,
        shared: ISharedReceiveQueue | None = None,
    ) -> IQueuePair:
        """
        Create a queue pair, in C{RESET}.

        @param kind: transport service; C{GSI} is queue pair 1, a UD queue pair, of the port set by C{modify}.
        @param shared: shared receive queue that replaces its own receive queue.
        @raise txrdma.error.InvalidRequest: the device does not support this kind.
        """

    def close() -> None:
        """Deallocate the domain. Idempotent."""


class IMemoryRegion(Interface):
    """Registered memory (IBA 10.6)."""

    address: int = Attribute("Address of its first byte, for work requests.")
    length: int = Attribute("Its length in bytes.")
    lkey: LKey = Attribute("Key for segments of local work requests.")
    rkey: RKey = Attribute("Key for RDMA by the peer.")
    view: memoryview = Attribute("The memory, as unsigned bytes; empty after C{close}.")

    def close() -> None:
        """Deregister the memory: later use of the keys fails. Idempotent."""


class IAddressHandle(Interface):
    """Address of a remote port, for datagrams (IBA 10.2.2.2)."""

    address: AddressVector = Attribute("The address, as passed to C{createAddressHandle}.")

    def close() -> None:
        """Destroy the handle. Idempotent."""


class ICompletionChannel(Interface):
    """
    A file descriptor that signals completions of armed completion queues.

    One channel may serve many completion queues.
    """

    def fileno() -> int:
        """File descriptor, readable while events are pending."""

    def takeEvents() -> Sequence[ICompletionQueue]:
        """Queues with a completion since they were armed; they are no longer armed."""

    def callForLocal(call: Callable[[], object] | None) -> None:
        """
        Call a function for events that this process raises, instead of making the descriptor readable.

        C{takeEvents} does not return these. Peers and adapters still make the descriptor readable, and a
        channel may do so for every event.

        @param call: None: make the descriptor readable from now on.
        """

    def close() -> None:
        """Close the descriptor, which must not be in the reactor any more. Idempotent."""


class ICompletionQueue(Interface):
    """A queue of completions of work requests (IBA 10.2.5)."""

    depth: int = Attribute("Minimum number of completions that it can hold.")

    def arm(solicitedOnly: bool = False) -> None:
        """
        Raise one event on the channel for the next completion.

        Earlier completions may raise none: arm, then poll until empty.
        """

    isLive: bool = Attribute(
        "Whether C{poll} finds completions without help of the reactor or a device, as with shared memory."
    )

    def disarm() -> None:
        """Cancel C{arm}, because the queue is polled: peers need not signal the channel."""

    def poll(limit: int) -> Sequence[Completion]:
        """
        Take at most C{limit} completions, oldest first.

        If it raises, it can be repeated: it has taken none, or has moved the queue pairs to ERR whose
        completions may be lost.
        """

    def close() -> None:
        """Destroy the queue. Idempotent."""


class IQueuePair(Interface):
    """A queue pair (IBA 10.2.4)."""

    kind: QPKind = Attribute("Transport service.")
    number: QPN = Attribute("Queue pair number, 24 bits.")
    state: QPState = Attribute("State, changed by C{modify} and by errors.")
    capacity: Capacity = Attribute("Actual capacity, at least the requested one.")
    route: str = Attribute("'shared-memory', 'rocev2' or 'verbs'; '' before C{RTR}.")
    rewinds: int = Attribute(
        "Number of retransmissions, of all packets from a lost one on; 0 if not counted."
    )

    def modify(attributes: QPAttributes) -> None:
        """
        Change state or attributes.

        @raise txrdma.error.InvalidRequest: the transition, or an attribute with it, is not allowed
            (IBA 11.2.4.2, tables 91 to 96); nothing has changed.
        """

    def query() -> QPAttributes:
        """All current attributes."""

    def postSend(requests: Sequence[SendRequest]) -> None:
        """
        Append requests to the send queue; if it raises, none is appended.

        @raise txrdma.error.InvalidRequest: a request is invalid, or not allowed in this state.
        @raise txrdma.error.QueueFull: the queue cannot hold all of them.
        """

    def postReceive(requests: Sequence[ReceiveRequest]) -> None:
        """Append requests to the receive queue; raises as C{postSend} does."""

    def close() -> None:
        """Destroy the queue pair: outstanding requests get no completion. Idempotent."""


class IDirectLane(Interface):
    """
    Optional on a queue pair whose peer is on this host: memory that both ends map, without work requests.

    C{prepare}, C{offer}, C{isPlaced} and C{hasPeerEnded} can be used from RTR on, the other methods in RTS.
    What is in shared memory is not lost when the sender's process ends.

    Messages are SENDs of one length and layout. They are ordered with all posted requests, and complete like
    them. The peer receives them by a lane or by posted receives.
    """

    def prepare(rkey: RKey, known: Callable[[], None]) -> None:
        """
        Map the peer's memory region in advance, so that no RDMA request waits for it.

        @param known: called once, possibly at once: the region is mapped or refused, or the pair has ended.
        """

    def offer(rkey: RKey) -> None:
        """
        Send a local memory region to the peer, whose RDMA requests then need no answer of this process.

        The peer must be able to send already: until then the offer may be lost.
        """

    def isPlaced() -> bool:
        """Whether everything that was posted is in the peer's memory."""

    def isConsumed() -> bool:
        """
        Whether the peer has consumed everything that was posted, although unsignaled requests did not say so.

        @return: if False, the latest request raises a completion, as if it had been signaled. False as well
            after the end of the queue pair.
        """

    def hasPeerEnded() -> bool:
        """Whether the peer's queue pair or process has ended; everything that it sent has arrived then."""

    def isPeerPolling() -> bool:
        """Whether the peer busy-polls for messages: it need not be woken, and may answer at once."""

    def openLane(length: int, first: int, unpack: Callable[[Buffer, int], tuple[int, ...]]) -> Sized:
        """
        Receive messages of this layout by C{takeMessages} from now on; they need no receives.

        The completion queue of receives gets everything else, and sometimes such messages, too: poll both.

        @param length: bytes of a message.
        @param first: the first number of each message; SENDs with another one are not such messages.
        @param unpack: C{unpack_from} of the layout's C{struct.Struct}, or of a part of the layout.
        @return: the completions in the completion queue of receives. While there are none, it need not be
            polled for this queue pair.
        """

    def targetOf(rkey: RKey, address: int, length: int) -> tuple[memoryview, memoryview] | None:
        """
        The peer's memory, checked once.

        @return: the bytes, and a word that is 1 as long as they may be written; None when the region is not
            mapped yet, or can't be.
        """

    def putMessage(identifier: int, signaled: bool, message: bytes) -> bool:
        """
        Send one message now, behind all posted requests and all bytes written to a target.

        @param message: as many bytes as given to C{openLane}.
        @return: False when it has to be posted instead.
        """

    def takeMessages(limit: int) -> Sequence[tuple[int, ...]]:
        """Take at most C{limit} messages, oldest first; none before the completion queue is empty."""


class IDirectDatagrams(Interface):
    """Optional on a queue pair: datagrams without work requests, except those with immediate data."""

    bufferBytes: int = Attribute(
        "Bytes of packets that the port of the queue pair retains until they are taken."
    )

    def openInbox() -> Sized:
        """Queue datagrams for C{takeDatagrams} from now on, in any state: see C{IDirectLane.openLane}."""

    def takeDatagrams(limit: int) -> Sequence[tuple[tuple[bytes, int], memoryview, int]]:
        """
        Take datagrams, oldest first: the sender's IP address and queue pair number, the bytes, and the ECN
        field of the IP header (zero by shared memory).
        """

    def putDatagram(address: IAddressHandle, qpn: QPN, qkey: int, head: Buffer, body: Buffer) -> bool:
        """Send C{head} and C{body} as one datagram, behind all posted requests; False: post it instead."""


class IDisarmable(Interface):
    """Optional on a queue pair that can give up a loaded alternate path, which IBA 17.2.8 does not offer."""

    def disarm() -> None:
        """
        Give up the alternate path and any migration to it: another one can be loaded. Idempotent.

        The peer may still migrate until it has done the same.
        """


class ITrimmable(Interface):
    """Optional on a queue pair whose receives need no memory before messages arrive."""

    def trim() -> None:
        """Return the memory of posted receives to the system, which provides it again; its bytes are lost."""


class IMulticast(Interface):
    """Optional on a UD queue pair, from RTR on: multicast groups (IBA 10.5)."""

    def attachMulticast(group: GID) -> None:
        """
        Also receive the datagrams to a multicast group, which have the queue pair's Q_Key. Idempotent.

        @raise txrdma.error.InvalidRequest: it is not the GID of a group that this port can join.
        @raise txrdma.error.DeviceUnavailable: the system does not let this process join the group.
        """

    def detachMulticast(group: GID) -> None:
        """Stop receiving the datagrams to a multicast group. Idempotent."""


class IServiceClaims(Interface):
    """
    Optional on a device whose queue pair 1 receives messages for the devices of several processes, and on its
    management port.
    """

    share: int | None = Attribute("Upper 8 bits of communication IDs and request IDs; None for any.")

    def claimService(serviceID: int) -> Callable[[], None]:
        """
        Receive requests for a service ID, until the returned function is called.

        @raise txrdma.error.ResourceExhausted: another device of the same address has it.
        """


class IReactorDevice(Interface):
    """Optional on a device that uses the reactor, and may leave it while no connection is in use."""

    canRest: bool = Attribute(
        "Whether C{rest} loses nothing: peers need no answers of this process meanwhile."
    )
    isAttended: bool = Attribute("Whether the events of a resting device must be watched, as an adapter's.")

    def rest() -> None:
        """Leave the reactor. Idempotent."""

    def wake() -> None:
        """Return to the reactor, or add readers again that other code has removed. Idempotent."""

    def descriptors() -> Sequence[int]:
        """File descriptors to watch while the device rests: call C{attend} when one is readable."""

    def attend() -> None:
        """Process pending events while the device rests."""

    def drive() -> bool:
        """
        Process pending events once, after the reactor has stopped.

        @return: whether an acknowledgement of a peer is outstanding.
        """


class ISharedReceiveQueue(Interface):
    """
    A receive queue shared by queue pairs of one domain (IBA 10.2.9).

    Its queue pairs refuse C{postReceive}. When one enters ERR, receives that it has not begun to fill
    stay in the queue, and C{QP_LAST_WQE_REACHED} reports that it uses no more of them.
    """

    maxReceive: int = Attribute("Actual maximum number of receives, at least the requested one.")
    maxSegments: int = Attribute(
        "Actual maximum number of segments of a receive, at least the requested one."
    )

    def postReceive(requests: Sequence[ReceiveRequest]) -> None:
        """
        Append requests to the queue; if it raises, none is appended.

        @raise txrdma.error.InvalidRequest: a request is invalid.
        @raise txrdma.error.QueueFull: the queue cannot hold all of them.
        """

    def arm(limit: int) -> None:
        """
        Raise one C{SRQ_LIMIT_REACHED} when fewer than C{limit} receives are left; 0 for never.

        @raise txrdma.error.InvalidRequest: C{limit} exceeds C{maxReceive}.
        """

    def limit() -> int:
        """Limit for which the queue is armed; 0 if it is not."""

    def close() -> None:
        """Destroy the queue; queue pairs that still use it go to ERR. Idempotent."""


class IVerbsDeviceStringParser(Interface):
    """A plugin that opens devices by name: C{"soft"}, C{"pyverbs:mlx5_0"}."""

    prefix: str = Attribute("Text before the first colon.")

    def parseDevice(reactor: object, *args: str, **kwargs: str) -> IVerbsDevice:
        """
        Open the device named by the arguments.

        @raise ValueError: the string is invalid; the message names key and value.
        """

    def available() -> Sequence[str]:
        """Strings of devices that could be opened now."""


class IMADReceiver(Interface):
    """Receiver of an L{IMADPort}'s datagrams and events."""

    def received(datagram: bytes, envelope: object) -> None:
        """
        A datagram was received: 256 bytes.

        @param envelope: its source, for L{IMADPort.pathOf}.
        """

    def undeliverable(datagram: bytes, reason: str) -> None:
        """A datagram could not be delivered: at least its first 24 bytes."""

    def portLost(reason: str) -> None:
        """The port is lost, and delivers nothing more."""

    def portChanged(mustRegister: bool) -> None:
        """
        The port reports that C{endPort} has changed, or that clients have to register again.

        @param mustRegister: True if they have to (CLIENT_REREGISTER, IBA 14.2.5.6).
        """


class IMADPort(Interface):
    """A port that sends and receives management datagrams (IBA 13.3). Its user closes it."""

    name: str = Attribute("Name of the port in port strings.")
    endPort: MADEndPort = Attribute("Addresses and SM of the port, as of the last refresh.")
    transactionIDBits: int = Attribute("Number of low bits of a transaction ID that users choose.")
    hasSMI: bool = Attribute("Whether datagrams of subnet management (QP 0) pass.")
    doesRMPP: bool = Attribute("Whether the port itself segments and reassembles RMPP transfers.")

    def start(receiver: IMADReceiver) -> None:
        """Deliver responses, and requests registered by C{serve}, to this receiver from now on."""

    def serve(managementClass: int, methods: Sequence[int], oui: int = 0) -> Callable[[], None]:
        """
        Deliver requests of this class with these methods; the returned function ends that.

        @raise txrdma.error.ResourceExhausted: another program receives them already.
        """

    def send(datagram: Buffer, path: IBPath, answerWithin: float = 0.0) -> None:
        """
        Send a datagram along a path, or queue it; subnet management goes to queue pair 0.

        @param datagram: 256 bytes; longer only with C{doesRMPP}.
        @param answerWithin: seconds within which a response is expected; 0 for none.
        @raise txrdma.error.InvalidRequest: the port cannot send this datagram, or not along this path.
        @raise txrdma.error.ResourceExhausted: too many datagrams wait, or the system's buffers are full.
        """

    def pathOf(envelope: object) -> IBPath:
        """Path of a received datagram; its C{reverse} leads back to the sender."""

    def isFrom(envelope: object, path: IBPath) -> bool:
        """
        True if a datagram can be a response from the end of this path, by its LID or GID.

        True as well where the port does not know the source. Not used for directed routes.
        """

    def refresh() -> MADEndPort:
        """Read the addresses and the SM of the port again; raise L{DeviceUnavailable} if that fails."""

    def close() -> None:
        """Close the port. Idempotent."""


class IMADPortStringParser(Interface):
    """A plugin that opens management ports by name: C{"umad:mlx5_0/1"}, C{"sim:fattree:128"}."""

    prefix: str = Attribute("Text before the first colon.")

    def parsePort(reactor: object, *args: str, **kwargs: str) -> IMADPort:
        """
        Open the port named by the arguments.

        @raise ValueError: the string is invalid; the message names key and value.
        """

    def available() -> Sequence[str]:
        """Strings of ports that could be opened now."""


class IMADAgent(Interface):
    """
    Remote procedure calls by management datagrams (IBA 13.4.5).

    L{txrdma.mad.rpcs.RPCs} has the calls of all classes as methods, by their names in the specification. All
    return a Deferred that fires with the answer; it fails with L{txrdma.mad.errors.MADFailure} or another
    L{RDMAError <txrdma.error.RDMAError>}. Cancelling it cancels the call.
    """

    timeoutSeconds: float | None = Attribute("Seconds to wait for an answer; None to use the path's.")
    retries: int = Attribute("Number of retransmissions of a request without an answer.")

    def call(
        rpc: str,
        payload: Any,
        path: IBPath | None = None,
        attributeModifier: int = 0,
        **options: Unpack[CallOptions],
    ) -> Deferred[Any]:
        """
        Make the call of this name.

        @param payload: an attribute, or the class of one to send zeros.
        @param path: path to the peer; without one, SA calls go to the SA of the port's subnet.
        """

    def SubnGet(
        payload: Any, path: IBPath, attributeModifier: int = 0, **options: Unpack[CallOptions]
    ) -> Deferred[Any]:
        """Read a subnet management attribute."""

    def SubnSet(
        payload: Any, path: IBPath, attributeModifier: int = 0, **options: Unpack[CallOptions]
    ) -> Deferred[Any]:
        """Write a subnet management attribute."""

    def PerformanceGet(
        payload: Any, path: IBPath, attributeModifier: int = 0, **options: Unpack[CallOptions]
    ) -> Deferred[Any]:
        """Read counters of a port."""

    def SubnAdmGet(
        payload: Any, path: IBPath | None = None, attributeModifier: int = 0, **options: Unpack[CallOptions]
    ) -> Deferred[Any]:
        """Read the one SA record that a query describes."""

    def SubnAdmGetTable(
        payload: Any, path: IBPath | None = None, attributeModifier: int = 0, **options: Unpack[CallOptions]
    ) -> Deferred[Any]:
        """Read all SA records that a query describes, as a list."""

    def send(datagram: bytes, path: IBPath) -> None:
        """
        Send a datagram unchanged, for protocols that keep their own transactions: no answer is awaited.

        @raise txrdma.error.RDMAError: it cannot be sent.
        """

    def newTransactionID() -> int:
        """Draw a transaction ID for L{send}, or for a call with a C{transactionID}."""

    def close() -> None:
        """Cancel all calls, and close the port. Idempotent."""


class IMADHandler(Interface):
    """Answers the requests of one management class."""

    def handle(request: MADRequest) -> object:
        """
        Answer a request.

        @return: the payload of the response, None for no response, or a Deferred of one of these; or
            C{NotImplemented} (not a Deferred of it) if the request is for another handler.
        @raise txrdma.mad.errors.MADRefusal: respond with its status.
        """


class IPathResolver(Interface):
    """Resolves names and addresses of ports to paths."""

    def resolve(target: object) -> Deferred[IBPath]:
        """
        Find a path to a LID, a GID, a port GUID, a directed route, or text of one of these.

        @return: fires with the path; fails with C{ValueError} for invalid text, and with
            L{txrdma.error.RDMAError} if no path is known.
        """


class IPollable(Interface):
    """A source of events that can be polled without a system call."""

    def poll() -> bool:
        """Process pending events; returns whether there were any, or this is to be repeated."""

    def arm() -> None:
        """Signal the descriptor for new events from now on: C{poll} is not called before it is readable."""


class IReactorPolling(Interface):
    """A reactor that busy-polls for a while before it sleeps."""

    def addPollable(pollable: IPollable) -> None:
        """
        Poll C{pollable} until it is removed.

        A pollable without events may be armed instead; it is added again when its descriptor becomes
        readable.
        """

    def removePollable(pollable: IPollable) -> None:
        """Stop polling; does nothing for an unknown pollable."""


class ISMCStatus(Interface):
    """Current status of one connection of an C{smc:} endpoint."""

    mode: str = Attribute("'SMC-R', 'TCP', or 'SMC-D' (the kernel's stack only).")
    fallbackReason: Enum | None = Attribute("Reason of a fallback: a txrdma.smc.wire.clc.Diagnosis, or None.")
    peerDiagnosis: Enum | int | None = Attribute("Diagnosis of the peer's Decline; an int if unknown.")
    version: int = Attribute("Negotiated version of SMC-R, 1 or 2; 0 on TCP, or unknown.")
    eid: str = Attribute("Negotiated enterprise ID of version 2, otherwise ''.")
    device: str = Attribute("Name of the RDMA device, '' on TCP.")
    route: str = Attribute("'shared-memory', 'rocev2', 'verbs', or 'kernel' for its stack; '' on TCP.")
    linkGroup: str = Attribute("Name of the link group, '' on TCP.")
    state: str = Attribute("State of the close state machine (RFC 7609, 4.8), 'TCP' on TCP.")
    bytesSent: int = Attribute("Bytes written to the peer's buffer.")
    bytesReceived: int = Attribute("Bytes delivered to the application.")
    writes: int = Attribute("RDMA writes posted.")
    messagesSent: int = Attribute("CDC messages sent.")
    messagesReceived: int = Attribute("CDC messages received.")

    def toDict() -> dict[str, object]:
        """All attributes, cursors and buffer sizes, for JSON."""


class ISMCTransport(ITransport):
    """Stream transport of an C{smc:} endpoint, over SMC-R or after a fallback to TCP."""

    smc: ISMCStatus = Attribute("Status of this connection.")
