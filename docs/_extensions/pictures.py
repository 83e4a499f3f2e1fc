"""
C{<picture>} in Markdown: GitHub shows one of the two for light and dark, and so do these pages.

It is written in lines of its own, as L{benchmarks.charts.picture} does::

    <picture>
      <source media="(prefers-color-scheme: dark)" srcset="pictures/parts-dark.svg">
      <img alt="The parts of txrdma" src="pictures/parts-light.svg">
    </picture>

The browser would choose by the system's setting there; here the reader's choice on the page counts.
"""

from __future__ import annotations

import re

from sphinx.application import Sphinx
from sphinx.util.typing import ExtensionMetadata

_PICTURE = re.compile(
    r'<picture>\s*<source media="\(prefers-color-scheme: dark\)" srcset="(?P<dark>[^"]+)">\s*'
    r'<img alt="(?P<alt>[^"]+)" src="(?P<light>[^"]+)">\s*</picture>'
)


def _both(found: re.Match[str]) -> str:
    """Return two images, one for each theme."""
    images = (
        f"```{{image}} {found[theme]}\n:alt: {found['alt']}\n:class: chart only-{theme}\n```"
        for theme in ("light", "dark")
    )
    return "\n\n".join(images)


def _read(app: Sphinx, page: str, source: list[str]) -> None:
    source[0] = _PICTURE.sub(_both, source[0])
    if "<picture>" in source[0]:
        raise ValueError(f"{page}: a <picture> is not written as expected")


def setup(app: Sphinx) -> ExtensionMetadata:
    """Register the extension."""
    app.connect("source-read", _read)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
