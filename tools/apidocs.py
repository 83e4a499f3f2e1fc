"""
Make the API reference by pydoctor, and fail if it complains: C{apidocs.py [FOLDER]}.

Without a folder it only renders the docstrings, about which pydoctor complains, and writes no pages: a
quarter of the work. Links to the documentation of other projects need the network; complaints about them are
ignored.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterable
from importlib.metadata import version
from pathlib import Path
from typing import Any

from pydoctor.epydoc2stan import format_docstring
from pydoctor.templatewriter import TemplateWriter

_ABROAD = re.compile(
    r'Cannot find link target for "(?!txrdma)'
    r"|is not an interface$"  # one that extends an interface of Twisted, which pydoctor has not parsed
)
_COMPLAINT = re.compile(r"^\S+:(\d+|\?\?\?): ")


class Renderer(TemplateWriter):
    """Renders all docstrings, and writes nothing."""

    def prepOutputDirectory(self) -> None:
        pass

    def writeIndividualFiles(self, obs: Iterable[Any]) -> None:
        for each in obs:
            if each.isVisible:
                format_docstring(each)
                self.writeIndividualFiles(each.contents.values())

    def writeSummaryPages(self, system: Any) -> None:
        pass

    def writeLinks(self, system: Any) -> None:
        pass


def main(target: str = "") -> int:
    """Write the reference to a folder, or only render it; return the exit status."""
    command = [sys.executable, "-m", "pydoctor", "--quiet", "--docformat=epytext", "--project-name=txrdma"]
    command += [f"--project-version={version('txrdma')}", "--project-base-dir=.", "--html-viewsource-base="]
    command += [f"--html-output={Path(target).absolute()}"] if target else ["--html-writer=apidocs.Renderer"]
    with tempfile.TemporaryDirectory() as folder:
        # The tests are no part of it, and half of what pydoctor would read.
        shutil.copytree("txrdma", f"{folder}/txrdma", ignore=shutil.ignore_patterns("test", "__pycache__"))
        done = subprocess.run(
            [*command, "txrdma"],
            cwd=folder,
            env={**os.environ, "PYTHONPATH": str(Path(__file__).parent.resolve())},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
    lines = done.stdout.replace(f"{folder}/", "").splitlines()
    complaints = [line for line in lines if _COMPLAINT.match(line) and not _ABROAD.search(line)]
    if done.returncode not in (0, 2, 3):
        print(done.stdout)
        return done.returncode
    print("\n".join(complaints), end="\n" if complaints else "")
    return 1 if complaints else 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
