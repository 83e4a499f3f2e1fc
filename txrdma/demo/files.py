"""The folder that the demonstration serves: the sources of Python's standard library, and one large file."""

from __future__ import annotations

import hashlib
import os
import random
import shutil
import sysconfig
from collections.abc import Callable, Iterator
from pathlib import Path

LARGE = "large.bin"
_BLOCK = 1 << 20


def sources() -> Iterator[tuple[Path, str]]:
    """Return each source file of the standard library, and its relative name."""
    top = Path(sysconfig.get_paths()["stdlib"])
    for folder, folders, names in os.walk(top):
        folders[:] = sorted(set(folders) - {"site-packages", "dist-packages", "__pycache__"})
        for name in sorted(names):
            path = Path(folder) / name
            if name.endswith(".py") and path.is_file():
                yield path, path.relative_to(top).as_posix()


def make(
    target: Path, largeBytes: int, mostFiles: int | None, onProgress: Callable[[int], None] = lambda _: None
) -> dict[str, str]:
    """
    Fill a folder, and return the SHA-256 of each file by name.

    @param mostFiles: maximum number of source files; None for all.
    @param onProgress: called with the bytes of each step.
    """
    hashes = {}
    for number, (path, name) in enumerate(sources()):
        if number == mostFiles:
            break
        copy = target / name
        copy.parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(path, copy)
        body = copy.read_bytes()
        hashes[name] = hashlib.sha256(body).hexdigest()
        onProgress(len(body))
    digest = hashlib.sha256()
    generator = random.Random(7609)
    with (target / LARGE).open("wb") as large:
        left = largeBytes
        while left:
            block = generator.randbytes(min(left, _BLOCK))
            large.write(block)
            digest.update(block)
            onProgress(len(block))
            left -= len(block)
    hashes[LARGE] = digest.hexdigest()
    return hashes
