"""
Recorded answers of the Linux kernel to smc-diag requests.
"""

from __future__ import annotations

import json

from txrdma.test.support import VECTORS

RECORDED = {
    name: bytes.fromhex(text) for name, text in json.loads((VECTORS / "smc-diag.json").read_text()).items()
}
