"""Views of the bytes of buffers, in a process that collects them."""

from __future__ import annotations

import subprocess
import sys

from twisted.trial.unittest import SynchronousTestCase

PROGRAM = """
import gc
from txrdma.messages.memory import octets
from txrdma.test.unit.messages.test_memory import buffers

class Queue:
    pass

gc.disable()
for name, make in buffers():
    for _ in range(20):
        view, queue = octets(make()), Queue()
        queue.queue, queue.view = queue, view
        del view, queue
gc.collect()
print("alive")
"""


class CollectedTests(SynchronousTestCase):
    def test_cycles(self) -> None:
        """
        The interpreter survives the collection of cycles with such views.

        CPython before 3.13 crashes if a C{PickleBuffer} of a memory view has returned the view.
        """
        ended = subprocess.run(
            [sys.executable, "-c", PROGRAM], capture_output=True, text=True, timeout=60, check=False
        )
        self.assertEqual((ended.returncode, ended.stdout), (0, "alive\n"), ended.stderr)
