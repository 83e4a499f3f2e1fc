"""
Pages of the documentation, run as a reader runs them: from an empty folder, by a shell.

A block C{console} has commands after C{$ }, and behind each the output that it must print. A block in another
language is a file if the paragraph before it ends with a file name and a colon. Output is compared loosely: a
number stands for any number, C{...} for any text, and lines between those of the page are allowed. A command
without output has to succeed.
"""

from __future__ import annotations

import os
import re
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

BLOCK: Final = re.compile(
    r"(?P<before>[^\n]*)\n\n```(?P<language>\w+)\n(?P<text>.*?)^```$", re.MULTILINE | re.DOTALL
)
FILE: Final = re.compile(r"`(?P<name>[\w.-]+)`:$")
PORT: Final = re.compile(r"(?<=[:/ ])(?:80[0-9]{2}|7471|9315)(?![\d.])")
NUMBER: Final = re.compile(r"\d+(?:,\d{3})*(?:\.\d+)?")
PATIENCE_SECONDS: Final = 60.0
INSTALLATION_SECONDS: Final = 600.0


@dataclass
class Command:
    """A command of a page, and the lines that it must print."""

    text: str
    lines: list[str] = field(default_factory=list)


@dataclass
class File:
    """A file that the reader has to save."""

    name: str
    text: str


def steps(page: str) -> Iterator[Command | File]:
    """
    Return commands and files of a page, in order.

    @raise ValueError: a block is neither.
    """
    for block in BLOCK.finditer(page):
        saved = FILE.search(block["before"])
        if block["language"] == "console":
            yield from _commands(block["text"])
        elif saved:
            yield File(saved["name"], block["text"])
        elif block["language"] != "text":  # examples of strings, which are no programs
            raise ValueError(f"a block without a file name: {block['text']}")


def _commands(text: str) -> Iterator[Command]:
    """Split a console block at its prompts."""
    found: list[Command] = []
    for line in text.splitlines():
        if line.startswith("$ "):
            found.append(Command(line[2:]))
        elif line:
            found[-1].lines.append(line)
    return iter(found)


def pattern(line: str) -> re.Pattern[str]:
    """
    Return what a line of the page matches: any number for a number, any text for C{...}, any spaces for
    spaces.
    """
    parts = []
    for part in line.split("..."):
        words = [r"[\d,.]+".join(map(re.escape, NUMBER.split(word))) for word in part.split()]
        gaps = (r"\s*" if part[:1].isspace() else "", r"\s*" if part[-1:].isspace() else "")
        parts.append(gaps[0] + r"\s+".join(words) + gaps[1])
    return re.compile(".*".join(parts))


def missing(expected: list[str], printed: str) -> list[str]:
    """Return the lines of a page from the first one that was not printed, or not in this order."""
    lines = iter(printed.splitlines())
    for number, line in enumerate(expected):
        if line != "..." and not any(pattern(line).fullmatch(each.rstrip()) for each in lines):
            return expected[number:]
    return []


def withFreePorts(page: str, reserved: ExitStack) -> str:
    """
    Return a page with free ports in place of those that it names, so that two runs do not meet.

    @param reserved: holds the ports until it is closed, so that no other test gets them in the meantime.
        Servers that set SO_REUSEADDR, as most do, can use them.
    """
    ports: dict[str, str] = {}
    for name in sorted(set(PORT.findall(page))):
        each = reserved.enter_context(socket.socket())
        each.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        each.bind(("127.0.0.1", 0))
        ports[name] = str(each.getsockname()[1])
    return PORT.sub(lambda found: ports[found[0]], page)


class Reader:
    """
    A shell in an empty folder, which gets the commands of a page one after the other.

    @ivar seconds: how long each command took, until its output was complete.
    """

    def __init__(self, folder: Path, environment: Mapping[str, str] = os.environ) -> None:
        self._folder = folder
        self._log = folder.with_name(folder.name + ".log")
        self.seconds: dict[str, float] = {}
        with self._log.open("wb") as log:
            self._shell = subprocess.Popen(
                ["bash", "-s"],
                cwd=folder,
                env={**environment, "COLUMNS": "120", "PYTHONUNBUFFERED": "1"},
                stdin=subprocess.PIPE,
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )

    def do(self, step: Command | File) -> None:
        """
        Save a file, or run a command and wait for its output and, unless it runs in the background, its end.

        @raise AssertionError: the output is not that of the page.
        """
        if isinstance(step, File):
            (self._folder / step.name).write_text(step.text)
            return
        begun, offset = time.monotonic(), self._log.stat().st_size
        ended = re.compile(rf"^command {len(self.seconds)} ended with (\d+)$", re.MULTILINE)
        assert self._shell.stdin is not None
        words = f"{step.text}\nprintf '\\ncommand {len(self.seconds)} ended with %d\\n' $?\n"
        self._shell.stdin.write(words.encode())
        self._shell.stdin.flush()
        isBackground = step.text.rstrip().endswith("&")
        patience = INSTALLATION_SECONDS if isInstallation(step) else PATIENCE_SECONDS
        while True:
            with self._log.open("rb") as log:
                log.seek(offset)
                printed = log.read().decode()
            status = ended.search(printed)
            lacks = missing(step.lines, printed)
            if status is not None and not lacks and (step.lines or status[1] == "0"):
                break
            isLate = time.monotonic() - begun > patience or self._shell.poll() is not None
            if isLate or (status is not None and not isBackground):
                expected = "\n".join(lacks or ["nothing, and the exit status 0"])
                raise AssertionError(f"$ {step.text}\nThe page has:\n{expected}\nIt printed:\n{printed}")
            time.sleep(0.02)
        self.seconds[step.text] = time.monotonic() - begun

    def close(self) -> None:
        """End the shell, and what it has left in the background."""
        os.killpg(self._shell.pid, signal.SIGTERM)
        try:
            self._shell.communicate(timeout=20)
        except subprocess.TimeoutExpired:
            os.killpg(self._shell.pid, signal.SIGKILL)
            self._shell.communicate()


def isInstallation(step: Command | File) -> bool:
    """Return whether a command installs something, which tests have done before."""
    return isinstance(step, Command) and re.match(r"python3 -m venv |pip install ", step.text) is not None


def installed() -> dict[str, str]:
    """Return an environment whose commands are those of this interpreter."""
    return {**os.environ, "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}"}
