"""
The programs of the checkout's folder C{tools}, for their tests.
"""

from __future__ import annotations

import importlib
import sys
from typing import Any

from twisted.trial.unittest import SkipTest, SynchronousTestCase

from txrdma.test.support import CHECKOUT


def tool(test: SynchronousTestCase, name: str) -> Any:
    """Import a module of the folder C{tools}, which is no package."""
    folder = CHECKOUT / "tools"
    if not folder.is_dir():
        raise SkipTest("the tools are in a checkout only")
    test.patch(sys, "path", [str(folder), *sys.path])
    return importlib.import_module(name)
