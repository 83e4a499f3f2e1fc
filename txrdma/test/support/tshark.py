"""
Captures as tshark decodes them.
"""

from __future__ import annotations

import os
import shutil
import struct
import subprocess
import tempfile
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from unittest import SkipTest

ETHERNET, ERF = 1, 197
"""Link types of capture files."""


def runTshark(capture: str | Path, *words: str) -> str:
    """
    Return the output of tshark for a capture file.

    @raise SkipTest: tshark is not installed.
    """
    program = shutil.which("tshark")
    if program is None:
        raise SkipTest("tshark is not installed")
    done = subprocess.run(
        [program, "-r", str(capture), *words],
        capture_output=True,
        encoding="utf-8",
        check=True,
        timeout=120,
        env={**os.environ, "LC_ALL": "C.UTF-8"},
    )
    return done.stdout


def fieldsIn(capture: str | Path, fields: Sequence[str], *options: str) -> list[list[str]]:
    """
    Return the values of fields of each packet of a capture file, as tshark decodes them.

    @raise SkipTest: tshark is not installed.
    """
    wanted = [word for field in fields for word in ("-e", field)]
    lines = runTshark(capture, *options, "-T", "fields", *wanted).split("\n")
    return [line.split("\t") for line in lines[:-1]]


@contextmanager
def captureOf(packets: Iterable[bytes], linkType: int = ETHERNET) -> Iterator[str]:
    """Return the path of a capture file with these packets, which is removed after the block."""
    with tempfile.NamedTemporaryFile(suffix=".pcap") as capture:
        capture.write(struct.pack("<IHHiIII", 0xA1B2C3D4, 2, 4, 0, 0, 65535, linkType))
        for packet in packets:
            capture.write(struct.pack("<IIII", 0, 0, len(packet), len(packet)) + packet)
        capture.flush()
        yield capture.name
