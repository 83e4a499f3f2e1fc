"""
The words with which two ends agree on what to measure: objects of JSON, one in a line.

The client says C{hello}, and the server answers so. The client C{open}s a link and says what for; the server
says what it will be (C{opened}) and where it is; the client says where its own end is (C{connect}), and the
server that it is C{connected}. From then on the client asks for tests (C{run}, answered by C{ready}), tells
when its part is C{done}, and hears the server's C{result}; or it opens another link instead of that one.
C{trouble}, from either side, ends everything. Members that are not known here are passed over.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass, fields, MISSING
from typing import Any, Final, Generic, TypeVar, Union

from txrdma.error import WireError
from txrdma.iba.types import GID, LID, MACAddress, MTU, QPN, RKey
from txrdma.iba.verbs import QPKind
from txrdma.pingpong.link import Whereabouts
from txrdma.pingpong.plan import DEEPEST, LARGEST, LinkSettings, Measure, Test, Transfer

VERSION: Final = 1
LONGEST: Final = 8192
"""Bytes of a line, at most, without its end."""

_T = TypeVar("_T")
_COUNT: Final = 1 << 53
"""What every reader of JSON takes."""


@dataclass(frozen=True, slots=True)
class Hello:
    """Who speaks, and which version of this."""

    version: int = VERSION
    software: str = "txrdma"


@dataclass(frozen=True, slots=True)
class Open:
    """The client wants a link."""

    settings: LinkSettings


@dataclass(frozen=True, slots=True)
class Opened:
    """The server has one, which may be made for less than was asked."""

    settings: LinkSettings
    there: Whereabouts


@dataclass(frozen=True, slots=True)
class Connect:
    """The client's end is there."""

    there: Whereabouts


@dataclass(frozen=True, slots=True)
class Connected:
    """The server's end knows it."""


@dataclass(frozen=True, slots=True)
class Run:
    """The client wants to begin a test."""

    test: Test


@dataclass(frozen=True, slots=True)
class Ready:
    """The server does its part from now on."""


@dataclass(frozen=True, slots=True)
class Done:
    """The client has done its part: it has sent so many messages in all."""

    messages: int
    interrupted: bool = False


@dataclass(frozen=True, slots=True)
class Result:
    """
    What the server has seen.

    @ivar received: messages of the client's, warming included.
    @ivar sent: messages of its own, where both send, warming included; C{messages} of them counted.
    """

    received: int = 0
    sent: int = 0
    messages: int = 0
    nanoseconds: int = 0
    peak: float = 0.0
    wrong: int = 0


@dataclass(frozen=True, slots=True)
class Trouble:
    """It can't be, or it can't go on."""

    reason: str


Message = Union[Hello, Open, Opened, Connect, Connected, Run, Ready, Done, Result, Trouble]


@dataclass(frozen=True)
class _Kind(Generic[_T]):
    """How one kind of value is written, and read: C{read} raises ValueError or TypeError for what is none."""

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
        if type(value) not in (int, float) or not 0 <= value <= high:  # so neither NaN nor infinity
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
_TEXT: Final = _Kind(lambda text: "".join(c if c.isprintable() else " " for c in str(text))[:1000], _text)


class _Layout(Generic[_T]):
    """How a value class is written as an object of JSON: each member by its kind."""

    def __init__(self, cls: type[_T], **kinds: _Kind[Any]) -> None:
        self._cls = cls
        self._kinds = kinds
        self._needed = {
            each.name
            for each in fields(cls)  # type: ignore[arg-type]  # they are all dataclasses
            if each.default is MISSING
        }

    def write(self, value: _T) -> dict[str, object]:
        """As JSON takes it; members that are None are left out."""
        found = ((name, getattr(value, name)) for name in self._kinds)
        return {name: self._kinds[name].write(member) for name, member in found if member is not None}

    def read(self, value: Any) -> _T:
        """
        What it means.

        @raise ValueError: nothing; says which member.
        """
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


def _nested(layout: _Layout[_T]) -> _Kind[_T]:
    return _Kind(layout.write, layout.read)


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
_WHEREABOUTS: Final = _Layout(
    Whereabouts,
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
_MESSAGES: Final[dict[str, tuple[type, _Layout[Any]]]] = {
    cls.__name__.lower(): (cls, _Layout(cls, **kinds))
    for cls, kinds in (
        (Hello, {"version": _number(1, 1 << 31), "software": _TEXT}),
        (Open, {"settings": _nested(_SETTINGS)}),
        (Opened, {"settings": _nested(_SETTINGS), "there": _nested(_WHEREABOUTS)}),
        (Connect, {"there": _nested(_WHEREABOUTS)}),
        (Connected, {}),
        (Run, {"test": _nested(_TEST)}),
        (Ready, {}),
        (Done, {"messages": _number(0, _COUNT), "interrupted": _BOOL}),
        (
            Result,
            {
                "received": _number(0, _COUNT),
                "sent": _number(0, _COUNT),
                "messages": _number(0, _COUNT),
                "nanoseconds": _number(0, _COUNT),
                "peak": _real(1e18),
                "wrong": _number(0, _COUNT),
            },
        ),
        (Trouble, {"reason": _TEXT}),
    )
}


def _known(kinds: type[QPKind], name: str) -> QPKind:
    try:
        return kinds[name]
    except KeyError:
        raise ValueError(f"there is no {name}") from None


def encode(message: Message) -> bytes:
    """One line, with its end."""
    name = type(message).__name__.lower()
    return json.dumps({"message": name, **_MESSAGES[name][1].write(message)}).encode() + b"\n"


def decode(line: bytes) -> Message:
    """
    What a line means, given without its end.

    @raise WireError: nothing.
    """
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
    """Lines out of bytes that come in pieces; no line is longer than it may be."""

    def __init__(self, longest: int = LONGEST) -> None:
        self._longest = longest
        self._held = b""

    def take(self, data: bytes) -> list[bytes]:
        """
        The lines that are complete.

        @raise WireError: one is too long.
        """
        *lines, self._held = (self._held + data).split(b"\n")
        if any(len(line) > self._longest for line in (*lines, self._held)):
            self._held = b""
            raise WireError("pingpong message", self._longest, "the line is too long")
        return lines
