"""Messages of communication management: the kernel's, their layouts, and their contents for applications."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from twisted.trial.unittest import SkipTest, SynchronousTestCase

from txrdma.cm.layouts import messages
from txrdma.cm.layouts.ipcm import IPAddresses, IPCMHeader, portOf, PortSpace, serviceIDOf
from txrdma.cm.layouts.messages import (
    APR,
    APStatus,
    CMPath,
    DREP,
    DREQ,
    FailoverAccepted,
    LAP,
    MessageKind,
    REJ,
    RejectReason,
    REP,
    REQ,
    RTU,
    SIDRREP,
    SIDRStatus,
)
from txrdma.cm.layouts.paths import (
    alternateOf,
    areSame,
    isPath,
    lapFor,
    NO_PATH,
    pathFor,
    pathOf,
    reversedPath,
)
from txrdma.cm.layouts.rejectinfo import Information, informationFor, informationOf, ROOM
from txrdma.error import WireError
from txrdma.iba.path import IBPath, PERMISSIVE_LID
from txrdma.iba.types import GID, GUID, LID, QPN
from txrdma.kit.wire import Code
from txrdma.mad.layouts.attributes import Attribute, attributeOf, ManagementClass
from txrdma.mad.layouts.messages import ClassPortInfo, CommMgtFormat
from txrdma.mad.layouts.values import PathMTU, Rate
from txrdma.test.support.captures import packets
from txrdma.test.support.cm.messages import datagramOf, KINDS

ROOMS = (92, 222, 148, 196, 224, 220, 224, 216, 136, 168, 148)


def recorded(name: str) -> list[tuple[int, Attribute, bytes]]:
    """Return the messages of a capture: transaction, message, datagram."""
    found = []
    for captured in packets(name):
        if captured.packet.bth.destination == 1:
            datagram = CommMgtFormat.decode(captured.packet.payload)
            kind = attributeOf(ManagementClass.COMM_MGT, datagram.header.attributeID)
            assert kind is not None
            message = kind.decode(datagram.payload)
            found.append((datagram.header.transactionID, message, captured.packet.payload))
    return found


class RecordedTests(SynchronousTestCase):
    """Linux's messages of rping."""

    def setUp(self) -> None:
        request = recorded("rping")[0][1]
        assert isinstance(request, REQ)
        self.request = request

    def test_recordedConversationRoundTrips(self) -> None:
        found = recorded("rping")
        self.assertEqual([type(message) for _, message, _ in found], [REQ, REP, RTU, DREQ, DREP])
        for transaction, message, datagram in found:
            self.assertEqual(datagramOf(message, transaction), bytes(datagram))
        request, reply, ready, release, released = (message for _, message, _ in found)
        assert isinstance(request, REQ) and isinstance(reply, REP) and isinstance(ready, RTU)
        assert isinstance(release, DREQ) and isinstance(released, DREP)
        self.assertEqual(
            [(each.localCommID, each.remoteCommID) for each in (reply, ready, release, released)],
            [
                (reply.localCommID, request.localCommID),
                (request.localCommID, reply.localCommID),
                (request.localCommID, reply.localCommID),
                (reply.localCommID, request.localCommID),
            ],
        )
        self.assertEqual(release.remoteQPN, reply.localQPN)
        self.assertEqual(len({transaction for transaction, _, _ in found}), 1)

    def test_requestOfRping(self) -> None:
        request = self.request
        self.assertEqual(portOf(request.serviceID), (PortSpace.TCP, 7174))
        self.assertEqual((request.responderResources, request.initiatorDepth), (1, 1))
        self.assertEqual((request.retryCount, request.rnrRetryCount, request.maxCMRetries), (7, 7, 15))
        self.assertEqual((request.remoteCMResponseTimeout, request.localCMResponseTimeout), (20, 20))
        self.assertEqual(request.pathMTU, PathMTU.MTU_1024)
        path = request.primary
        self.assertEqual((str(path.localGID.ip), str(path.remoteGID.ip)), ("10.77.0.1", "10.77.0.2"))
        self.assertEqual((path.localLID, path.hopLimit, path.localACKTimeout), (0xFFFF, 64, 17))
        self.assertTrue(isPath(path))
        self.assertFalse(isPath(request.alternate))

    def test_pathOfRecordedREQ(self) -> None:
        request = self.request
        received = request.primary
        path = pathOf(received)
        self.assertEqual((path.slid, path.dlid, path.packetLifeTime), (0, 0, 16))
        self.assertEqual(pathFor(path, rate=received.packetRate), received)
        self.assertEqual(pathOf(reversedPath(received)), path.reverse())

    def test_addressHeaderOfPrivateData(self) -> None:
        request = self.request
        addresses = IPAddresses.fromPrivateData(request.privateData)
        self.assertEqual((addresses.source, addresses.destination), ("10.77.0.1", "10.77.0.2"))
        self.assertEqual(addresses.toPrivateData().ljust(92, b"\0"), request.privateData)
        gids = GID.fromIP(addresses.source), GID.fromIP(addresses.destination)
        self.assertEqual(gids, (request.primary.localGID, request.primary.remoteGID))

    def test_rejectionHasNoCommID(self) -> None:
        (_, request, _), (_, rejection, _) = recorded("cm-reject")
        assert isinstance(request, REQ) and isinstance(rejection, REJ)
        self.assertEqual(rejection.reason, RejectReason.INVALID_SERVICE_ID)
        self.assertEqual((rejection.localCommID, rejection.remoteCommID), (0, request.localCommID))
        self.assertEqual(rejection.messageRejected, MessageKind.REQ)
        self.assertIsNone(informationOf(rejection))


class LayoutTests(SynchronousTestCase):
    """Properties common to all messages."""

    def test_messageAndPrivateDataSizes(self) -> None:
        for kind, room in zip(KINDS, ROOMS, strict=True):
            fields = {field.name: field.width // 8 for field in kind.fields}
            self.assertEqual((kind.size, fields["privateData"]), (232, room), kind)

    def test_allAttributesArePresent(self) -> None:
        declared = {
            kind for kind in vars(messages).values()
            if isinstance(kind, type) and issubclass(kind, Attribute) and kind is not Attribute
        }  # fmt: skip
        self.assertEqual(declared, set(KINDS))

    def test_zeroREPAcceptsFailover(self) -> None:
        self.assertEqual(REP().failoverAccepted, FailoverAccepted.ACCEPTED)


class AdditionalTests(SynchronousTestCase):
    VALUES: tuple[tuple[Code, Information, int], ...] = (
        (RejectReason.TIMEOUT, GUID.fromInt(5), 8),
        (RejectReason.PRIMARY_GID_REJECTED, GID.fromIP("10.0.0.1"), 16),
        (RejectReason.PRIMARY_LID_REJECTED, 7, 2),
        (RejectReason.INVALID_PRIMARY_SL, 3, 1),
        (RejectReason.PORT_REDIRECT, ClassPortInfo(redirectQPN=QPN(9)), 72),
        (RejectReason.INVALID_ALTERNATE_FLOW_LABEL, 0xABCDE, 3),
        (RejectReason.UNSUPPORTED_CLASS_VERSION, 2, 1),
        (APStatus.GID_REJECTED, GID.fromIP("10.0.0.1"), 16),
        (APStatus.LID_REJECTED, 9, 2),
        (SIDRStatus.REDIRECT, ClassPortInfo(redirectQPN=QPN(9)), 72),
    )

    def message(self, reason: Code, raw: bytes) -> REJ | APR | SIDRREP:
        room = raw.ljust(ROOM, b"\0")
        if isinstance(reason, RejectReason):
            return REJ(reason=reason, rejectInfoLength=len(raw), additionalInfo=room)
        if isinstance(reason, APStatus):
            return APR(apStatus=reason, additionalInfoLength=len(raw), additionalInfo=room)
        assert isinstance(reason, SIDRStatus)
        return SIDRREP(status=reason, additionalInfoLength=len(raw), additionalInfo=room)

    def test_values(self) -> None:
        for reason, value, length in self.VALUES:
            raw = informationFor(reason, value)
            self.assertEqual(len(raw), length, reason)
            self.assertEqual(informationOf(self.message(reason, raw)), value, reason)
            self.assertIsNone(informationOf(self.message(reason, raw[:-1])), reason)

    def test_reasonsWithoutInformation(self) -> None:
        for reason in (RejectReason.CONSUMER_REJECT, APStatus.REJECTED, SIDRStatus.NO_QP, RejectReason(99)):
            self.assertIsNone(informationOf(self.message(reason, bytes(16))))
            self.assertEqual(informationFor(reason, None), b"")
            self.assertRaises(ValueError, informationFor, reason, 5)
        self.assertRaises(ValueError, informationFor, RejectReason.TIMEOUT, 5)
        self.assertRaises(ValueError, informationFor, RejectReason.INVALID_PRIMARY_SL, 256)

    @given(st.integers(0, 0xFFFF), st.integers(0, 127), st.binary(min_size=72, max_size=72))
    def test_nonsenseInformationIsHarmless(self, reason: int, length: int, raw: bytes) -> None:
        informationOf(REJ(reason=RejectReason(reason), rejectInfoLength=length, additionalInfo=raw))


class IPTests(SynchronousTestCase):
    """Addresses in private data, and ports in service IDs."""

    @given(
        st.one_of(
            st.tuples(st.ip_addresses(v=4), st.ip_addresses(v=4)),
            st.tuples(st.ip_addresses(v=6), st.ip_addresses(v=6)),
        ),
        st.integers(0, 65535),
    )
    def test_roundTrip(self, addresses: tuple[object, object], port: int) -> None:
        source, destination = (str(address) for address in addresses)
        given = IPAddresses(source, port, destination)
        raw = given.toPrivateData(b"mine")
        self.assertEqual((IPAddresses.fromPrivateData(raw), raw[36:]), (given, b"mine"))

    def test_otherHeadersAreRefused(self) -> None:
        for header in (IPCMHeader(majorVersion=1, ipVersion=4), IPCMHeader(), IPCMHeader(ipVersion=5)):
            self.assertRaises(WireError, IPAddresses.fromPrivateData, header.encode())
        self.assertRaises(WireError, IPAddresses.fromPrivateData, bytes(35))
        self.assertRaises(ValueError, IPAddresses("10.0.0.1", 1, "::1").toPrivateData)

    def test_portSpacePrefixes(self) -> None:
        self.assertEqual(serviceIDOf(PortSpace.TCP, 7174), 0x0000000001061C06)
        for space in PortSpace:
            self.assertEqual(portOf(serviceIDOf(space, 5)), (space, 5))
        self.assertIsNone(portOf(0x1000000000000001))
        self.assertRaises(ValueError, serviceIDOf, PortSpace.TCP, 65536)

    def test_portsOfNumPy(self) -> None:
        try:
            from numpy import uint16
        except ImportError:
            raise SkipTest("NumPy is not installed") from None
        self.assertEqual(serviceIDOf(PortSpace.TCP, uint16(7174)), 0x0000000001061C06)


class PathTests(SynchronousTestCase):
    def test_pathInLAP(self) -> None:
        path = CMPath(
            localLID=LID(3), remoteLID=LID(4),
            localGID=GID.fromIP("fe80::1"), remoteGID=GID.fromIP("fe80::2"),
            flowLabel=0xABCDE, packetRate=Rate.GBPS_100, trafficClass=5, hopLimit=6, serviceLevel=7,
            subnetLocal=True, localACKTimeout=19,
        )  # fmt: skip
        lap = LAP.decode(lapFor(path, LAP()).encode())
        self.assertEqual(alternateOf(lap), path)
        self.assertEqual(reversedPath(reversedPath(path)), path)

    def test_pathEquality(self) -> None:
        path = pathFor(IBPath(sgid=GID.fromIP("10.0.0.1"), dgid=GID.fromIP("10.0.0.2"), hopLimit=64))
        self.assertEqual((path.localLID, path.remoteLID), (PERMISSIVE_LID, PERMISSIVE_LID))
        self.assertTrue(areSame(path, path.replace(localACKTimeout=3, hopLimit=1, remoteLID=LID(0))))
        for change in ({"flowLabel": 1}, {"serviceLevel": 1}, {"trafficClass": 1}):
            self.assertFalse(areSame(path, path.replace(**change)), change)
        local = pathFor(IBPath(slid=LID(3), dlid=LID(4)))
        self.assertFalse(areSame(local, local.replace(remoteLID=LID(5))))
        self.assertTrue(local.subnetLocal)
        self.assertFalse(isPath(NO_PATH))
