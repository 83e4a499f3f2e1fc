"""
Actions of operators on findings: POST from the form of a page, or as JSON.

Pages of other sites cannot cause them: see L{txrdma.kit.webaccess.isCrossSite}.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from contextlib import suppress
from typing import Final

from twisted.logger import Logger
from twisted.web.server import Request

from txrdma.error import DeviceUnavailable, InvalidRequest
from txrdma.kit.pathprefix import prefixOf
from txrdma.kit.strings import printable
from txrdma.kit.webaccess import isCrossSite, userOf
from txrdma.monitor.diagnosis.findinglog import Action
from txrdma.monitor.web.parameters import Missing, Wrong
from txrdma.monitor.web.rest import answerLater, failed, sendJSON, sendText
from txrdma.monitor.web.routes import findingAnswer, findingOf, ID_PARAMETER
from txrdma.monitor.web.watch import Watch

_log = Logger()

_FIELDS: Final = ("action", "comment")
_NO_OPERATOR: Final = (
    "only a user with the role operator can do this: txrdma fabric-users add NAME --role operator, "
    "or the header of a proxy, gives it"
)


def actionOf(watch: Watch, isForm: bool, request: Request) -> Callable[[], int] | None:
    """
    Return what answers a POST request at the path of a request: it acknowledges or comments a finding.

    @param isForm: whether the request is from the form of a page, which is shown again, and not JSON.
    @return: None if nothing can be changed at this path.
    """
    match request.postpath:
        case [b"findings", bytes(name)]:
            text = name.decode("ascii", "replace")
            return lambda: answerLater(request, _answer(watch, isForm, text, request), failed)
    return None


async def _answer(watch: Watch, isForm: bool, name: str, request: Request) -> None:
    """Carry out the action of a request, and answer once it is stored: a killed process loses nothing."""
    code, text = _refusal(watch, isForm, request)
    if not code:
        code, text = _act(watch, isForm, name, request)
    if code == 200 and watch.history is not None:
        with suppress(DeviceUnavailable):  # the history reports it, and stores the action later
            await watch.history.read(lambda store: None)
    if code == 200 and not isForm:
        request.setResponseCode(code)
        request.setHeader("Content-Type", "application/json")
        request.write(text.encode())
    elif code == 200:
        request.setResponseCode(303)
        request.setHeader("Location", f"{prefixOf(request)}/findings/{name}")
    else:
        request.write(sendText(request, code, text) if isForm else sendJSON(request, code, {"error": text}))
    request.finish()


def _refusal(watch: Watch, isForm: bool, request: Request) -> tuple[int, str]:
    """Return why a request is refused, as a status and a text; 0 if it is not."""
    if not userOf(request).isOperator:
        return 403, _NO_OPERATOR
    if isCrossSite(request, isForm):
        return 403, "the request is from a page of another site"
    kind = (request.getHeader(b"content-type") or b"").partition(b";")[0].strip().lower()
    if not isForm and kind != b"application/json":
        return 415, "expected Content-Type: application/json"
    if not watch.isActive:
        return 503, f"this is a standby; {watch.active or 'no monitor'} is active: ask that one"
    if not watch.isSure():  # it would not be stored
        return 503, "another monitor may have become the active one: try again in some seconds"
    return 0, ""


def _act(watch: Watch, isForm: bool, name: str, request: Request) -> tuple[int, str]:
    """Carry out the action of a request; return a status and a text, which is JSON if the status is 200."""
    try:
        given = _formOf(request) if isForm else _objectOf(request)
        action, text = _actionOf(given)
        context = watch.context()
        entry = findingOf(context, {"id": ID_PARAMETER.read(name)})
        user = userOf(request).name
        watch.poller.findings.annotate(entry, action, user, text)
    except Wrong as error:
        return 400, str(error)
    except Missing as error:
        return 404, str(error)
    except InvalidRequest as error:
        return 409, str(error)
    _log.info(
        "{user}: {action} {kind}: {where}: {text}",
        user=user,
        action=action.value,
        kind=entry.finding.kind,
        where=entry.finding.where,
        text=text,
    )
    return 200, json.dumps(findingAnswer(context, entry))


def _formOf(request: Request) -> dict[str, object]:
    given: dict[str, object] = {}
    for name, values in request.args.items():
        try:
            given[name.decode("utf-8")] = values[-1].decode("utf-8")
        except UnicodeDecodeError:
            raise Wrong("the form is not UTF-8") from None
    return given


def _objectOf(request: Request) -> dict[str, object]:
    assert request.content is not None  # which each request has from its header on
    try:
        given = json.loads(request.content.read())
    except (ValueError, RecursionError):
        raise Wrong("the body is not JSON") from None
    if not isinstance(given, dict):
        raise Wrong("the body is not an object")
    return given


def _actionOf(given: dict[str, object]) -> tuple[Action, str]:
    """Return the action and the comment, on one line, of a form or an object."""
    unknown = sorted(given.keys() - set(_FIELDS))
    if unknown:
        raise Wrong(f"there is no {unknown[0]!r}, but {', '.join(_FIELDS)}")
    action, comment = given.get("action"), given.get("comment", "")
    if not isinstance(comment, str):
        raise Wrong("comment is a text")
    try:
        known = Action(action)
    except ValueError:
        raise Wrong(f"action is one of {', '.join(each.value for each in Action)}") from None
    return known, printable(" ".join(comment.split()))
