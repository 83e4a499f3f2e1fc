"""
The reactor, and a namespace for the control sockets of this test process.
"""

from __future__ import annotations

import os
from typing import cast

from twisted.internet import reactor as installedReactor

from txrdma.unix import answers as unixanswers

reactor = cast(unixanswers.IUNIXReactor, installedReactor)


NAMESPACE = f"txrdma/test-{os.getpid()}"
"""Prefix of abstract names that no other process of this machine uses, so that none of them answers."""
