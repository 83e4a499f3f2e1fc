"""
The process ends by a signal when it writes for the first time.
"""

from __future__ import annotations

import os
import signal
from typing import Any

from twisted.internet import tcp

_Connection: Any = tcp.Connection

_Connection.write = lambda self, data: os.kill(os.getpid(), signal.SIGSEGV)
