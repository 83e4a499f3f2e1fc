"""
Events of the kernel's manager, translated to REQs and REPs; structures of librdmacm; unsupported devices.
"""

from __future__ import annotations

import ctypes
import os
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from random import Random
from typing import Any
from unittest.mock import Mock

from twisted.internet.task import Clock
from twisted.internet.testing import MemoryReactorClock
from twisted.logger import capturedLogs, formatEvent, Logger
from twisted.trial.unittest import SynchronousTestCase

from txrdma.cm.connections.adapter import adapterOf
from txrdma.cm.connections.queuepairs import addressOf, toReceive, toSend
from txrdma.cm.core.events import ConnectionTimedOut, Event
from txrdma.cm.layouts.ipcm import IPAddresses, PortSpace
from txrdma.cm.layouts.messages import MessageKind, REP, REQ
from txrdma.cm.layouts.paths import reversedPath
from txrdma.cm.rdmacm import library
from txrdma.cm.rdmacm import manager as managers
from txrdma.cm.rdmacm.library import CMEvent, Ends, EventChannel, EventKind, Parameters, Prepared
from txrdma.cm.rdmacm.manager import isOfKernel, KernelManagedConnection, KernelManager
from txrdma.cm.rdmacm.messages import pathFrom, replyOf, requestOf, requestSent
from txrdma.error import DeviceUnavailable, InvalidRequest
from txrdma.iba.path import IBPath
from txrdma.iba.types import GID, QPN
from txrdma.iba.verbs import QPAttributes
from txrdma.kit.logs import RateLimitedLogger
from txrdma.sim.network import SimulatedNetwork
from txrdma.test.support.cm.librdmacm import ROUTE, useFakeKernel
from txrdma.testing.reactors import ReactorClock

HERE, THERE = "192.0.2.1", "192.0.2.2"
ENDS = Ends((HERE, 7471), (THERE, 40000), GID.fromIP(HERE), GID.fromIP(THERE), 0xFFFF)


class TranslationTests(SynchronousTestCase):
    """Messages whose queue pair attributes equal those computed by the kernel."""

    def setUp(self) -> None:
        self.random = Random(self.id())

    def prepared(self) -> Prepared:
        """Generate attributes of a queue pair."""
        number = self.random.randrange
        return replace(
            ROUTE,
            pathMTU=number(1, 6),
            destinationQPN=QPN(number(1 << 24)),
            rqPSN=number(1 << 24),
            sqPSN=number(1 << 24),
            timeout=number(1, 32),
            retryCount=number(8),
            rnrRetry=number(8),
            flowLabel=number(1 << 20),
            hopLimit=number(2, 256),
            trafficClass=number(256),
            serviceLevel=number(16),
        )

    def output(self, prepared: Prepared) -> Parameters:
        """Generate parameters of an event."""
        number = self.random.randrange
        data = self.random.randbytes(56)
        return Parameters(prepared.destinationQPN, number(5), number(5), 7, prepared.rnrRetry, data)

    def check(self, prepared: Prepared, request: REQ, reply: REP, isActive: bool) -> None:
        """Check that both transitions of a queue pair equal the kernel's."""
        path = request.primary if isActive else reversedPath(request.primary)
        receiving: QPAttributes = toReceive(request, reply, isActive, addressOf(path))
        sending = toSend(request, reply, isActive)
        assert receiving.address is not None
        found = (
            *(receiving.pathMTU, receiving.destinationQPN, receiving.rqPSN, sending.sqPSN, sending.timeout),
            *(sending.retryCount, sending.rnrRetry, receiving.address.flowLabel, receiving.address.hopLimit),
            *(receiving.address.trafficClass, receiving.address.serviceLevel, receiving.address.dgid),
        )
        wanted = (
            *(prepared.pathMTU, prepared.destinationQPN, prepared.rqPSN, prepared.sqPSN, prepared.timeout),
            *(prepared.retryCount, prepared.rnrRetry, prepared.flowLabel, prepared.hopLimit),
            *(prepared.trafficClass, prepared.serviceLevel, ENDS.dgid),
        )
        self.assertEqual(found, wanted)

    def test_REQOfKernelPreparesQueuePair(self) -> None:
        for _ in range(300):
            prepared = self.prepared()
            output = self.output(prepared)
            request = requestOf(0x01061D2F, ENDS, output, prepared)
            self.assertEqual(reversedPath(request.primary), pathFrom(ENDS, prepared))
            self.assertEqual(request.initiatorDepth, output.responderResources)
            self.assertEqual(request.privateData[36:], output.privateData)
            addresses = IPAddresses.fromPrivateData(request.privateData)
            self.assertEqual(addresses, IPAddresses(THERE, 40000, HERE))
            self.check(prepared, request, REP(startingPSN=prepared.rqPSN), False)

    def test_REPOfKernelPreparesQueuePair(self) -> None:
        for _ in range(300):
            prepared = self.prepared()
            output = self.output(prepared)
            request = requestSent(REQ(localQPN=QPN(5), retryCount=1), ENDS, prepared)
            addresses = IPAddresses.fromPrivateData(request.privateData)
            self.assertEqual(addresses, IPAddresses(HERE, 7471, THERE))  # the kernel chooses the port
            reply = replyOf(output, prepared)
            self.assertEqual(reply.responderResources, output.initiatorDepth)
            self.assertEqual(reply.privateData[:56], output.privateData)
            self.check(prepared, request, reply, True)

    def test_PKeyOfKernel(self) -> None:
        ends = replace(ENDS, pkey=0x8007)
        for route, pkey in ((ROUTE, 0xFFFF), (replace(ROUTE, dlid=9), 0x8007)):
            prepared = replace(route, pathMTU=4)
            request = requestOf(1, ends, self.output(prepared), prepared)
            self.assertEqual(request.pkey, pkey)
            self.assertEqual(requestSent(REQ(), ends, prepared).pkey, pkey)

    def test_localInfiniBandPathHasLIDs(self) -> None:
        path = pathFrom(ENDS, replace(ROUTE, isGlobal=False, dlid=9))
        self.assertEqual((path.remoteLID, path.subnetLocal), (9, True))


class LibraryTests(SynchronousTestCase):
    """The structures of librdmacm, and devices that it does not support."""

    def test_structureSizes(self) -> None:
        sizes = {
            library._Parameters: 24,
            library._Addresses: 296,
            library._Route: 32,
            library._Attributes: 144,
        }
        self.assertEqual({kind: ctypes.sizeof(kind) for kind in sizes}, sizes)
        self.assertEqual(library._Event.parameters.offset, 24)
        self.assertEqual(library._Identifier.addresses.offset, 32)

    def test_socketAddressesRoundTrip(self) -> None:
        for host, port in ((HERE, 7471), ("2001:db8::7", 65535)):
            raw = library._address(host, port)
            self.assertEqual(len(raw), 16 if ":" not in host else 28)
            self.assertEqual(library._pair(raw), (host, port))
        self.assertEqual(library._pair(bytes(128)), ("", 0))

    def test_otherDevicesUseOwnManager(self) -> None:
        device = SimulatedNetwork(Clock()).device("192.0.2.1")
        self.addCleanup(device.close)
        self.assertFalse(isOfKernel(device))


class CLibrary:
    """
    A librdmacm that only counts its calls. Like malloc, it reuses the memory of a destroyed id for a new one.

    @ivar calls: names of the functions that were called, without C{rdma_}, and the pointers to ids.
    """

    def __init__(self) -> None:
        self.calls: list[tuple[str, int]] = []
        self._channel = ctypes.c_int(os.eventfd(0, os.EFD_CLOEXEC))
        self._free = [ctypes.create_string_buffer(512) for _ in range(2)]
        self._used: dict[int, Any] = {}

    def rdma_create_event_channel(self) -> int:
        return ctypes.addressof(self._channel)

    def rdma_destroy_event_channel(self, channel: ctypes.c_void_p) -> None:
        os.close(self._channel.value)

    def rdma_create_id(self, channel: ctypes.c_void_p, made: Any, context: None, space: int) -> int:
        assert channel.value == ctypes.addressof(self._channel)
        memory = self._free.pop()
        made._obj.value = ctypes.addressof(memory)
        self._used[ctypes.addressof(memory)] = memory
        return 0

    def rdma_destroy_id(self, identifier: ctypes.c_void_p) -> None:
        self.calls.append(("destroy_id", identifier.value or 0))
        self._free.append(self._used.pop(identifier.value or 0))

    def __getattr__(self, name: str) -> Callable[..., int]:
        def called(identifier: ctypes.c_void_p, *_: object) -> int:
            self.calls.append((name.removeprefix("rdma_"), identifier.value or 0))
            return 0

        return called


class ManagerTestCase(SynchronousTestCase):
    """A manager with such a librdmacm."""

    def setUp(self) -> None:
        self.library = CLibrary()
        self.patch(library, "_load", lambda: self.library)

    def manager(self) -> KernelManager:
        """Create a manager for a device with one address."""
        device = SimulatedNetwork(Clock()).device(HERE)
        self.addCleanup(device.close)
        manager = KernelManager(MemoryReactorClock(), device, lambda: [HERE])
        self.addCleanup(manager.close)
        return manager

    def request(self) -> REQ:
        """Create a REQ to a port."""
        return REQ(serviceID=0x01061D2F, privateData=IPAddresses(HERE, 0, THERE).toPrivateData())


class DestroyedIDTests(ManagerTestCase):
    """No function of librdmacm is called with the pointer to a destroyed id, which is freed memory."""

    def test_destroyed(self) -> None:
        """A channel refuses to use an id that it has destroyed, and destroys it once."""
        channel = EventChannel()
        self.addCleanup(channel.close)
        number = channel.create(PortSpace.TCP)
        channel.destroy(number)
        del self.library.calls[:]
        parameters = Parameters(QPN(1), 0, 0, 0, 0, b"")
        uses: dict[str, Callable[[], object]] = {
            "listen": lambda: channel.listen(number, HERE, 1, 1),
            "resolveAddress": lambda: channel.resolveAddress(number, HERE, THERE, 1, 1.0),
            "resolveRoute": lambda: channel.resolveRoute(number, 1.0),
            "connect": lambda: channel.connect(number, parameters),
            "accept": lambda: channel.accept(number, parameters),
            "establish": lambda: channel.establish(number),
            "reject": lambda: channel.reject(number, b""),
            "disconnect": lambda: channel.disconnect(number),
            "communicating": lambda: channel.communicating(number),
            "ends": lambda: channel.ends(number),
            "prepared": lambda: channel.prepared(number),
        }
        for use in uses.values():
            self.assertRaises(InvalidRequest, use)
        channel.destroy(number)
        self.assertEqual(self.library.calls, [])

    def test_closedChannel(self) -> None:
        """A closed channel creates no ids, and reads no events."""
        channel = EventChannel()
        channel.close()
        self.assertRaises(DeviceUnavailable, channel.create, PortSpace.TCP)
        self.assertRaises(DeviceUnavailable, channel.take)
        self.assertEqual(self.library.calls, [])

    def test_connectionOfClosedManager(self) -> None:
        """A connection that outlives its manager does not disconnect its destroyed id."""
        manager = self.manager()
        connection = manager.connect(self.request(), IBPath(), lambda *_: None)
        connection.state = "ESTABLISHED"
        manager.close()
        del self.library.calls[:]
        connection.disconnect()
        self.assertRaises(InvalidRequest, connection.startingPSN)
        self.assertEqual((connection.state, self.library.calls), ("FREE", []))

    def test_nextConnection(self) -> None:
        """A connection that has ended does not affect the next one, whose id has the same memory."""
        manager = self.manager()
        first = manager.connect(self.request(), IBPath(), lambda *_: None)
        number = first.identifier
        first.disconnect()
        self.assertEqual(manager.connect(self.request(), IBPath(), lambda *_: None).identifier, number)
        del self.library.calls[:]
        self.assertRaises(InvalidRequest, first.accept, REP())
        first.ready()
        self.assertEqual(self.library.calls, [])

    def test_stopListeningTwice(self) -> None:
        """Stopping a listener again does not stop the next listener, whose id has the same memory."""
        manager = self.manager()
        end = manager.listen(0x01061D2F, lambda *_: None)
        end()
        manager.listen(0x01061D2F, lambda *_: None)
        end()
        self.assertEqual(manager.listeners, 1)


class ContainmentTests(ManagerTestCase):
    """An exception affects one connection of a manager, not all connections of the device."""

    def events(self, *events: CMEvent) -> None:
        """Let the channel report these events, and then none."""
        queued: list[CMEvent | None] = [*events, None]
        self.patch(EventChannel, "take", lambda _channel: queued.pop(0))

    def event(self, kind: EventKind, identifier: int, listener: int = 0) -> CMEvent:
        return CMEvent(kind, identifier, listener, 0, Parameters(QPN(1), 0, 0, 0, 0, b""))

    def test_event(self) -> None:
        """A connection whose event cannot be processed fails alone, and its exception is logged once."""
        manager = self.manager()
        seen: list[tuple[KernelManagedConnection, Event]] = []
        poor, other = (
            manager.connect(self.request(), IBPath(), lambda *each: seen.append(each)) for _ in "ab"
        )
        usual = EventChannel.resolveRoute

        def resolveRoute(channel: EventChannel, identifier: int, seconds: float) -> None:
            if identifier == poor.identifier:
                raise ZeroDivisionError("a test's")
            usual(channel, identifier, seconds)

        self.patch(EventChannel, "resolveRoute", resolveRoute)
        self.events(*(self.event(EventKind.ADDR_RESOLVED, each.identifier) for each in (poor, other)))
        manager.doRead()
        self.assertEqual(len(self.flushLoggedErrors(ZeroDivisionError)), 1)
        self.assertEqual(seen, [(poor, ConnectionTimedOut(MessageKind.REQ))])
        self.assertEqual((poor.state, other.state), ("FREE", "REQ_SENT"))
        self.assertEqual(self.library.calls[-1], ("resolve_route", other.identifier))

    def test_request(self) -> None:
        """A REQ that cannot be translated is dropped, and such REQs do not fill the log."""
        self.patch(managers, "_rateLimited", RateLimitedLogger(Logger()))
        self.patch(managers, "requestOf", Mock(side_effect=ZeroDivisionError("a test's")))
        self.patch(EventChannel, "prepared", lambda *_: ROUTE)
        self.patch(EventChannel, "ends", lambda *_: ENDS)
        manager = self.manager()
        requested: list[object] = []
        manager.listen(0x01061D2F, lambda *each: requested.append(each))
        (listener,) = manager._handlers
        for _ in "ab":
            number = manager.channel.create(PortSpace.TCP)
            self.events(self.event(EventKind.CONNECT_REQUEST, number, listener))
            manager.doRead()
            self.assertEqual(self.library.calls[-1], ("destroy_id", number))
        self.assertEqual(len(self.flushLoggedErrors(ZeroDivisionError)), 1)
        self.assertEqual((requested, manager.listeners), ([], 1))

    def test_requestWithoutPath(self) -> None:
        """A REQ whose path cannot be queried is dropped, and such REQs do not fill the log."""
        self.patch(managers, "_rateLimited", RateLimitedLogger(Logger()))
        self.patch(EventChannel, "prepared", Mock(side_effect=DeviceUnavailable("a test's")))
        manager = self.manager()
        manager.listen(0x01061D2F, lambda *each: self.fail("there is no request"))
        (listener,) = manager._handlers
        with capturedLogs() as logs:
            for _ in "ab":
                number = manager.channel.create(PortSpace.TCP)
                self.events(self.event(EventKind.CONNECT_REQUEST, number, listener))
                manager.doRead()
                self.assertEqual(self.library.calls[-1], ("destroy_id", number))
        texts = [text for text in map(formatEvent, logs) if "dropping a REQ" in text]
        self.assertEqual((len(texts), manager.listeners), (1, 1))

    def test_acknowledged(self) -> None:
        """An event that cannot be copied is acknowledged, so that its ID can be destroyed."""
        channel = EventChannel()
        self.addCleanup(channel.close)
        self.patch(library, "CMEvent", Mock(side_effect=ZeroDivisionError("a test's")))
        event, acknowledged = library._Event(), Mock()
        self.patch(self.library, "rdma_ack_cm_event", acknowledged)
        self.patch(self.library, "rdma_get_cm_event", lambda _, found: setattr(found._obj, "contents", event))
        self.assertRaises(ZeroDivisionError, channel.take)
        acknowledged.assert_called_once()

    def test_removedReader(self) -> None:
        """After the reactor has removed the manager, such as for an exception, the device gets a new one."""
        useFakeKernel(self.patch, lambda: clock)
        clock = ReactorClock()
        device = SimulatedNetwork(clock).device(HERE)
        self.addCleanup(device.close)
        first = adapterOf(clock, device)
        release = first.hold()
        seen: list[Event] = []
        first.manager.connect(self.request(), IBPath(), lambda _, event: seen.append(event))
        clock.removeReader(first.manager)  # type: ignore[arg-type]  # it implements IReadDescriptor
        second = adapterOf(clock, device)
        self.assertEqual((first is second, second.isAbandoned), (False, False))
        release()
        second.hold()()
        self.assertEqual(clock.readers, [])

    def test_begin(self) -> None:
        """A listener or connection that cannot begin leaves no ID."""
        manager = self.manager()
        for name in ("listen", "resolveAddress"):
            self.patch(EventChannel, name, Mock(side_effect=ZeroDivisionError("a test's")))
        self.assertRaises(ZeroDivisionError, manager.listen, 0x01061D2F, lambda *_: None)
        self.assertRaises(ZeroDivisionError, manager.connect, self.request(), IBPath(), lambda *_: None)
        self.assertEqual(
            (manager.listeners, manager.states, manager.channel.identifiers), (0, Counter(), set())
        )
