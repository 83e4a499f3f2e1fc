"""
Contents of the project's page at a package index besides C{pyproject.toml}: addresses, and the README.

Links of the README are relative to the repository, and invalid elsewhere. The build gets the address of the
repository from the environment variable C{TXRDMA_REPOSITORY}, which the workflow of releases sets, so that no
address is stored.
"""

from __future__ import annotations

import re

_LINK = re.compile(r"\]\((?!https?:)([^)\s]+)\)")
_PICTURE = re.compile(
    r'<picture>.*?<img alt="(?P<text>[^"]*)" src="(?P<source>[^"]*)">\n</picture>', re.DOTALL
)


def urls(repository: str) -> dict[str, str]:
    """Return the addresses of a repository's pages, by their names at the index."""
    return {
        "Source": repository,
        "Documentation": f"{repository}/blob/main/docs/index.md",
        "Changelog": f"{repository}/blob/main/CHANGES.md",
        "Issues": f"{repository}/issues",
        "Security": f"{repository}/blob/main/SECURITY.md",
    }


def readme(text: str, repository: str) -> str:
    """Return the README with whole addresses, and with pictures in Markdown, since the index drops HTML."""

    def picture(found: re.Match[str]) -> str:
        return f"![{found['text']}]({repository}/raw/main/{found['source']})"

    def link(found: re.Match[str]) -> str:
        file = "README.md" if found[1].startswith("#") else ""  # the index has no anchors
        return f"]({repository}/blob/main/{file}{found[1]})"

    return _LINK.sub(link, _PICTURE.sub(picture, text))
