"""
Measure without privileges and with Linux's default limits, also if root runs the benchmarks.

Processes in network namespaces and guests keep the privileges that those need.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from functools import cache
from pathlib import Path
from typing import Final

DESCRIPTORS: Final = 1024
"""Linux's default soft limit of open descriptors; the hard limit is not changed."""

PINNED_BYTES: Final = 8 << 20
"""Linux's default limit of pinned memory."""

_NOBODY: Final = "65534"
_LIMITS: Final = ["prlimit", f"--nofile={DESCRIPTORS}:", f"--memlock={PINNED_BYTES}:{PINNED_BYTES}", "--"]
_USER: Final = ["setpriv", "--reuid", _NOBODY, "--regid", _NOBODY, "--clear-groups", "--"]
_CHECKOUT: Final = Path(__file__).parent.parent


@cache
def unprivileged() -> list[str]:
    """
    Return the words before a command with which it runs without privileges and with default limits.

    There are none if this process has no privileges, or if nobody else may read the checkout: then a warning
    is printed once, and the page shows the user and limits of this process.
    """
    if os.geteuid() != 0:
        return []
    words = [*_LIMITS, *_USER]
    if shutil.which(words[0]) is None or shutil.which(_USER[0]) is None:
        problem = "prlimit and setpriv of util-linux are missing"
    else:
        tried = [*words, sys.executable, "-c", "import benchmarks, txrdma"]
        done = subprocess.run(tried, cwd=_CHECKOUT, capture_output=True, text=True)
        if done.returncode == 0:
            return words
        problem = (done.stderr.strip().splitlines() or ["it fails"])[-1]
    print(
        f"benchmarks: measuring as root, because user {_NOBODY} cannot run them: {problem}", file=sys.stderr
    )
    return []
