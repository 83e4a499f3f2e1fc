"""
Build backend: that of setuptools, with compiled modules on demand and reproducible source distributions.

Follows PEP 517 (hooks). With C{TXRDMA_COMPILE=1} in the environment wheels need mypyc, so that C{pip install}
with build isolation compiles as well. C{SOURCE_DATE_EPOCH}, which wheels of setuptools follow, becomes the
time of each file in a source distribution and of its compression.
"""

from __future__ import annotations

import gzip
import io
import os
import tarfile
from pathlib import Path
from typing import Any

from setuptools import build_meta
from setuptools.build_meta import (
    build_editable,
    build_wheel,
    get_requires_for_build_editable,
    get_requires_for_build_sdist,
    prepare_metadata_for_build_editable,
    prepare_metadata_for_build_wheel,
)

__all__ = [
    "build_editable",
    "build_sdist",
    "build_wheel",
    "get_requires_for_build_editable",
    "get_requires_for_build_sdist",
    "get_requires_for_build_wheel",
    "prepare_metadata_for_build_editable",
    "prepare_metadata_for_build_wheel",
]

COMPILER = ["mypy>=1.18", "mypy-zope>=1.0.14", "Twisted>=24.7"]
"""mypyc, and the types that the compiled modules import."""


def get_requires_for_build_wheel(config: Any = None) -> list[str]:
    """Return what a wheel needs: mypyc as well, if C{TXRDMA_COMPILE} is set."""
    isCompiled = os.environ.get("TXRDMA_COMPILE", "") not in ("", "0")
    return [*build_meta.get_requires_for_build_wheel(config), *(COMPILER if isCompiled else ())]


def build_sdist(folder: str, config: Any = None) -> str:
    """Build a source distribution; its bytes depend only on its files if C{SOURCE_DATE_EPOCH} is set."""
    name = build_meta.build_sdist(folder, config)
    if "SOURCE_DATE_EPOCH" in os.environ:
        normalize(Path(folder, name), int(os.environ["SOURCE_DATE_EPOCH"]))
    return name


def normalize(archive: Path, seconds: int) -> None:
    """Write an archive again with sorted names, without owners, and with one time (in seconds since 1970)."""
    with tarfile.open(archive) as source:
        members = [(each, source.extractfile(each) if each.isfile() else None) for each in source]
        packed = io.BytesIO()
        with tarfile.open(fileobj=packed, mode="w", format=tarfile.PAX_FORMAT) as target:
            for member, data in sorted(members, key=lambda pair: pair[0].name):
                member.mtime, member.uid, member.gid, member.uname, member.gname = seconds, 0, 0, "", ""
                member.mode = 0o755 if member.isdir() or member.mode & 0o100 else 0o644
                member.pax_headers = {}
                target.addfile(member, data)
    archive.write_bytes(gzip.compress(packed.getvalue(), 6, mtime=seconds))
