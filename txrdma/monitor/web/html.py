"""
HTML pages over HTTP: requests are answered with pages, and so are errors.
"""

from __future__ import annotations

from typing import Any

from twisted.logger import Logger
from twisted.python.failure import Failure
from twisted.web.error import FlattenerError
from twisted.web.resource import Resource
from twisted.web.server import Request
from twisted.web.template import flattenString, Tag

from txrdma.kit.pathprefix import addPrefix, prefixOf
from txrdma.monitor.web.layout import frame, tags
from txrdma.monitor.web.pages import Page, PAGES
from txrdma.monitor.web.parameters import inPath, inQuery, Wrong
from txrdma.monitor.web.rest import answerLater, READING, refuseMethod
from txrdma.monitor.web.routes import Missing
from txrdma.monitor.web.watch import PageContext, Watch

_log = Logger()


class HTMLPages(Resource):
    """Root of all HTML pages."""

    isLeaf = True

    def __init__(self, watch: Watch) -> None:
        super().__init__()  # type: ignore[no-untyped-call]  # of Twisted's
        self._watch = watch

    def render(self, request: Request) -> bytes | int:
        """Answer a request with a page, at once or when the fabric has answered."""
        if request.method not in READING:
            return refuseMethod(request)
        return answerLater(request, self._made(request), failed)

    async def _made(self, request: Request) -> None:
        context = self._watch.context()
        code = 200
        try:
            page = await _page(request, context)
        except Wrong as error:
            code, page = 400, _mistake(context, "This cannot be shown", str(error))
        except Missing as error:
            text = str(error)
            code, page = 404, _mistake(context, "Not there", f"{text[:1].upper()}{text[1:]}.")
        await sendPage(request, page, code)


async def sendPage(request: Request, page: Tag, code: int = 200) -> None:
    """Send a page, with the path prefix of a proxy in all of its links."""
    prefix = prefixOf(request)
    if prefix:
        addPrefix(prefix, page)
    text = await flattenString(request, page)
    request.setResponseCode(code)
    request.setHeader("Content-Type", "text/html; charset=utf-8")
    request.write(b"<!DOCTYPE html>\n" + text)
    request.finish()


async def _page(request: Request, context: PageContext) -> Tag:
    segments = [*(request.prepath or ()), *(request.postpath or ())]
    for page in PAGES:
        path = inPath(page.path, page.parameters, segments)
        if path is not None:
            return await _filled(page, context, {**path, **inQuery(page.parameters, _given(request))})
    raise Missing("there is no such page")


def _given(request: Request) -> dict[bytes, list[bytes]]:
    """Query without the fields of a form that were left empty."""
    return {name: values for name, values in request.args.items() if values != [b""]}


async def _filled(page: Page, context: PageContext, values: dict[str, object]) -> Tag:
    made = page.make(context, values)
    return made if isinstance(made, Tag) else await made


def _mistake(context: PageContext, heading: str, text: str) -> Tag:
    return frame(context, "", heading, tags.p(text, class_="empty"))


def failed(failure: Failure, request: Request) -> None:
    """Tell who asked for a page that it failed, and log why."""
    broken: Any = failure.value
    if failure.check(FlattenerError) and broken.args:  # which has the whole page in its text
        failure = Failure(broken.args[0])
    _log.failure("while {path} was shown", failure, path=request.path)
    request.setResponseCode(500)
    request.setHeader("Content-Type", "text/plain; charset=utf-8")
    request.write(b"The monitor failed; its log tells why.\n")
    request.finish()
