"""HTML pages over HTTP: requests are answered with pages, and so are errors."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any, Final

from twisted.logger import Logger
from twisted.python.failure import Failure
from twisted.web.error import FlattenerError
from twisted.web.server import Request
from twisted.web.template import Element, flattenString, renderer, Tag, TagLoader

from txrdma.error import DeviceUnavailable
from txrdma.kit.pathprefix import addPrefix, prefixOf
from txrdma.kit.webaccess import userOf
from txrdma.monitor.web.layout import frame, tags
from txrdma.monitor.web.pages import PAGES
from txrdma.monitor.web.parameters import Missing, routed, Wrong
from txrdma.monitor.web.rest import answerLater, sendText
from txrdma.monitor.web.watch import PageContext, Watch

_log = Logger()

_REFRESH: Final = b"x-refresh"
"""Header of requests by which C{monitor.js} updates an open page, of which it replaces the live parts."""

_SHARED_SECONDS: Final = 2.0
"""Longest time for which browsers are sent the same text of a page."""


def answerPage(watch: Watch, request: Request) -> bytes | int:
    """Answer a request with a page, at once or when the fabric has answered."""
    return answerLater(request, _send(watch, request), failed)


async def _send(watch: Watch, request: Request) -> None:
    """Send a page, or one that says what is wrong with the request; equal requests share the text."""
    isRefresh = request.getHeader(_REFRESH) is not None
    context = watch.context(userOf(request).isOperator, isRefresh)
    path = tuple(request.postpath or ())
    query = {name: values for name, values in request.args.items() if values != [b""]}  # of empty fields

    async def make() -> tuple[int, bytes]:
        code = 200
        try:
            shown, values = routed(PAGES, path, query, "there is no such page")
            page = await shown.make(context, values)
        except Wrong as error:
            code, page = 400, _mistake(context, "This cannot be shown", str(error))
        except Missing as error:
            text = str(error)
            code, page = 404, _mistake(context, "Not there", f"{text[:1].upper()}{text[1:]}.")
        except DeviceUnavailable as error:
            code, page = 503, _mistake(context, "The history cannot be read", str(error))
        return code, await flattened(request, page, watch.searches.pause)

    named = tuple((name, *values) for name, values in query.items())
    asked = path, named, prefixOf(request), context.isOperator, isRefresh
    state = context.state, int(context.now / _SHARED_SECONDS), watch.isActive, watch.active
    code, text = await watch.searches.shared(asked, state, make)
    sendPage(request, text, code)


class _PausedPage(Element):
    """A page whose tables have pauses between pieces of their rows."""

    def __init__(self, page: Tag, pause: Callable[[], Awaitable[None]]) -> None:
        super().__init__(TagLoader(page))
        self._pause = pause

    @renderer
    async def pause(self, request: Request, tag: Tag) -> str:
        """Let the reactor process other events."""
        await self._pause()
        return ""


async def flattened(request: Request, page: Tag, pause: Callable[[], Awaitable[None]]) -> bytes:
    """Return the text of a page, made in pieces, with the path prefix of a proxy in all of its links."""
    prefix = prefixOf(request)
    if prefix:
        addPrefix(prefix, page)
    return await flattenString(request, _PausedPage(page, pause))


def sendPage(request: Request, text: bytes, code: int = 200) -> None:
    """Send a page."""
    request.setResponseCode(code)
    request.setHeader("Content-Type", "text/html; charset=utf-8")
    request.write(b"<!DOCTYPE html>\n" + text)
    request.finish()


def _mistake(context: PageContext, heading: str, text: str) -> Tag:
    return frame(context, "", heading, tags.p(text, class_="empty"))


def failed(failure: Failure, request: Request) -> None:
    """Answer that a page has failed, and log the reason."""
    broken: Any = failure.value
    if failure.check(FlattenerError) and broken.args:  # which has the whole page in its text
        failure = Failure(broken.args[0])
    _log.failure("showing {path} failed", failure, path=request.path)
    request.write(sendText(request, 500, "The monitor failed; its log has the reason."))
    request.finish()
