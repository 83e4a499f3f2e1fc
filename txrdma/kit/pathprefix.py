"""
Pages below a path: a proxy may serve a site at C{/fabric/}, and announce it by C{X-Forwarded-Prefix}.

Links are generated as if the server had the whole site. A client that forges this header changes only its
own pages: responses are not cached.
"""

from __future__ import annotations

import re
from types import GeneratorType
from typing import Any, Final

from twisted.web.server import Request
from twisted.web.template import Tag

_PREFIX: Final = re.compile(rb"(/[A-Za-z0-9_~-][A-Za-z0-9._~-]{0,63}){1,8}/?")
OUTSIDE: Final = "^/"
"""Beginning of links from the pages of one of several fabrics to those of all."""

_LINKS: Final = ("href", "src", "action")


def prefixOf(request: Request) -> str:
    """Path that a proxy has removed from the start of a request's path; C{""} for none, or an invalid one."""
    header: bytes = request.getHeader(b"x-forwarded-prefix") or b""
    return header.decode("ascii").rstrip("/") if _PREFIX.fullmatch(header) else ""


def addPrefix(prefix: str, page: Tag) -> None:
    """Prefix a page's links with a path, and announce it to the scripts."""
    page(**{"data-prefix": prefix})
    _changed(prefix, page)


def below(request: Request, *names: bytes) -> None:
    """Pass the rest of a request's path to a resource, as if that were the root of the site."""
    prefix = "/".join((prefixOf(request), *(name.decode("ascii") for name in names)))
    request.requestHeaders.setRawHeaders("X-Forwarded-Prefix", [prefix])
    request.prepath = []


def _changed(prefix: str, part: Any) -> Any:
    """Return a part of a page with prefixed links; those of a generator are prefixed when it yields them."""
    if isinstance(part, GeneratorType):
        return (_changed(prefix, each) for each in part)
    if isinstance(part, (list, tuple)):
        return [_changed(prefix, each) for each in part]
    if isinstance(part, Tag):
        for name in _LINKS:
            link = part.attributes.get(name)
            if isinstance(link, str) and link.startswith("/"):
                part.attributes[name] = prefix + link
            elif isinstance(link, str) and link.startswith(OUTSIDE):
                part.attributes[name] = prefix.rpartition("/fabrics/")[0] + link[1:]
        part.children = _changed(prefix, part.children)
    return part
