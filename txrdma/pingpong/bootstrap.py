"""
Messages with which two ends agree on a measurement: JSON objects, one per line.

The client sends C{hello}, and the server answers with C{hello}. The client requests a link with its settings
(C{open}); the server returns the final settings and its address (C{opened}); the client sends its address
(C{connect}), and the server confirms it (C{connected}). Then the client requests tests (C{run}, answered by
C{ready}), reports when its part is C{done}, and receives the server's C{result}; or it opens another link,
which replaces the first. Either side ends the conversation with C{trouble}. Unknown members are ignored.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass, fields, MISSING
from typing import Any, Final, Generic, TypeVar, Union

from txrdma.error import WireError
from txrdma.iba.types import GID, LID, MACAddress, MTU, QPN, RKey
from txrdma.iba.verbs import QPKind
from txrdma.kit.strings import printable
from txrdma.pingpong.link import EndAddress
from txrdma.pingpong.plan import DEEPEST, LARGEST, LinkSettings, Measure, Test, Transfer

VERSION: Final = 1
LONGEST: Final = 8192
"""Largest length of a line in bytes, without its newline."""

_T = TypeVar("_T")
_COUNT: Final = 1 << 53
"""Limit of integers, which every JSON parser represents exactly."""


@dataclass(frozen=True, slots=True)
class BootstrapHello:
    """Software of the sender, and its version of the protocol."""

    version: int = VERSION
    software: str = "txrdma"


@dataclass(frozen=True, slots=True)
class Open:
    """Request of the client for a link with these settings."""

    settings: LinkSettings


@dataclass(frozen=True, slots=True)
class Opened:
    """Answer of the server: its end of the link, and settings that may be lower than requested."""

    settings: LinkSettings
    there: EndAddress


@dataclass(frozen=True, slots=True)
class Connect:
    """Addresses and limits of the client's end of the link."""

    there: EndAddress


@dataclass(frozen=True, slots=True)
class Connected:
    """Confirmation that the server's end is connected."""


@dataclass(frozen=True, slots=True)
class Run:
    """Request of the client to begin a test."""

    test: Test


@dataclass(frozen=True, slots=True)
class Ready:
    """Confirmation that the server is ready for the test."""


@dataclass(frozen=True, slots=True)
class Done:
    """Report that the client has completed its part, and the number of messages that it has sent."""

    messages: int
    interrupted: bool = False


@dataclass(frozen=True, slots=True)
class ServerResult:
    """
    Results measured by the server.

    @ivar received: messages received from the client, including warm-up.
    @ivar sent: messages sent by the server, including warm-up.
    @ivar messages: messages sent by the server, without warm-up.
    """

    received: int = 0
    sent: int = 0
    messages: int = 0
    nanoseconds: int = 0
    peak: float = 0.0
    wrong: int = 0


@dataclass(frozen=True, slots=True)
class Trouble:
    """Reason why a request was refused or the conversation ends."""

    reason: str


Message = Union[BootstrapHello, Open, Opened, Connect, Connected, Run, Ready, Done, ServerResult, Trouble]


@dataclass(frozen=True)
class _Kind(Generic[_T]):
    """Encoder and decoder of one kind of value; C{read} raises ValueError or TypeError if it is invalid."""

    write: Callable[[Any], object]
    read: Callable[[Any], _T]


def _number(low: int, high: int) -> _Kind[int]:
    def read(value: Any) -> int:
        if type(value) is not int or not low <= value <= high:
            raise ValueError(f"not a whole number from {low} to {high}")
        return value

    return _Kind(int, read)


def _real(high: float) -> _Kind[float]:
    def read(value: Any) -> float:
        if type(value) not in (int, float) or not 0 <= value <= high:  # this also rejects NaN and infinity
            raise ValueError(f"not a number from 0 to {high:g}")
        return float(value)

    return _Kind(float, read)


def _flag(value: Any) -> bool:
    if type(value) is not bool:
        raise ValueError("neither true nor false")
    return value


def _text(value: Any) -> str:
    if type(value) is not str or len(value) > 1000 or not value.isprintable():
        raise ValueError("not a line of text")
    return value


def _string(write: Callable[[Any], str], read: Callable[[str], _T]) -> _Kind[_T]:
    return _Kind(write, lambda value: read(_text(value)))


_BOOL: Final = _Kind(bool, _flag)
_TEXT: Final = _Kind(lambda text: printable(str(text))[:1000], _text)


class _Layout(Generic[_T]):
    """Encoder and decoder of a dataclass as a JSON object."""

    def __init__(self, cls: type[_T], **kinds: _Kind[Any] | _Layout[Any]) -> None:
        self._cls = cls
        self._kinds = kinds
        self._needed = {
            each.name
            for each in fields(cls)  # type: ignore[arg-type]  # all of them are dataclasses
            if each.default is MISSING
        }

    def write(self, value: _T) -> dict[str, object]:
        """Return the value as a JSON-serializable dictionary without members that are None."""
        found = ((name, getattr(value, name)) for name in self._kinds)
        return {name: self._kinds[name].write(member) for name, member in found if member is not None}

    def read(self, value: Any) -> _T:
        """Decode a JSON object; raise C{ValueError} with the name of a member that is invalid."""
        if type(value) is not dict:
            raise ValueError("not an object")
        members = {}
        for name, kind in self._kinds.items():
            if name in value:
                try:
                    members[name] = kind.read(value[name])
                except (ValueError, TypeError, KeyError) as error:
                    raise ValueError(f"{name}: {error}") from None
            elif name in self._needed:
                raise ValueError(f"{name} is missing")
        return self._cls(**members)


_SETTINGS: Final = _Layout(
    LinkSettings,
    kind=_string(lambda kind: str(kind.name), lambda name: _known(QPKind, name)),
    size=_number(0, LARGEST),
    depth=_number(1, DEEPEST),
    mtu=_number(0, MTU.MTU_4096.bytes),
    inline=_number(0, LARGEST),
    check=_BOOL,
    atomics=_BOOL,
)
_END_ADDRESS: Final = _Layout(
    EndAddress,
    gid=_string(str, GID.fromString),
    lid=_Kind(int, lambda value: LID(_number(0, 0xFFFF).read(value))),
    qpn=_Kind(int, lambda value: QPN(_number(0, 0xFFFFFF).read(value))),
    psn=_number(0, 0xFFFFFF),
    mtu=_number(256, MTU.MTU_4096.bytes),
    mac=_string(str, MACAddress.fromString),
    reads=_number(0, 255),
    address=_string(hex, lambda text: _number(0, (1 << 64) - 1).read(int(text, 16))),
    rkey=_Kind(int, lambda value: RKey(_number(0, 0xFFFFFFFF).read(value))),
)
_TEST: Final = _Layout(
    Test,
    transfer=_string(lambda transfer: str(transfer.value), Transfer),
    measure=_string(lambda measure: str(measure.value), Measure),
    size=_number(0, LARGEST),
    iterations=_number(0, _COUNT),
    seconds=_real(86400),
    warmup=_number(0, _COUNT),
    depth=_number(1, DEEPEST),
    inline=_number(0, LARGEST),
    check=_BOOL,
)
_COUNTS: Final = ("received", "sent", "messages", "nanoseconds", "wrong")
_MESSAGES: Final[dict[str, tuple[type, _Layout[Any]]]] = {
    name: (cls, _Layout(cls, **kinds))
    for name, cls, kinds in (
        ("hello", BootstrapHello, {"version": _number(1, 1 << 31), "software": _TEXT}),
        ("open", Open, {"settings": _SETTINGS}),
        ("opened", Opened, {"settings": _SETTINGS, "there": _END_ADDRESS}),
        ("connect", Connect, {"there": _END_ADDRESS}),
        ("connected", Connected, {}),
        ("run", Run, {"test": _TEST}),
        ("ready", Ready, {}),
        ("done", Done, {"messages": _number(0, _COUNT), "interrupted": _BOOL}),
        ("result", ServerResult, {**dict.fromkeys(_COUNTS, _number(0, _COUNT)), "peak": _real(1e18)}),
        ("trouble", Trouble, {"reason": _TEXT}),
    )
}
_NAMES: Final = {cls: name for name, (cls, _layout) in _MESSAGES.items()}


def _known(kinds: type[QPKind], name: str) -> QPKind:
    try:
        return kinds[name]
    except KeyError:
        raise ValueError(f"there is no {name}") from None


def nameOf(kind: type) -> str:
    """Return the name of a kind of message in the protocol."""
    return _NAMES[kind]


def encode(message: Message) -> bytes:
    """Encode a message as a line with its newline."""
    name = nameOf(type(message))
    return json.dumps({"message": name, **_MESSAGES[name][1].write(message)}).encode() + b"\n"


def decode(line: bytes) -> Message:
    """Decode a line without its newline; raise L{WireError} if it is not a valid message."""
    try:
        value = json.loads(line)
        if type(value) is not dict:
            raise ValueError("not an object")
        name = value.get("message")
        if type(name) is not str or name not in _MESSAGES:
            raise ValueError(f"there is no message {str(name)[:20]!r}")
        found: Message = _MESSAGES[name][1].read(value)
        return found
    except (ValueError, RecursionError) as error:
        raise WireError("pingpong message", 0, str(error)) from None


class LineSplitter:
    """Splitter of a byte stream into lines of limited length."""

    def __init__(self, longest: int = LONGEST) -> None:
        self._longest = longest
        self._held = b""

    def take(self, data: bytes) -> list[bytes]:
        """Add received data, and return the complete lines; raise L{WireError} if one is too long."""
        *lines, self._held = (self._held + data).split(b"\n")
        if any(len(line) > self._longest for line in (*lines, self._held)):
            self._held = b""
            raise WireError("pingpong message", self._longest, "the line is too long")
        return lines
