"""
Device and port strings, such as C{"soft:192.0.2.1:pcap=trace.pcap"} and C{"sim:fattree:128"}.

The syntax is that of Twisted's endpoint strings: arguments separated by colons, C{key=value} for named ones,
and a backslash to escape a colon, an equals sign or a backslash.
"""

from __future__ import annotations

from collections.abc import Iterator


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
            raise ValueError(f"{what} {description!r}: {key}={value} after {key}={kwargs[key]}")
        else:
            kwargs[key] = value
    if not args:
        raise ValueError(f"{what} {description!r} names no kind of {what}")
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
    """The arguments: key (None for positional ones) and value."""
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
