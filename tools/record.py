"""
Record a command in a terminal as an animated picture: C{record.py PICTURE.svg COMMAND...}.

The command runs in a pseudoterminal; pyte interprets what it prints. Every quarter of a second, each row
that has changed becomes a part of the picture, shown for as long as it was there, so the animation lasts as
long as the command. The last screen remains for five seconds, then the animation starts again. Where a viewer
does not animate, or the reader prefers reduced motion, the picture shows the last screen. Its last line has
the load of the host, without which durations mean little.
"""

from __future__ import annotations

import argparse
import fcntl
import os
import pty
import select
import struct
import sys
import termios
import time
from collections.abc import Sequence
from html import escape
from itertools import groupby
from pathlib import Path
from typing import Any, Final

FRAME_SECONDS: Final = 0.25
REST_SECONDS: Final = 5.0
WIDTH, HEIGHT = 8.4, 18  # of a character, in pixels at a font size of 14
MARGIN: Final = 16
FONT: Final = "ui-monospace,Menlo,Consolas,DejaVu Sans Mono,monospace"
OPACITY: Final = ' opacity="0"'
COLOURS: Final = {
    "black": "#45475a",
    "red": "#f38ba8",
    "green": "#a6e3a1",
    "brown": "#f9e2af",
    "blue": "#89b4fa",
    "magenta": "#f5c2e7",
    "cyan": "#94e2d5",
    "white": "#bac2de",
    "default": "#cdd6f4",
}
"""Colours of the text by pyte's names; others are hexadecimal numbers."""

Line = tuple[tuple[str, str, bool, int], ...]  # spans: text, colour, bold, column
Screen = tuple[Line, ...]


def spans(characters: Sequence[Any]) -> Line:
    """Return a row as pieces with the same style each, without spaces at its end."""
    found, column = [], 0
    for (colour, isBold), group in groupby(characters, key=lambda each: (each.fg, each.bold)):
        text = "".join(each.data for each in group)
        found.append((text, COLOURS.get(colour, f"#{colour}"), isBold, column))
        column += len(text)
    while found and not found[-1][0].strip():
        found.pop()
    return tuple(found)


def record(command: Sequence[str], columns: int, rows: int) -> tuple[list[tuple[float, Screen]], int]:
    """Run a command; return its screens with the seconds at which they appeared, and its exit status."""
    import pyte

    screen = pyte.Screen(columns, rows)
    stream = pyte.ByteStream(screen)
    shown = " ".join(command)
    stream.feed(f"$ {shown}\r\n".encode())
    process, terminal = pty.fork()
    if not process:
        os.execvpe(command[0], list(command), {**os.environ, "TERM": "xterm-256color"})
    fcntl.ioctl(terminal, termios.TIOCSWINSZ, struct.pack("4H", rows, columns, 0, 0))
    begun, frames, isOpen = time.monotonic(), [], True
    while isOpen:
        deadline = time.monotonic() + FRAME_SECONDS
        while isOpen and (left := deadline - time.monotonic()) > 0:
            if select.select([terminal], [], [], left)[0]:
                try:
                    data = os.read(terminal, 65536)
                except OSError:  # the last process has closed the terminal
                    data = b""
                isOpen = bool(data)
                stream.feed(data)
        lines = tuple(spans([screen.buffer[row][column] for column in range(columns)]) for row in range(rows))
        if not frames or frames[-1][1] != lines:
            frames.append((time.monotonic() - begun, lines))
    return frames, os.waitstatus_to_exitcode(os.waitpid(process, 0)[1])


def drawn(line: Line, row: int) -> str:
    """Return the text of a row as elements of SVG."""
    out = []
    for text, colour, isBold, column in line:
        if text.strip():
            x, y = MARGIN + column * WIDTH, MARGIN + (row + 1) * HEIGHT - 5
            weight = ' font-weight="bold"' if isBold else ""
            size = f' textLength="{len(text) * WIDTH:.1f}"'
            out.append(f'<text x="{x:.1f}" y="{y}" fill="{colour}"{weight}{size}>{escape(text)}</text>')
    return "".join(out)


def changes(frames: Sequence[tuple[float, Screen]], row: int) -> list[tuple[float, Line]]:
    """Return the former contents of a row, with the seconds from which on they were shown."""
    found: list[tuple[float, Line]] = []
    for at, screen in frames:
        if not found or found[-1][1] != screen[row]:
            found.append((at, screen[row]))
    return found


def picture(frames: Sequence[tuple[float, Screen]], title: str, note: str, columns: int) -> str:
    """Return an animated picture of the frames, with a note below them."""
    rows = max(row + 1 for _, screen in frames for row, line in enumerate(screen) if line)
    width, height = 2 * MARGIN + columns * WIDTH, 2 * MARGIN + (rows + 2) * HEIGHT
    total = frames[-1][0] + REST_SECONDS
    styles, parts = [], []
    for row in range(rows):
        lines = changes(frames, row)
        for number, (at, line) in enumerate(lines):
            if not line:
                continue
            name = f"r{row}n{number}"
            isFirst, isLast = at == frames[0][0], number == len(lines) - 1
            steps = "" if isFirst else f"0%{{opacity:0}}{100 * at / total:.2f}%{{opacity:1}}"
            if not isLast:
                steps += f"{100 * lines[number + 1][0] / total:.2f}%,100%{{opacity:0}}"
            if steps:
                styles.append(
                    f"@keyframes {name}{{{steps}}}#{name}{{animation:{name} {total:.2f}s step-end infinite}}"
                )
            parts.append(f'<g id="{name}"{"" if isLast else OPACITY}>{drawn(line, row)}</g>')
    parts.append(drawn(((note, COLOURS["white"], False, 0),), rows + 1))
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width:.0f} {height:.0f}" '
        f'width="{width:.0f}" height="{height:.0f}" role="img" aria-label="{escape(title)}" '
        f'xml:space="preserve" font-family="{FONT}" font-size="14">'
        f"<title>{escape(title)}</title>"
        "<style>text{white-space:pre}"
        f"@media (prefers-reduced-motion:no-preference){{{''.join(styles)}}}</style>"
        f'<rect width="100%" height="100%" rx="8" fill="#1e1e2e"/>{"".join(parts)}</svg>\n'
    )


def main() -> int:
    """Record the command of the command line."""
    parser = argparse.ArgumentParser(description="Record a command in a terminal as an animated SVG picture.")
    parser.add_argument("--columns", type=int, default=100)
    parser.add_argument("--rows", type=int, default=40)
    parser.add_argument("picture", type=Path)
    parser.add_argument("command", nargs=argparse.REMAINDER)
    options = parser.parse_args()
    note = f"{os.cpu_count()} processors, load average {os.getloadavg()[0]:.1f} before it began"
    frames, status = record(options.command, options.columns, options.rows)
    if status:
        print(f"{' '.join(options.command)} ended with {status}: no picture is written", file=sys.stderr)
        return 1
    title = f"A recording of: {' '.join(options.command)}"
    options.picture.write_text(picture(frames, title, note, options.columns))
    return 0


if __name__ == "__main__":
    sys.exit(main())
