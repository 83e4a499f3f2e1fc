"""
Strings that name things to open: C{"soft:192.0.2.1:pcap=trace.pcap"}, C{"sim:fattree:128"}.

Written as Twisted's endpoint strings are: colons between arguments, C{key=value} for named ones, a backslash
before a colon, an equals sign or a backslash that is meant itself.
"""

from __future__ import annotations

from collections.abc import Iterator


def parseString(description: str, what: str = "device") -> tuple[list[str], dict[str, str]]:
    """
    Take a string apart.

    @param what: it names, for errors.
    @raise ValueError: a key comes twice, or a backslash stands before nothing, or there is no first argument.
    """
    args: list[str] = []
    kwargs: dict[str, str] = {}
    for key, value in _fields(description, what):
        if key is None:
            args.append(value)
        elif key in kwargs:
            raise ValueError(f"{what} {description!r}: {key}={value} after {key}={kwargs[key]}")
        else:
            kwargs[key] = value
    if not args:
        raise ValueError(f"{what} {description!r} names no kind of {what}")
    return args, kwargs


def splitString(description: str, separator: str) -> list[str]:
    """The strings that stand in one, with a separator between them; behind a backslash it is none."""
    parts = [""]
    characters = iter(description)
    for character in characters:
        if character == separator:
            parts.append("")
        else:
            parts[-1] += character + (next(characters, "") if character == "\\" else "")
    return parts


def _fields(description: str, what: str) -> Iterator[tuple[str | None, str]]:
    """The parts between colons: each a key, if it has one, and a value."""
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
                raise ValueError(f"{what} {description!r}: there is nothing behind the last backslash")
            value += following
        else:
            value += character
    yield key, value
