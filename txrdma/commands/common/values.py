"""Parsers for the values of options and arguments."""

from __future__ import annotations

from collections.abc import Callable

from twisted.python import usage


def seconds(text: str) -> float:
    """Parse seconds, from 0.001 to 3600; raise C{ValueError} for another text."""
    try:
        value = float(text)
    except ValueError:
        value = 0.0
    if not 0.001 <= value <= 3600:
        raise ValueError("expected 0.001 to 3600 seconds")
    return value


def count(text: str) -> int:
    """Parse a number of up to 64 bits, decimal or hexadecimal (C{0x}); raise C{ValueError} for another."""
    try:
        value = int(text, 0)
    except ValueError:
        value = -1
    if not 0 <= value < 1 << 64:
        raise ValueError("expected a number, 0 or more" + (", of at most 64 bits" if value > 0 else ""))
    return value


def fileName(text: str) -> str:
    """Check the name of a file; raise C{ValueError} for an empty one, as of an unset variable of a shell."""
    if not text:
        raise ValueError("expected the name of a file")
    return text


def unsigned(width: int) -> Callable[[str], int]:
    """Return a parser of whole numbers from 0 on that have at most C{width} bits, such as 10 or 0xA."""

    def parse(text: str) -> int:
        value = count(text)
        if value >> width:
            raise ValueError(f"expected a number of {width} bits")
        return value

    return parse


def field(text: str) -> tuple[str, str]:
    """Split C{NAME=VALUE} into name and value; raise C{UsageError} if one is missing."""
    name, sign, value = text.partition("=")
    if not sign or not name:
        raise usage.UsageError(f"{text!r} is not of the form NAME=VALUE")
    return name, value


def portNumbers(text: str) -> list[int]:
    """Parse port numbers from 0 to 255 such as C{"1,4-7"}; raise C{UsageError} for another text."""
    found: list[int] = []
    for part in text.split(",") if text else ():
        low, dash, high = part.partition("-")
        try:
            first, last = int(low), int(high if dash else low)
        except ValueError:
            raise usage.UsageError(f"ports {text!r}: expected numbers, as 1,4-7") from None
        if not 0 <= first <= last <= 255:
            raise usage.UsageError(f"ports {text!r}: expected 0 to 255")
        found += range(first, last + 1)
    return found
