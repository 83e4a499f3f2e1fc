"""
Watches RDMA devices and their ports for changes.

The kernel reports changes of devices and network interfaces at once (L{txrdma.ports.network}). Changes of a
port, such as its LID, are reported only to processes that have opened the device; they are found by polling.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import fields
from pathlib import Path
from typing import Any, Final, NamedTuple, Union

from twisted.internet.interfaces import IDelayedCall
from twisted.logger import Logger

from txrdma.error import DeviceUnavailable
from txrdma.kit.delayedcalls import cancelCall
from txrdma.kit.logs import errorText
from txrdma.kit.values import frozen
from txrdma.ports.network import HostNetwork, INetworkReactor
from txrdma.ports.sysfs import devices, EndPortAttributes, SYS

INTERVAL: Final = 10.0
"""Seconds between two polls while no change is reported."""

_REPEATED_POLLS: Final = (0.3, 1.5)
"""Seconds after a report at which devices are read again: the kernel changes GID tables later."""

_log = Logger()


@frozen
class DeviceAdded:
    """The RDMA device C{name} was added; its ports follow as L{PortAdded}."""

    name: str


@frozen
class DeviceRemoved:
    """The RDMA device C{name} and its ports were removed."""

    name: str


@frozen
class PortAdded:
    """A port was added, with a new device or to a known one."""

    device: str
    port: int
    attributes: EndPortAttributes


@frozen
class RDMAPortChanged:
    """
    An attribute of a port has changed.

    @ivar attribute: name of the attribute in L{EndPortAttributes}, such as C{"state"} or C{"lid"}.
    """

    device: str
    port: int
    attribute: str
    before: Any  # of the attribute's type
    after: Any


Change = Union[DeviceAdded, DeviceRemoved, PortAdded, RDMAPortChanged]
Listener = Callable[[Sequence[Change]], None]


class DeviceView(NamedTuple):
    """
    State of a device at one time.

    @ivar identity: differs if the device was removed and created again under the same name.
    """

    identity: int
    ports: dict[int, EndPortAttributes]


def view(root: str | Path = SYS, known: Mapping[str, DeviceView] | None = None) -> dict[str, DeviceView]:
    """
    Read all devices and ports once.

    @param known: result of the previous call; a device that is removed while it is read remains unchanged,
        until it is found missing, and so do all while devices cannot be listed.
    """
    seen: dict[str, DeviceView] = {}
    try:
        found = devices(root)
    except DeviceUnavailable:
        return dict(known or {})
    for device in found:
        try:
            identity = device.identity
            seen[device.name] = DeviceView(
                identity, {port.number: port.attributes() for port in device.ports}
            )
        except DeviceUnavailable:
            if known and device.name in known:
                seen[device.name] = known[device.name]
    return seen


def differences(before: Mapping[str, DeviceView], after: Mapping[str, DeviceView]) -> Iterator[Change]:
    """Yield the changes between two views."""
    for name, old in before.items():
        if name not in after or after[name].identity != old.identity:
            yield DeviceRemoved(name)
    for name, new in after.items():
        ports: Mapping[int, EndPortAttributes] = {}
        if name in before and before[name].identity == new.identity:
            ports = before[name].ports
        else:
            yield DeviceAdded(name)
        for number, attributes in new.ports.items():
            if number not in ports:
                yield PortAdded(name, number, attributes)
                continue
            for each in fields(EndPortAttributes):
                was, now = getattr(ports[number], each.name), getattr(attributes, each.name)
                if was != now:
                    yield RDMAPortChanged(name, number, each.name, was, now)


class EndPortWatcher:
    """Calls one listener with a list of L{Change} whenever something has changed, until it is stopped."""

    def __init__(
        self,
        reactor: INetworkReactor,
        listener: Listener,
        root: str | Path = SYS,
        network: HostNetwork | None = None,
        interval: float = INTERVAL,
    ) -> None:
        """
        @param root: path at which sysfs is mounted.
        @param network: reports that something may have changed; None to open one. Without netlink, devices
            are only polled, every C{interval} seconds.
        """
        self._reactor = reactor
        self._listener = listener
        self._root = root
        self._network = network
        self._ownNetwork: HostNetwork | None = None
        self._interval = interval
        self._unwatch: Callable[[], None] | None = None
        self._calls: list[IDelayedCall] = []
        self._view: dict[str, DeviceView] | None = None

    @property
    def seen(self) -> Mapping[str, DeviceView]:
        """The latest view; empty before the start."""
        return self._view or {}

    def start(self) -> None:
        """Read the first view, which reports nothing, and watch from then on."""
        if self._view is not None:
            raise RuntimeError("this watcher was started before")
        self._view = view(self._root)
        try:
            if self._network is None:
                self._network = self._ownNetwork = HostNetwork.open()
            self._unwatch = self._network.watch(self._reactor, self.poll)
        except DeviceUnavailable as error:
            _log.info(
                "polling RDMA ports for changes every {interval} s, without notifications: {error}",
                interval=self._interval,
                error=errorText(error),
            )
        self._schedule((self._interval,))

    def poll(self) -> None:
        """Read all devices now, and again shortly after: a change may be in progress."""
        try:
            self._poll()
        finally:
            self._schedule((*_REPEATED_POLLS, self._interval))

    def stop(self) -> None:
        """Stop watching. Idempotent."""
        self._cancel()
        unwatch, self._unwatch = self._unwatch, None
        if unwatch is not None:
            unwatch()
        network, self._ownNetwork = self._ownNetwork, None
        if network is not None:
            network.close()
        self._listener = _nobody

    def _schedule(self, delays: Sequence[float]) -> None:
        self._cancel()
        if self._listener is not _nobody:
            self._calls = [self._reactor.callLater(delay, self._scheduledPoll) for delay in delays]

    def _scheduledPoll(self) -> None:
        self._calls = [call for call in self._calls if call.active()]
        try:
            self._poll()
        finally:
            if not self._calls:
                self._schedule((self._interval,))

    def _cancel(self) -> None:
        calls, self._calls = self._calls, []
        for call in calls:
            cancelCall(call)

    def _poll(self) -> None:
        before = self.seen
        self._view = view(self._root, before)
        changes = list(differences(before, self._view))
        if changes:
            with _log.failuresHandled("a listener raised when it was called with changes of RDMA ports"):
                self._listener(changes)


def follow(
    reactor: INetworkReactor, listener: Listener, root: str | Path = SYS, network: HostNetwork | None = None
) -> EndPortWatcher:
    """
    Call C{listener} with changes of the RDMA devices and ports of this host.

    @return: a watcher, which is started.
    """
    watcher = EndPortWatcher(reactor, listener, root, network)
    watcher.start()
    return watcher


def _nobody(changes: Sequence[Change]) -> None:
    """Ignore changes: the listener after L{EndPortWatcher.stop}."""
