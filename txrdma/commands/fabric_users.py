"""C{txrdma fabric-users}: the users of the fabric monitor's pages, with hashes of their passwords."""

from __future__ import annotations

import sys
from collections.abc import Iterable
from getpass import getpass
from pathlib import Path
from typing import Any, Final

from twisted.python import usage

from txrdma.commands.common import options as commandOptions
from txrdma.commands.common.interruption import endedBySignals
from txrdma.commands.common.rows import printJSON, showRows
from txrdma.commands.common.values import fileName
from txrdma.error import InvalidRequest
from txrdma.kit.logs import reasonText
from txrdma.kit.passwords import Account, PasswordHash, UserRole
from txrdma.ports.pnet import changing, readText, writeText

USUAL_FILE: Final = "/etc/fabric-monitor/users"

FEWEST_CHARACTERS: Final = 8
"""Minimum length of a new password in characters."""

LONGEST_NAME: Final = 64
_SHOW, _ADD, _ROLE, _REMOVE = "show", "add", "role", "remove"
_COUNTS: Final = {_SHOW: 0, _ADD: 1, _ROLE: 2, _REMOVE: 1}
"""Number of arguments of each action."""

_SPACE: Final = " \t\n\r\v\f"


class CommandOptions(commandOptions.CommandOptions):
    """Options of C{txrdma fabric-users}: an action on the file of users."""

    synopsis = "[options] [show | add NAME | role NAME viewer|operator | remove NAME]"
    longdesc = (
        "Users of the pages of twistd fabric-monitor: the file that web.users in its configuration names. "
        "add asks for the password twice, or reads it from standard input if that is no terminal, and "
        "replaces a user of the same name. An operator also acknowledges and comments findings. A running "
        "monitor reads the file at systemctl reload, or SIGHUP."
    )
    optFlags = [["json", None, "JSON instead of lines."]]
    optParameters = [
        ["file", "f", USUAL_FILE, "Path of the file of users.", fileName],
        ["role", "r", None, "Role of the user to add: viewer or operator. [default: viewer]"],
    ]

    def parseArgs(self, action: str = _SHOW, *rest: str) -> None:
        if action not in _COUNTS:
            raise usage.UsageError(f"expected {', '.join(_COUNTS)}, not {action}")
        if len(rest) != _COUNTS[action]:
            raise usage.UsageError(f"{action}: expected {self.synopsis.removeprefix('[options] ')}")
        self["action"] = action
        self["name"] = rest[0] if rest else ""
        if action == _ROLE:
            self["role"] = rest[1]

    def postOptions(self) -> None:
        name, role = self["name"], self["role"]
        if role is not None and self["action"] not in (_ADD, _ROLE):
            raise usage.UsageError("--role is for add")
        if role not in (None, *(each.value for each in UserRole)):
            raise usage.UsageError(f"role {role}: expected viewer or operator")
        isName = name.isprintable() and name == name.strip() and len(name) <= LONGEST_NAME
        if name and not (isName and ":" not in name and not name.startswith("#")):
            raise usage.UsageError(f"{name!r}: expected up to {LONGEST_NAME} characters, and no colon")


async def run(reactor: object, options: CommandOptions) -> None:
    """Run C{txrdma fabric-users}: change or print the file."""
    path, action = Path(options["file"]).resolve(), options["action"]  # a link remains one
    try:
        with endedBySignals():
            if action == _SHOW and not path.exists():
                raise FileNotFoundError(f"there is no such file: txrdma fabric-users --file {path} add NAME")
            if action != _SHOW:
                password = _asked(options["name"]) if action == _ADD else b""
                with changing(path):
                    text = readText(path).removeprefix("\ufeff")
                    writeText(path, _changed(text, options, password), 0o600)
        found = usersOf(readText(path).removeprefix("\ufeff"))
    except (OSError, ValueError, InvalidRequest) as error:
        raise InvalidRequest(f"{path}: {reasonText(error)}") from error
    if options["json"]:
        printJSON(found)
    elif action == _SHOW:
        showRows(("name", "role"), [tuple(one.values()) for one in found])


def _asked(name: str) -> bytes:
    """Return the new password of a user, from the terminal or from standard input."""
    if sys.stdin.isatty():
        password = getpass(f"Password of {name}: ")
        if getpass("Again: ") != password:
            raise InvalidRequest("the two passwords differ; nothing has changed")
    else:
        password = sys.stdin.readline().rstrip("\r\n")
    if len(password) < FEWEST_CHARACTERS:
        raise InvalidRequest(f"a password has {FEWEST_CHARACTERS} characters or more; nothing has changed")
    return password.encode("utf-8", "surrogateescape")


def _split(line: str) -> tuple[str, str]:
    """Return the name and the rest of a line; C{""} for both of a comment or an empty line."""
    text = line.strip(_SPACE)
    name, _colon, rest = text.partition(":")
    return ("", "") if text.startswith("#") else (name, rest)


def usersOf(text: str) -> list[dict[str, Any]]:
    """Return the users of a file for JSON; raise L{InvalidRequest} for an invalid line."""
    found = []
    for number, line in enumerate(_linesOf(text), 1):
        name, rest = _split(line)
        if name or rest:
            try:
                account = Account.fromText(rest.encode())
            except InvalidRequest as error:
                raise InvalidRequest(f"line {number}: {error}") from error
            found.append({"name": name, "role": account.role.value})
    return found


def _changed(text: str, options: CommandOptions, password: bytes) -> str:
    """Return the text of a file after an action."""
    name, action = options["name"], options["action"]
    lines = _linesOf(text)
    others = [line for line in lines if _split(line)[0] != name]
    if action == _ADD:
        role = options["role"] or UserRole.VIEWER.value
        return _joined([*others, f"{name}:{PasswordHash.of(password)}:{role}"])
    if len(others) == len(lines):
        raise InvalidRequest(f"there is no user {name}")
    if action == _REMOVE:
        return _joined(others)
    return _joined(_withRole(line, options["role"]) if _split(line)[0] == name else line for line in lines)


def _linesOf(text: str) -> list[str]:
    """Return the lines that the monitor reads: C{str.splitlines} has more separators."""
    return [line.decode() for line in text.encode().splitlines()]


def _joined(lines: Iterable[str]) -> str:
    return "".join(f"{line}\n" for line in lines)


def _withRole(line: str, role: str) -> str:
    name, rest = _split(line)
    hashed = rest.partition(":")[0]
    try:
        PasswordHash.fromText(hashed)
    except InvalidRequest as error:
        raise InvalidRequest(f"{name}: {error}") from error
    return f"{name}:{hashed}:{role}"
