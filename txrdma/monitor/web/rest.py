"""The REST interface over HTTP: requests to routes, answers as JSON."""

from __future__ import annotations

import json
from collections.abc import Callable, Coroutine, Mapping
from typing import Any, Final

from twisted.internet.defer import CancelledError, Deferred
from twisted.logger import Logger
from twisted.python.failure import Failure
from twisted.web.resource import IResource, Resource
from twisted.web.server import NOT_DONE_YET, Request

from txrdma.error import DeviceUnavailable
from txrdma.kit.pathprefix import prefixOf
from txrdma.monitor.web.openapi import description
from txrdma.monitor.web.parameters import Missing, routed, Wrong
from txrdma.monitor.web.routes import ROUTES
from txrdma.monitor.web.watch import Watch

_log = Logger()


NO_RESOURCE: Final = "there is no such resource; /api/v1/openapi.json describes all"
"""Answer to a request for a path that the REST interface does not have."""


def sendJSON(request: Request, code: int, answer: Mapping[str, Any]) -> bytes:
    """Set the head of an answer in JSON; its body is returned."""
    request.setResponseCode(code)
    request.setHeader("Content-Type", "application/json")
    return json.dumps(answer).encode()


def sendText(request: Request, code: int, text: str) -> bytes:
    """Set the head of an answer in plain text; its body, a line, is returned."""
    request.setResponseCode(code)
    request.setHeader("Content-Type", "text/plain; charset=utf-8")
    return f"{text}\n".encode()


class ReadOnly(Resource):
    """A resource without children: methods other than GET and HEAD are refused, and POST at most paths."""

    isLeaf = True

    def __init__(
        self,
        answer: Callable[[Request], bytes | int],
        postOf: Callable[[Request], Callable[[], int] | None] = lambda request: None,
    ) -> None:
        """
        @param answer: answers a GET or HEAD request, at once or later.
        @param postOf: returns what answers a POST request later; None at paths where nothing can be changed.
        """
        super().__init__()  # type: ignore[no-untyped-call]  # of Twisted's
        self._answer = answer
        self._postOf = postOf

    def render(self, request: Request) -> bytes | int:
        if request.method == b"HEAD":
            body = self._answer(request)
            return b"" if isinstance(body, bytes) else body  # Twisted logs bodies that it drops
        if request.method == b"GET":
            return self._answer(request)
        post = self._postOf(request)
        if post is not None and request.method == b"POST":
            return post()
        allowed = "GET, HEAD" if post is None else "GET, HEAD, POST"
        request.setHeader("Allow", allowed)
        return sendJSON(request, 405, {"error": f"only {allowed} are allowed here"})


_nothing: Final = ReadOnly(lambda request: sendText(request, 404, "There is nothing here."))


class Folder(Resource):
    """A resource that has only children: it is not found itself, nor are other paths below it."""

    def render(self, request: Request) -> bytes | int:
        return _nothing.render(request)

    def getChild(self, name: bytes, request: Request) -> IResource:
        return _nothing


def answerLater(
    request: Request, answer: Coroutine[Any, Any, None], fail: Callable[[Failure, Request], None]
) -> int:
    """
    Answer a request by a coroutine, until the client disconnects; C{fail} answers if it raises.

    If a part of the answer was sent, the connection closes, so that the client does not mistake it for all.
    """
    done = Deferred.fromCoroutine(answer)
    request.notifyFinish().addErrback(lambda _: done.cancel())

    def failing(failure: Failure) -> None:
        if failure.check(CancelledError):
            return
        if request.startedWriting:
            _log.failure("answering {path} failed, and its connection closes", failure, path=request.path)
            transport: Any = request.transport
            transport.abortConnection()
        else:
            fail(failure, request)

    done.addErrback(failing)
    return NOT_DONE_YET


def answerREST(watch: Watch, request: Request) -> bytes | int:
    """Answer a request below C{/api/v1}."""
    if request.postpath == [b"openapi.json"]:
        return sendJSON(request, 200, description(prefixOf(request)))
    return answerLater(request, _send(watch, request), failed)


async def _send(watch: Watch, request: Request) -> None:
    """Send the answer of the request's route: a page of a table, or what the route makes."""
    route, values = routed(ROUTES, request.postpath or (), request.args, NO_RESOURCE)
    context = watch.context()
    if route.table is not None:
        made: dict[str, Any] | list[bytes] = await route.table.page([context], values)
    else:
        assert route.answer is not None
        made = await route.answer(context, values)
    if isinstance(made, dict):
        made = [sendJSON(request, 200, made)]
    else:
        request.setHeader("Content-Type", "application/json")
    await watch.searches.write(made, request.write)
    request.finish()


def failed(failure: Failure, request: Request) -> None:
    """Send the reason of a failure as JSON."""
    codes = {Wrong: 400, Missing: 404, DeviceUnavailable: 503}
    known = failure.check(*codes)
    if known is not None:
        code, text = codes[known], failure.getErrorMessage()
    else:
        _log.failure("answering {path} failed", failure, path=request.path)
        code, text = 500, "internal error; see the log of the monitor"
    request.write(sendJSON(request, code, {"error": text}))
    request.finish()
