"""
Make the API reference by pydoctor, and fail if it complains.

Links to the documentation of other projects need the network; complaints about them are ignored.
"""

from __future__ import annotations

import re
import subprocess
import sys
from importlib.metadata import version

_ABROAD = re.compile(
    r'Cannot find link target for "(?!txrdma)'
    r"|is not an interface$"  # one that extends an interface of Twisted, which pydoctor has not parsed
)
_COMPLAINT = re.compile(r"^\S+:(\d+|\?\?\?): ")


def main(target: str) -> int:
    """Write the reference to a folder; return the exit status."""
    command = [sys.executable, "-m", "pydoctor", "--quiet", "--docformat=epytext", "--project-name=txrdma"]
    command += [f"--project-version={version('txrdma')}", "--project-base-dir=.", "--html-viewsource-base="]
    command += ["--privacy=HIDDEN:txrdma.test", f"--html-output={target}", "txrdma"]
    done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    complaints = [
        line for line in done.stdout.splitlines() if _COMPLAINT.match(line) and not _ABROAD.search(line)
    ]
    if done.returncode not in (0, 2, 3):
        print(done.stdout)
        return done.returncode
    print("\n".join(complaints), end="\n" if complaints else "")
    return 1 if complaints else 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
