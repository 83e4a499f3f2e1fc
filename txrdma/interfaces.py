"""
The seams of txrdma: what one part promises so that another can be exchanged.
"""

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
    An asynchronous event of a device, and what it happened to (IBA 11.6.3): the other attributes are None.

    @ivar port: the number of a port.
    """

    kind: AsyncEventKind
    port: int | None = None
    queuePair: IQueuePair | None = None
    completionQueue: ICompletionQueue | None = None
    sharedReceiveQueue: ISharedReceiveQueue | None = None


class IVerbsDevice(Interface):
    """
    An open RDMA device.

    Whoever opened it closes it, after everything that was made from it.
    """

    name: str = Attribute("As the device is called in device strings.")
    portCount: int = Attribute("Ports are numbered from 1 to this.")
    attributes: DeviceAttributes = Attribute("What it is.")
    limits: DeviceLimits = Attribute("The most it takes of each kind.")

    def gids(port: int) -> Sequence[GID]:
        """The GID table of a port; its indices are those of C{sgidIndex}."""

    def gidTable(port: int) -> Sequence[GIDEntry]:
        """The same, with what else is known of each GID."""

    def pkeys(port: int) -> Sequence[PKey]:
        """The P_Key table of a port; its indices are those of C{pkeyIndex}."""

    def portAttributes(port: int) -> PortAttributes:
        """What the port is at present."""

    def createProtectionDomain() -> IProtectionDomain:
        """A new set of memory and queue pairs that may reach each other."""

    def createChannel() -> ICompletionChannel:
        """A descriptor that becomes readable when an armed completion queue has something."""

    def createCompletionQueue(depth: int, channel: ICompletionChannel) -> ICompletionQueue:
        """A queue for at least C{depth} completions."""

    def subscribe(listener: Callable[[AsyncEvent], None]) -> Callable[[], None]:
        """Hear asynchronous events, on the reactor's thread; the answer ends it."""

    def close() -> None:
        """Let go of the device. Twice is fine."""


class IProtectionDomain(Interface):
    """Keys of one domain's memory are worth nothing to the queue pairs of another (IBA 10.2.3)."""

    device: IVerbsDevice = Attribute("The device it belongs to.")

    def allocateMemory(length: int, access: Access) -> IMemoryRegion:
        """New zeroed memory, of a kind that the device shares best with its peers."""

    def registerMemory(buffer: memoryview, access: Access) -> IMemoryRegion:
        """Make a writable, contiguous buffer of ours known to the device."""

    def createAddressHandle(address: AddressVector) -> IAddressHandle:
        """The way to a port, for datagrams."""

    def createSharedReceiveQueue(maxReceive: int, maxSegments: int) -> ISharedReceiveQueue:
        """A queue of at least so many receives, of at least so many segments each."""

    def createQueuePair(
        kind: QPKind,
        send: ICompletionQueue,
        receive: ICompletionQueue,
        capacity: Capacity,
        shared: ISharedReceiveQueue | None = None,
    ) -> IQueuePair:
        """
        A new queue pair, in C{RESET}.

        @param kind: with C{GSI} the queue pair is UD, and number 1 of the port that C{modify} names.
        @param shared: where it takes its receives from, if it has no receive queue of its own.
        @raise txrdma.error.InvalidRequest: the device has none of this kind.
        """

    def close() -> None:
        """Let go of the domain. Twice is fine."""


class IMemoryRegion(Interface):
    """Memory that a device may reach (IBA 10.6)."""

    address: int = Attribute("Where it begins, as work requests name it.")
    length: int = Attribute("Its length in bytes.")
    lkey: LKey = Attribute("For our own segments.")
    rkey: RKey = Attribute("For the peer's RDMA.")
    view: memoryview = Attribute("The bytes themselves, as 'B'.")

    def close() -> None:
        """Deregister: later use of the keys fails. Twice is fine."""


class IAddressHandle(Interface):
    """The way to a port, for datagrams (IBA 10.2.2.2)."""

    address: AddressVector = Attribute("As it was given.")

    def close() -> None:
        """Twice is fine."""


class ICompletionChannel(Interface):
    """
    What wakes us when an armed completion queue has something.

    One channel may serve many queues; pyverbs has one queue for each.
    """

    def fileno() -> int:
        """A descriptor that polls readable while there are events to take."""

    def takeEvents() -> Sequence[ICompletionQueue]:
        """The queues that had something since they were armed; each is now unarmed."""

    def close() -> None:
        """Close the descriptor. It must have left the reactor before. Twice is fine."""


class ICompletionQueue(Interface):
    """Where finished work requests are found (IBA 10.2.5)."""

    depth: int = Attribute("How many completions it holds at least.")

    def arm(solicitedOnly: bool = False) -> None:
        """
        Raise one event on the channel for the next completion.

        What completed before may raise none: arm, then poll until empty.
        """

    isLive: bool = Attribute(
        "Whether C{poll} finds completions without help of the reactor or a device, as with shared memory."
    )

    def disarm() -> None:
        """Request no event any more, because the queue is polled: peers need not wake the channel."""

    def poll(limit: int) -> Sequence[Completion]:
        """Take at most C{limit} completions, oldest first."""

    def close() -> None:
        """Let go of it. Twice is fine."""


class IQueuePair(Interface):
    """A queue pair (IBA 10.2.4)."""

    kind: QPKind = Attribute("Its transport service.")
    number: QPN = Attribute("Its number, 24 bits.")
    state: QPState = Attribute("Its state, changed by C{modify} and by errors.")
    capacity: Capacity = Attribute("What it really holds: at least what was asked for.")
    route: str = Attribute("'shared-memory', 'rocev2' or 'verbs'; '' before C{RTR}.")

    def modify(attributes: QPAttributes) -> None:
        """
        Change state or attributes.

        @raise txrdma.error.InvalidRequest: the transition, or an attribute with it, is not allowed
            (IBA 11.2.4.2, tables 91 to 96); nothing has changed.
        """

    def query() -> QPAttributes:
        """All attributes as they are."""

    def postSend(requests: Sequence[SendRequest]) -> None:
        """
        Append to the send queue, in order.

        @raise txrdma.error.InvalidRequest: the state or a request's form does not allow it.
        @raise txrdma.error.QueueFull: there is no room for all of them.
            Either way none was posted.
        """

    def postReceive(requests: Sequence[ReceiveRequest]) -> None:
        """Append to the receive queue; errors as C{postSend}'s."""

    def close() -> None:
        """Destroy it: what is outstanding makes no completion. Twice is fine."""


class IDirectLane(Interface):
    """
    Optional on a queue pair whose peer is on this host: memory that both ends map, without work requests.

    C{prepare}, C{isPlaced} and C{isPeerGone} can be used from RTR on, the other methods in RTS. What is in
    shared memory is not lost when the sender's process ends.

    Messages are SENDs of one length and layout. They are ordered with all posted requests, and complete like
    them. The peer receives them by a lane or by posted receives.
    """

    def prepare(rkey: RKey, known: Callable[[], None]) -> None:
        """
        Map the peer's memory region in advance, so that no RDMA waits for it.

        @param known: called once, possibly at once: the region is mapped or refused, or the pair has ended.
        """

    def isPlaced() -> bool:
        """Whether everything that was posted is in the peer's memory."""

    def isPeerGone() -> bool:
        """Whether the peer's queue pair or process has ended; everything that it sent has arrived then."""

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
    """Optional on a queue pair: datagrams without work requests, except for those with an immediate."""

    def openInbox() -> Sized:
        """Queue datagrams for C{takeDatagrams} from now on, in any state: see C{IDirectLane.openLane}."""

    def takeDatagrams(limit: int) -> Sequence[tuple[tuple[bytes, int], memoryview]]:
        """Take datagrams, oldest first: the sender's IP address and queue pair number, and the bytes."""

    def putDatagram(address: IAddressHandle, qpn: QPN, qkey: int, head: Buffer, body: Buffer) -> bool:
        """Send C{head} and C{body} as one datagram, behind all posted requests; False: post it instead."""


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
        Do the work of the reactor once, after it has stopped.

        @return: whether an acknowledgement of a peer is outstanding.
        """


class ISharedReceiveQueue(Interface):
    """
    Receives that the queue pairs of one domain take from as their messages come (IBA 10.2.9).

    A queue pair that takes from one refuses C{postReceive}. When such a queue pair goes to ERR, receives that
    it has not begun to fill stay here, and C{QP_LAST_WQE_REACHED} tells that it takes no more.
    """

    maxReceive: int = Attribute("How many receives it holds: at least what was asked for.")
    maxSegments: int = Attribute("Segments of each: at least what was asked for.")

    def postReceive(requests: Sequence[ReceiveRequest]) -> None:
        """
        Append to the queue, in order.

        @raise txrdma.error.InvalidRequest: a request's form does not allow it.
        @raise txrdma.error.QueueFull: there is no room for all of them.
            Either way none was posted.
        """

    def arm(limit: int) -> None:
        """
        Raise one C{SRQ_LIMIT_REACHED} when fewer than C{limit} receives are left; 0 is never.

        @raise txrdma.error.InvalidRequest: it is more than C{maxReceive}.
        """

    def limit() -> int:
        """What it is armed for; 0 when it is not."""

    def close() -> None:
        """Destroy it; queue pairs that still take from it go to ERR. Twice is fine."""


class IVerbsDeviceStringParser(Interface):
    """A plugin that opens devices by name: C{"soft"}, C{"pyverbs:mlx5_0"}."""

    prefix: str = Attribute("What stands before the first colon.")

    def parseDevice(reactor: object, *args: str, **kwargs: str) -> IVerbsDevice:
        """
        Open the device that the rest of the string names.

        @raise ValueError: the string says something that has no meaning; names key and value.
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

    def portChanged(wantsRegistration: bool) -> None:
        """
        The port reports that C{endPort} has changed, or that clients have to register again.

        @param wantsRegistration: True if they have to (CLIENT_REREGISTER, IBA 14.2.5.6).
        """


class IMADPort(Interface):
    """
    A port that sends and receives management datagrams (IBA 13.3). Its user closes it.
    """

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
        @raise txrdma.error.InvalidRequest: the port cannot send this datagram.
        """

    def pathOf(envelope: object) -> IBPath:
        """Path of a received datagram; its C{reverse} leads back to the sender."""

    def isFrom(envelope: object, path: IBPath) -> bool:
        """
        True if a datagram can be a response from the end of this path, by its LID or GID.

        True as well where the port does not know the source. Not used for directed routes.
        """

    def refresh() -> MADEndPort:
        """Read the addresses and the SM of the port again."""

    def close() -> None:
        """Close the port. Closing twice does nothing."""


class IMADPortStringParser(Interface):
    """A plugin that opens management ports by name: C{"umad:mlx5_0/1"}, C{"sim:fattree:128"}."""

    prefix: str = Attribute("What stands before the first colon.")

    def parsePort(reactor: object, *args: str, **kwargs: str) -> IMADPort:
        """
        Open the port that the rest of the string names.

        @raise ValueError: the string says something that has no meaning; names key and value.
        """

    def available() -> Sequence[str]:
        """Strings of ports that could be opened now."""


class IMADAgent(Interface):
    """
    Remote procedure calls by management datagrams (IBA 13.4.5).

    L{txrdma.mad.rpcs.RPCs} has the calls of all classes as methods, by their names in the specification. All
    return a Deferred that fires with the answer; it fails with L{txrdma.mad.errors.MADFailure} or another
    L{RDMAError <txrdma.error.RDMAError>}. Cancelling it gives the call up.
    """

    timeoutSeconds: float | None = Attribute("Seconds to wait for an answer; None to follow the path.")
    retries: int = Attribute("How often a request without an answer is sent again.")

    def call(
        rpc: str,
        payload: Any,
        path: IBPath | None = None,
        attributeModifier: int = 0,
        **options: Unpack[CallOptions],
    ) -> Deferred[Any]:
        """
        Make the call of this name.

        @param payload: an attribute; or its class, to send zeros.
        @param path: leads to the peer that is asked; without one, SA calls go to the SA of the port's subnet.
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
        """Give up all calls, and close the port. Closing twice does nothing."""


class IMADHandler(Interface):
    """Answers the requests of one management class."""

    def handle(request: MADRequest) -> object:
        """
        Answer one.

        @return: the payload to answer with, None for no answer, or a Deferred of one of these; or
            C{NotImplemented}, at once, when the request is for another handler.
        @raise txrdma.mad.errors.MADRefusal: says what status to answer with.
        """


class IPathResolver(Interface):
    """Finds the way to a port."""

    def resolve(target: object) -> Deferred[IBPath]:
        """
        The path to what people call a port: a LID, a GID, a port GUID, a directed route, text of these.

        @return: fires with the path; fails with C{ValueError} when the text means nothing, and with
            L{txrdma.error.RDMAError} when no path is known.
        """


class IPollable(Interface):
    """Something that can be looked at without a system call."""

    def poll() -> bool:
        """Handle what is there; tell whether there was anything."""

    def arm() -> None:
        """From now on, wake the descriptor: nobody will look before it does."""


class IReactorPolling(Interface):
    """A reactor that looks at its completion queues for a while before it sleeps."""

    def addPollable(pollable: IPollable) -> None:
        """
        Look at it, until it is removed.

        What has had nothing for long may be armed instead, and not be looked at any more: whose descriptor is
        woken then is added once more.
        """

    def removePollable(pollable: IPollable) -> None:
        """Don't look any more. Unknown ones are ignored."""


class ISMCStatus(Interface):
    """What became of one connection of an C{smc:} endpoint; every attribute is live."""

    mode: str = Attribute("'SMC-R' or 'TCP'; the kernel's stack has 'SMC-D', too.")
    fallbackReason: Enum | None = Attribute("Why we fell back: a txrdma.smc.wire.clc.Diagnosis, or None.")
    peerDiagnosis: Enum | int | None = Attribute("Why the peer declined, an int when unknown to us.")
    version: int = Attribute("The version of SMC-R that the two ends speak, 1 or 2; 0 on TCP, or unknown.")
    eid: str = Attribute("The enterprise ID by which the two ends speak version 2, '' elsewhere.")
    device: str = Attribute("The RDMA device's name, '' on TCP.")
    route: str = Attribute("'shared-memory', 'rocev2', 'verbs', or 'kernel' for its stack; '' on TCP.")
    linkGroup: str = Attribute("The link group's name, the same for all its connections, '' on TCP.")
    state: str = Attribute("The close state machine's state (RFC 7609, 4.8), 'TCP' on TCP.")
    bytesSent: int = Attribute("Bytes the application wrote that left for the peer's buffer.")
    bytesReceived: int = Attribute("Bytes handed to the application.")
    writes: int = Attribute("RDMA writes posted.")
    messagesSent: int = Attribute("CDC messages sent.")
    messagesReceived: int = Attribute("CDC messages received.")

    def toDict() -> dict[str, object]:
        """All of it, with cursors and buffer sizes, as JSON can carry it."""


class ISMCTransport(ITransport):
    """A stream transport of an C{smc:} endpoint, whether it runs SMC-R or fell back to TCP."""

    smc: ISMCStatus = Attribute("What became of this connection.")
