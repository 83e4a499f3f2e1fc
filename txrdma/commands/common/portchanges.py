"""
Operations that change a port, and the fields of PortInfo that they set.

Follows InfiniBand Architecture vol. 1, 14.2.5.6 (PortInfo), and 7.2.7 (the states of a link).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from getpass import getpass
from typing import Final, NamedTuple

from twisted.python import usage

from txrdma.error import InvalidRequest
from txrdma.iba.verbs import PhysicalState
from txrdma.mad.layouts.smp import PortInfo
from txrdma.mad.layouts.values import LinkSpeed, LinkSpeedExtended, LinkSpeedExtended2, LinkWidth, PathMTU

STATES: Final[dict[str, dict[str, str]]] = {
    "enable": {"portPhysicalState": "POLLING"},
    "on": {"portPhysicalState": "POLLING"},
    "disable": {"portPhysicalState": "DISABLED"},
    "off": {"portPhysicalState": "DISABLED"},
    "reset": {"portPhysicalState": "DISABLED"},
    "down": {"portState": "DOWN"},
    "arm": {"portState": "ARMED"},
    "active": {"portState": "ACTIVE"},
}
"""Operations without a value, and the fields that they set first."""

CUTTING: Final = ("disable", "off", "reset", "down")
"""Operations that take the link down, if only temporarily."""


class _Mask(NamedTuple):
    """A field of PortInfo that enables capabilities, the field of supported ones, and names of bits."""

    enabled: str
    supported: str
    names: dict[str, int]
    everything: int


_MASKS: Final = {
    "speed": _Mask(
        *("linkSpeedEnabled", "linkSpeedSupported"),
        *({flag.name.lower(): flag.value for flag in LinkSpeed if flag.name}, 15),
    ),
    "espeed": _Mask(
        *("linkSpeedExtEnabled", "linkSpeedExtSupported"),
        *({flag.name.lower(): flag.value for flag in LinkSpeedExtended if flag.name} | {"none": 30}, 31),
    ),
    "espeed2": _Mask(
        *("linkSpeedExtEnabled2", "linkSpeedExtSupported2"),
        *({flag.name.lower(): flag.value for flag in LinkSpeedExtended2 if flag.name}, 7),
    ),
    "width": _Mask(
        *("linkWidthEnabled", "linkWidthSupported"),
        *({f"{flag.name[1:]}x": flag.value for flag in LinkWidth if flag.name}, 255),
    ),
}

_DIGITS: Final = 3
"""Longest number of bits in a mask."""

_LANES: Final = {"vl0": 1, "vl0-1": 2, "vl0-3": 3, "vl0-7": 4, "vl0-14": 5}
_MTUS: Final = {str(1 << 7 + int(mtu)): int(mtu) for mtu in PathMTU if int(mtu)}
_SWITCHED: Final = {"on": True, "1": True, "off": False, "0": False}


@dataclass(frozen=True, slots=True)
class _Number:
    """A field of PortInfo with a number. C{isOfEnd}: only ports with a LID have it (of switches, port 0)."""

    field: str
    lowest: int
    highest: int
    names: dict[str, int]
    isOfEnd: bool = False

    def read(self, operation: str, text: str) -> int:
        """Parse a number or name for this field; raise C{UsageError} if it is neither, or out of range."""
        try:
            number = self.names[text.lower()] if text.lower() in self.names else int(text, 0)
        except ValueError:
            number = -1
        if not self.lowest <= number <= self.highest:
            named = f", or {', '.join(self.names)}" if self.names else ""
            raise usage.UsageError(f"{operation} {text}: from {self.lowest} to {self.highest}{named}")
        return number


_NUMBERS: Final = {
    "vls": _Number("operationalVLs", 1, 5, _LANES),
    "mtu": _Number("neighborMTU", 1, 5, _MTUS),
    "lid": _Number("lid", 1, 0xBFFF, {}, True),
    "smlid": _Number("masterSMLID", 1, 0xBFFF, {}, True),
    "lmc": _Number("lmc", 0, 7, {}, True),
    "mkey": _Number("mkey", 0, (1 << 64) - 1, {}, True),
    "mkeylease": _Number("mkeyLeasePeriod", 0, 0xFFFF, {}, True),
    "mkeyprot": _Number("mkeyProtectBits", 0, 3, {}, True),
}

FDR10: Final = "fdr10"
VALUED: Final = (*_MASKS, FDR10, *_NUMBERS)
OPERATIONS: Final = ("query", *STATES, *VALUED)


@dataclass(frozen=True, slots=True)
class PortChange:
    """An operation on a port, and its value as text."""

    operation: str
    value: str = ""

    def __str__(self) -> str:
        secret = self.operation == "mkey"
        return f"{self.operation} {'...' if secret else self.value}".rstrip()

    @property
    def isCutting(self) -> bool:
        """Whether the operation takes the link down."""
        return self.operation in CUTTING

    @property
    def isOfEnd(self) -> bool:
        """Whether only ports with a LID have the operation's field."""
        return self.operation in _NUMBERS and _NUMBERS[self.operation].isOfEnd

    def fields(self, info: PortInfo) -> dict[str, str]:
        """
        Return the fields of PortInfo to set, with their values as text.

        @raise InvalidRequest: the port does not support the value.
        """
        operation, value = self.operation, self.value
        if operation == "on" and info.portPhysicalState is not PhysicalState.DISABLED:
            return {}
        if operation in STATES:
            return STATES[operation]
        if operation in _NUMBERS:
            return {_NUMBERS[operation].field: str(self._number(info))}
        mask = _MASKS[operation]
        wanted = _wanted(operation, value)
        can = getattr(info, mask.supported)
        if wanted != mask.everything and wanted & ~can and not (operation == "espeed" and wanted == 30):
            raise InvalidRequest(f"{operation} {value}: the port supports only {mask.supported} {can}")
        return {mask.enabled: str(wanted)}

    def _number(self, info: PortInfo) -> int:
        number = _NUMBERS[self.operation].read(self.operation, self.value)
        most = {"vls": info.vlCap, "mtu": int(info.mtuCap)}.get(self.operation, number)
        if number > most:
            raise InvalidRequest(f"{self.operation} {self.value}: the port supports {most} at most")
        return number


def parsed(words: Sequence[str], ask: Callable[[str], str] = getpass) -> list[PortChange]:
    """
    Parse the words of a command line: operations, each followed by its value if it takes one.

    @param ask: prompts for the key of C{mkey x}, to keep the key out of the shell's history.
    @raise usage.UsageError: an operation does not exist, its value is missing or invalid, or two operations
        change the state.
    """
    changes = list(_parsed(iter(words), ask))
    states = [change.operation for change in changes if change.operation in STATES]
    if len(states) > 1:  # one Set has one state
        raise usage.UsageError(f"{' and '.join(states)} are separate steps: run one command for each")
    return changes


def _parsed(words: Iterator[str], ask: Callable[[str], str]) -> Iterator[PortChange]:
    """Yield the operations, each with the next word as its value if it takes one."""
    for word in words:
        operation = word.lower()
        if operation not in OPERATIONS:
            raise usage.UsageError(f"there is no operation {operation!r}; there are {', '.join(OPERATIONS)}")
        if operation not in VALUED:
            yield PortChange(operation)
            continue
        value = next(words, "")
        if not value:
            raise usage.UsageError(f"{operation} takes a value")
        if operation == "mkey" and not value[0].isdigit():
            try:
                value = ask("M_Key: ")
            except EOFError:
                raise usage.UsageError("mkey: no key was entered") from None
        if operation in _NUMBERS:
            _NUMBERS[operation].read(operation, value)
        elif operation == FDR10:
            if value.lower() not in _SWITCHED:
                raise usage.UsageError(f"{operation} {value}: expected on or off")
        else:
            _wanted(operation, value)
        yield PortChange(operation, value)


def isSwitchedOn(value: str) -> bool:
    """Return whether a value of the operation C{fdr10} means on."""
    return _SWITCHED[value.lower()]


def newKey(changes: Iterable[PortChange]) -> int | None:
    """Return the new M_Key of the port, or None if it does not change."""
    return next((int(change.value, 0) for change in changes if change.operation == "mkey"), None)


def _wanted(operation: str, value: str) -> int:
    mask = _MASKS[operation]
    if value.lower() == "all":
        return mask.everything
    wanted = 0
    for part in value.lower().split(","):
        if part in mask.names:
            wanted |= mask.names[part]
        elif part.isdecimal() and len(part) <= _DIGITS and 0 < int(part) <= mask.everything:
            wanted |= int(part)
        else:
            raise usage.UsageError(f"{operation} {value}: expected one of {', '.join(mask.names)}, all")
    return wanted
