"""
The container file of the fabric monitor, built and run by buildah: C{make test-container}.

Elsewhere the suite skips. Building takes a minute, and downloads packages from PyPI.
"""

from __future__ import annotations

import os
import shutil

OUTSIDE: str | None = "needs buildah: make test-container"
"""Why the suite can't run here, or None; the value of trial's C{skip} attribute."""

if os.environ.get("CONTAINER") == "1":
    OUTSIDE = "needs buildah" if shutil.which("buildah") is None else None
    if OUTSIDE is None and os.geteuid() != 0:
        OUTSIDE = "needs root, for containers without a user namespace"
