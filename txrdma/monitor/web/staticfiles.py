"""
Files of the package over HTTP: style, scripts, and files for other programs.
"""

from __future__ import annotations

from hashlib import sha256
from pathlib import Path
from typing import Final

from twisted.web.http import CACHED
from twisted.web.server import Request

from txrdma.monitor.web.rest import ReadOnly, sendText

_TYPES: Final = {
    ".css": "text/css; charset=utf-8",
    ".js": "text/javascript; charset=utf-8",
    ".json": "application/json",
    ".svg": "image/svg+xml",
}
_CACHE_SECONDS: Final = 300


def filesIn(folder: Path) -> ReadOnly:
    """Return the files of a folder, which are read once: no path leads out of it, and there is no list."""
    files = {
        str(path.relative_to(folder)): (path.suffix, path.read_bytes())
        for path in sorted(folder.rglob("*"))
        if path.is_file()
    }

    def answer(request: Request) -> bytes:
        """Answer with a file, which browsers may keep for a while."""
        name = b"/".join(request.postpath or ()).decode("utf-8", "replace")
        suffix, content = files.get(name, ("", b""))
        if name not in files:
            return sendText(request, 404, "There is no such file.")
        request.setHeader("Content-Type", _TYPES.get(suffix, "text/plain; charset=utf-8"))
        request.setHeader("Cache-Control", f"max-age={_CACHE_SECONDS}")
        tag = sha256(content).hexdigest()[:24].encode()
        return b"" if request.setETag(b'"' + tag + b'"') is CACHED else content

    return ReadOnly(answer)
