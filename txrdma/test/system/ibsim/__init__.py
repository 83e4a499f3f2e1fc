"""
Comparisons with Debian's ibsim, OpenSM and infiniband-diags; C{tools/have-ibsim} installs these.

They skip where a program is missing. They need neither privileges nor devices::

    class LinkTests(IbsimTestCase):
        net = TWO_SWITCHES          # the text of a net file
        hasSM = True                # OpenSM has configured it

        def test_links(self) -> None:
            theirs = self.fabric.run("iblinkinfo")
            ...
"""

from __future__ import annotations

import os
import shutil

PROGRAMS = ("ibsim", "ibsim-run", "opensm", "ibnetdiscover", "saquery")


def _outside() -> str | None:
    path = os.environ.get("PATH", "") + ":/usr/sbin:/sbin"
    missing = [name for name in PROGRAMS if shutil.which(name, path=path) is None]
    return f"needs Debian's ibsim-utils, opensm and infiniband-diags: no {missing[0]}" if missing else None


OUTSIDE = _outside()
"""Why suites of this package can't run here, or None; the value of trial's C{skip} attribute."""
