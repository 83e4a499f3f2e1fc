"""
The reactor, and a namespace of control sockets that only the test process answers in.
"""

from __future__ import annotations

import os
from typing import cast

from twisted.internet import reactor as installedReactor

from txrdma.unix import answers as unixanswers

reactor = cast(unixanswers.IReactor, installedReactor)


NAMESPACE = f"txrdma/test-{os.getpid()}"
"""Not where the processes of this machine answer that are none of the test's business."""
