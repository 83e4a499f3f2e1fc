"""The reactor thread of a forked process."""

from __future__ import annotations

from twisted.trial.unittest import SynchronousTestCase

from txrdma.test.support.processes import printed

FORKING = """
import os
import signal
from threading import Event, Thread
from txrdma.btl.reactorthread import ReactorThread
from txrdma.error import InvalidRequest

inherited = ReactorThread.acquire()
inherited.call(int)
isHeld, mayEnd = Event(), Event()

def acquiring():
    with ReactorThread._guard:
        isHeld.set()
        mayEnd.wait()

Thread(target=acquiring).start()
isHeld.wait()
child = os.fork()
mayEnd.set()
if not child:
    signal.alarm(20)
    for call in (
        lambda: inherited.call(int),
        lambda: inherited.start(lambda: print("run in the child", flush=True), True),
    ):
        try:
            call()
        except InvalidRequest:
            continue
        os._exit(1)
    inherited.release()
    thread = ReactorThread.acquire()
    print(thread is not inherited, thread.call(lambda: 7), flush=True)
    inherited.release()
    print(thread.call(lambda: 8), flush=True)
    thread.release()
    os._exit(0)
code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
print(code, inherited.call(lambda: 9))
inherited.release()
"""


class ForkTests(SynchronousTestCase):
    def test_child(self) -> None:
        """
        A forked process gets a separate reactor, and can't use that of its parent, whose thread it lacks,
        even if another thread was acquiring the reactor at the fork.
        """
        ended = printed(FORKING, PYTHONWARNINGS="ignore::DeprecationWarning")
        self.assertEqual(ended.stdout, "True 7\n8\n0 9\n", ended.stderr)
