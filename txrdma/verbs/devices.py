"""
Devices by name: C{"soft"}, C{"soft:192.0.2.1:pcap=trace.pcap"}.

The text before the first colon selects a plugin (L{txrdma.interfaces.IVerbsDeviceStringParser}); the rest is
for the plugin, in the syntax of Twisted's endpoint strings: colons between arguments, C{key=value}, and a
backslash before a literal colon, equals sign or backslash.
"""

from __future__ import annotations

import gc
from collections.abc import Callable, Hashable, Iterator, Sequence
from contextlib import contextmanager
from importlib import import_module
from itertools import chain
from typing import TypeVar, Union

from zope.interface import alsoProvides, implementer

from twisted.plugin import getPlugins

from txrdma.error import DeviceUnavailable, MalformedDevice
from txrdma.iba.types import GID, PKey
from txrdma.iba.verbs import AsyncEventKind, DeviceAttributes, DeviceLimits, GIDEntry, PortAttributes
from txrdma.interfaces import (
    AsyncEvent,
    ICompletionChannel,
    ICompletionQueue,
    IProtectionDomain,
    IReactorDevice,
    IServiceClaims,
    IVerbsDevice,
    IVerbsDeviceStringParser,
)
from txrdma.kit.strings import parseString

__all__ = ["availableDevices", "openDevice"]

DeviceSpec = Union[str, IVerbsDevice]
"""A device, or its device string."""

_Key = tuple[object, str, Hashable]
_ThingT = TypeVar("_ThingT")


def checkSpec(spec: DeviceSpec) -> None:
    """Raise C{TypeError} unless this is a device or a string."""
    if not isinstance(spec, str) and not IVerbsDevice.providedBy(spec):
        raise TypeError(f"a device is a string or provides IVerbsDevice, not {spec!r}")


def openDevice(reactor: object, description: str) -> IVerbsDevice:
    """
    Open the device of a device string; the caller closes it.

    @raise txrdma.error.MalformedDevice: the string is malformed.
    @raise txrdma.error.DeviceUnavailable: the device can't be opened.
    """
    with _malformed():
        parser, args, kwargs = _parsed(description)
        return parser.parseDevice(reactor, *args, **kwargs)


def checkDevice(description: str) -> None:
    """
    Check the kind of a device string, and its keys and values if the parser has the method C{canonical}.

    @raise txrdma.error.MalformedDevice: the string is malformed.
    """
    with _malformed():
        _keyOf(None, *_parsed(description))


def prepareDevice(description: str) -> None:
    """
    Check a device string, and import the modules of the device by the optional method C{prepare} of its
    parser, without opening it.

    @raise txrdma.error.MalformedDevice: the string is malformed.
    """
    with _malformed():
        parser, args, kwargs = _parsed(description)
        _keyOf(None, parser, args, kwargs)
    import_module("txrdma.kit.wirecode")
    prepare: Callable[..., None] | None = getattr(parser, "prepare", None)
    if prepare is not None:
        prepare(*args, **kwargs)


def sharedDevice(reactor: object, description: str) -> IVerbsDevice:
    """
    Return a share of this process's device for a string; the device is closed with its last share.

    A device that was removed is opened again, although others may still have shares of the former one.

    Strings are compared by the optional method C{canonical} of their parser, which has the parameters of
    C{parseDevice}.

    @raise txrdma.error.MalformedDevice: the string is malformed.
    @raise txrdma.error.DeviceUnavailable: the device can't be opened.
    """
    with _collectingLater(), _malformed():
        parser, args, kwargs = _parsed(description)
        key = _keyOf(reactor, parser, args, kwargs)
        opened = _openDevices.get(key)
        if opened is None:
            device = parser.parseDevice(reactor, *args, **kwargs)
            opened = _openDevices[key] = _OpenDevice(device, key, description)
    try:
        return _Share(opened)
    except BaseException:
        if not opened.shares:
            opened.close()
        raise


def openedAs(reactor: object, description: str) -> str:
    """
    Return the string by which this process has opened the device of an equivalent string.

    @return: the string itself if the device is not open.
    @raise txrdma.error.MalformedDevice: the string is malformed.
    """
    with _malformed():
        opened = _openDevices.get(_keyOf(reactor, *_parsed(description)))
    return description if opened is None else opened.description


def _keyOf(
    reactor: object, parser: IVerbsDeviceStringParser, args: list[str], kwargs: dict[str, str]
) -> _Key:
    """Return what equivalent device strings have in common."""
    canonical = getattr(parser, "canonical", None)
    wanted: Hashable = (*args, *sorted(kwargs.items())) if canonical is None else canonical(*args, **kwargs)
    return (reactor, parser.prefix, wanted)


def oneOf(
    things: dict[tuple[object, DeviceSpec], _ThingT],
    reactor: object,
    spec: DeviceSpec,
    make: Callable[[IVerbsDevice, Callable[[], None]], _ThingT],
) -> _ThingT:
    """
    Return the single object of a kind for a device and a reactor, created on first use.

    @param things: all such objects, by reactor and device.
    @param spec: a device string, whose device is opened and closed with the object, or an open device.
    @param make: creates the object from the device and a function to call when the object is closed.
    @raise txrdma.error.MalformedDevice: the string is malformed.
    @raise txrdma.error.RDMAError: the device or the object is not available.
    """
    key = (reactor, spec)
    known = things.get(key)
    if known is not None:
        return known
    device = sharedDevice(reactor, spec) if isinstance(spec, str) else spec
    made: _ThingT | None = None

    def closed() -> None:
        if made is not None and things.get(key) is made:
            del things[key]
        if isinstance(spec, str):
            device.close()

    try:
        made = things[key] = make(device, closed)
    except BaseException:
        closed()
        raise
    return made


@contextmanager
def _collectingLater() -> Iterator[None]:
    """Suspend garbage collection while thirty modules are imported: it takes as long as the import itself."""
    isCollecting = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if isCollecting:
            gc.enable()


@contextmanager
def _malformed() -> Iterator[None]:
    """Raise L{MalformedDevice} instead of the ValueErrors of parsers."""
    try:
        yield
    except ValueError as error:
        raise MalformedDevice(str(error)) from error


def availableDevices() -> list[str]:
    """Return the device strings that could be opened now."""
    return [name for parser in _parsers() for name in parser.available()]


def deviceKinds() -> list[str]:
    """Return the known prefixes of device strings, such as C{soft} and C{pyverbs}."""
    return sorted(parser.prefix for parser in _parsers())


class _OpenDevice:
    """An open device, with the number of its shares, and of those that need it on the reactor."""

    def __init__(self, device: IVerbsDevice, key: _Key, description: str) -> None:
        self.device = device
        self.key = key
        self.description = description
        self.shares = 0
        self.awake = 0
        self.driven = IReactorDevice(device, None)
        self.resting = self.driven if self.driven is not None and self.driven.canRest else None
        device.subscribe(self._asyncEvent)

    def _asyncEvent(self, event: AsyncEvent) -> None:
        if event.kind is AsyncEventKind.DEVICE_FATAL:
            self._forget()  # some users may not close their shares soon

    def _forget(self) -> None:
        if _openDevices.get(self.key) is self:
            del _openDevices[self.key]

    def close(self) -> None:
        """Close the device, which has no shares."""
        self._forget()
        self.device.close()


_openDevices: dict[_Key, _OpenDevice] = {}


@implementer(IVerbsDevice)
class _Share:
    """An open device, for one of its users, who closes this instead of the device."""

    def __init__(self, opened: _OpenDevice) -> None:
        self._opened: _OpenDevice | None = opened
        self.name: str = opened.device.name
        self.portCount: int = opened.device.portCount
        self.attributes: DeviceAttributes = opened.device.attributes
        self.limits: DeviceLimits = opened.device.limits
        self._unsubscribers: dict[object, Callable[[], None]] = {}
        self._isAwake = True
        opened.shares += 1
        opened.awake += 1
        if opened.driven is not None:
            alsoProvides(self, IReactorDevice)
            self.canRest, self.isAttended = opened.driven.canRest, opened.driven.isAttended
        claims = IServiceClaims(opened.device, None)
        if claims is not None:
            alsoProvides(self, IServiceClaims)
            self.share = claims.share
        if opened.resting is not None:
            opened.resting.wake()

    @property
    def _device(self) -> IVerbsDevice:
        if self._opened is None:
            raise DeviceUnavailable(f"this share of the device {self.name} is closed")
        return self._opened.device

    def __repr__(self) -> str:
        return f"<share of {self._opened.device!r}>" if self._opened else "<closed share of a device>"

    def gids(self, port: int) -> Sequence[GID]:
        return self._device.gids(port)

    def gidTable(self, port: int) -> Sequence[GIDEntry]:
        return self._device.gidTable(port)

    def pkeys(self, port: int) -> Sequence[PKey]:
        return self._device.pkeys(port)

    def portAttributes(self, port: int) -> PortAttributes:
        return self._device.portAttributes(port)

    def createProtectionDomain(self) -> IProtectionDomain:
        return self._device.createProtectionDomain()

    def createChannel(self) -> ICompletionChannel:
        return self._device.createChannel()

    def createCompletionQueue(self, depth: int, channel: ICompletionChannel) -> ICompletionQueue:
        return self._device.createCompletionQueue(depth, channel)

    def subscribe(self, listener: Callable[[AsyncEvent], None]) -> Callable[[], None]:
        key = object()
        self._unsubscribers[key] = self._device.subscribe(listener)

        def unsubscribe() -> None:
            made = self._unsubscribers.pop(key, None)
            if made is not None:
                made()

        return unsubscribe

    def claimService(self, serviceID: int) -> Callable[[], None]:
        return IServiceClaims(self._device).claimService(serviceID)

    def rest(self) -> None:
        opened = self._opened
        if opened is not None and opened.resting is not None and self._isAwake:
            self._isAwake = False
            opened.awake -= 1
            if not opened.awake:
                opened.resting.rest()

    def wake(self) -> None:
        opened = self._opened
        if opened is not None and opened.resting is not None:
            if not self._isAwake:
                self._isAwake = True
                opened.awake += 1
            opened.resting.wake()

    def drive(self) -> bool:
        device = None if self._opened is None else self._opened.driven
        return device is not None and device.drive()

    def descriptors(self) -> Sequence[int]:
        device = self._resting
        return () if device is None else device.descriptors()

    def attend(self) -> None:
        device = self._resting
        if device is not None:
            device.attend()

    @property
    def _resting(self) -> IReactorDevice | None:
        """The device, while it is off the reactor."""
        opened = self._opened
        return None if opened is None or opened.awake else opened.resting

    def close(self) -> None:
        self.rest()
        opened, self._opened = self._opened, None
        if opened is None:
            return
        for unsubscribe in self._unsubscribers.values():
            unsubscribe()
        self._unsubscribers.clear()
        opened.shares -= 1
        if opened.shares == 0:
            opened.close()


def _parsers() -> Iterator[IVerbsDeviceStringParser]:
    return iter(getPlugins(IVerbsDeviceStringParser))


def _builtIn() -> Iterator[IVerbsDeviceStringParser]:
    """Return the parsers of this package, which L{getPlugins} also finds."""
    dropin = import_module("twisted.plugins.txrdma_devices")
    return (each for each in vars(dropin).values() if IVerbsDeviceStringParser.providedBy(each))


def _parsed(description: str) -> tuple[IVerbsDeviceStringParser, list[str], dict[str, str]]:
    """Return the parser of a device string, with its arguments; raises ValueError if it is malformed."""
    args, kwargs = parseString(description)
    prefix, *args = args
    for parser in chain(_builtIn(), _parsers()):  # scanning all plugins takes 10 ms
        if parser.prefix == prefix:
            return parser, args, kwargs
    raise ValueError(f"device {description!r}: there is no kind {prefix!r}, only {', '.join(deviceKinds())}")
