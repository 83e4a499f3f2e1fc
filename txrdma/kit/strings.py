"""
Device, port and endpoint strings, such as C{"soft:192.0.2.1:pcap=trace.pcap"} and C{"sim:fattree:128"}.

The syntax is that of Twisted's endpoint strings: arguments separated by colons, C{key=value} for named ones,
and a backslash to escape a colon, an equals sign or a backslash. Also shows texts of a peer, and orders
names.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from operator import index
from typing import TypeVar


def parseString(description: str, what: str = "device") -> tuple[list[str], dict[str, str]]:
    """
    Split a string into positional and named arguments.

    @param what: the kind of object that it names, for error messages.
    @raise ValueError: a key is given twice, the string ends with a backslash, or has no positional argument.
    """
    args: list[str] = []
    kwargs: dict[str, str] = {}
    for key, value in _fields(description, what):
        if key is None:
            args.append(value)
        elif key in kwargs:
            raise ValueError(f"{what} {description!r}: {key}= is given twice")
        else:
            kwargs[key] = value
    if not args:
        raise ValueError(f"{what} {description!r} does not name a kind of {what}")
    return args, kwargs


def splitString(description: str, separator: str) -> list[str]:
    """Split at each separator that is not escaped by a backslash."""
    parts = [""]
    characters = iter(description)
    for character in characters:
        if character == separator:
            parts.append("")
        else:
            parts[-1] += character + (next(characters, "") if character == "\\" else "")
    return parts


def _fields(description: str, what: str) -> Iterator[tuple[str | None, str]]:
    """Yield the key (None for positional arguments) and the value of each argument."""
    key: str | None = None
    value = ""
    characters = iter(description)
    for character in characters:
        if character == ":":
            yield key, value
            key, value = None, ""
        elif character == "=" and key is None:
            key, value = value, ""
        elif character == "\\":
            following = next(characters, None)
            if following is None:
                raise ValueError(f"{what} {description!r}: nothing follows the last backslash")
            value += following
        else:
            value += character
    yield key, value


def checkPort(port: int) -> None:
    """Raise C{ValueError} unless this is a port number; C{TypeError} if it is no integer."""
    if not 0 <= index(port) < 1 << 16:
        raise ValueError(f"a port has 16 bits, so it cannot be {port}")


def checkAddress(host: str, port: int) -> None:
    """
    Check the arguments of an endpoint for their types, and the port for its range.

    @raise TypeError: the host is not text, or the port is no integer.
    @raise ValueError: the port is not from 0 to 65535.
    """
    if not isinstance(host, str):
        raise TypeError(f"a host is a name or an IP address, not {host!r}")
    checkPort(port)


DefaultT = TypeVar("DefaultT")

_UNITS = {"K": 10, "M": 20, "G": 30}
_LONGEST_SECONDS = 1e9


class Arguments:
    """
    The arguments of one endpoint string, removed as they are read; L{end} rejects the remaining ones.

    Its methods raise C{ValueError}, whose message names the kind of endpoint, the key and the value.

    @ivar left: the arguments that have not been read.
    """

    def __init__(
        self, kind: str, names: tuple[str, ...], args: tuple[str, ...], kwargs: dict[str, str]
    ) -> None:
        """
        @param kind: the prefix of the string.
        @param names: keys of the positional arguments.
        """
        self.kind, self.left = kind, dict(kwargs)
        self._keys: dict[str, None] = {}
        if len(args) > len(names):
            raise ValueError(f"{kind}: {args[len(names)]!r} is one value too many")
        for name, value in zip(names, args, strict=False):
            if name in kwargs:
                raise ValueError(f"{kind}: {name}={kwargs[name]}: {name} is already {value}")
            self.left[name] = value

    def has(self, key: str) -> bool:
        self._keys[key] = None
        return key in self.left

    def take(self, key: str, default: str = "") -> str:
        """Return the text of a key."""
        self._keys[key] = None
        return self.left.pop(key, default)

    def required(self, key: str) -> str:
        """Return the text of a key that must be given."""
        value = self.take(key)
        if not value:
            raise ValueError(f"{self.kind}: {key}= is missing")
        return value

    def number(self, key: str, default: int | None, least: int, most: int) -> int:
        """
        Return a whole number, decimal or hexadecimal with C{0x}.

        @param default: None if the key must be given.
        """
        value = self.required(key) if default is None else self.take(key, str(default))
        if value.isascii() and value.isalnum():
            try:
                number = int(value, 16 if value[:2] in ("0x", "0X") else 10)
            except ValueError:
                number = least - 1
            if least <= number <= most:
                return number
        raise self._wrong(key, value, f"a number from {least} to {most}")

    def size(self, key: str, default: int, least: int, most: int) -> int:
        """Return a number of bytes, which may end with C{K}, C{M} or C{G}."""
        value = self.take(key, str(default))
        digits, unit = (value[:-1], value[-1]) if value[-1:] in _UNITS else (value, "")
        if digits.isascii() and digits.isdigit() and len(digits) < 100:  # int() has a limit of its own
            count = int(digits) << _UNITS.get(unit, 0)
            if least <= count <= most:
                return count
        raise self._wrong(key, value, f"a number of bytes from {least} to {most}, such as 65536 or 64K")

    def seconds(self, key: str, default: DefaultT, mayBeZero: bool = False) -> float | DefaultT:
        """Return a time in seconds, which may end with C{s}; the default if the key is not given."""
        if not self.has(key):
            return default
        value = self.take(key)
        try:
            seconds = float(value.removesuffix("s"))
        except ValueError:
            seconds = -1.0
        if 0 < seconds <= _LONGEST_SECONDS or (mayBeZero and seconds == 0):
            return seconds
        raise self._wrong(key, value, f"a number of seconds {'from' if mayBeZero else 'above'} 0")

    def choice(self, key: str, *choices: str) -> str:
        """Return one of several words; the first one is the default."""
        value = self.take(key, choices[0])
        if value not in choices:
            raise self._wrong(key, value, f"one of {', '.join(choices)}")
        return value

    def isYes(self, key: str, default: bool) -> bool:
        """Return whether the value of a key is C{yes}; the only other value is C{no}."""
        return self.choice(key, *(("yes", "no") if default else ("no", "yes"))) == "yes"

    def address(self, key: str, default: str = "") -> str:
        """Return an IP address, which may have a zone."""
        from ipaddress import ip_address

        value = self.take(key, default)
        try:
            ip_address(value.partition("%")[0])
        except ValueError:
            raise self._wrong(key, value, "an IP address") from None
        return value

    def end(self) -> None:
        """Reject arguments that were not read."""
        for key, value in self.left.items():
            keys = ", ".join(self._keys)
            raise ValueError(f"{self.kind}: {key}={value}: there is no such key here; the keys are {keys}")

    def _wrong(self, key: str, value: str, expected: str) -> ValueError:
        return ValueError(f"{self.kind}: {key}={value} is not {expected}")


def naturalKey(name: str) -> list[tuple[int, str]]:
    """Return a sort key by which C{mlx5_2} precedes C{mlx5_10}."""
    return [(int(part), "") if part.isdecimal() else (-1, part) for part in re.split(r"(\d+)", name)]


def escapedText(raw: bytes) -> str:
    """Return bytes as ASCII; each that is not printable, such as a control character, as C{\\xff}."""
    return escaped(raw.decode("ascii", "backslashreplace"))


def escaped(text: str) -> str:
    """Return a peer's text in which unprintable characters are escape sequences, such as C{\\x1b}."""
    if text.isprintable():
        return text
    return "".join(each if each.isprintable() else f"\\x{ord(each):02x}" for each in text)


def printable(text: str, replacement: str = " ") -> str:
    """Return a peer's text, in which C{replacement} stands for each unprintable character."""
    return text if text.isprintable() else "".join(c if c.isprintable() else replacement for c in text)
