"""
Site of several fabrics: a page that lists them, the pages of each below C{/fabrics/NAME/}, and the metrics of
all.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from twisted.web.resource import IResource, NoResource, Resource
from twisted.web.server import Request
from twisted.web.template import Tag

from txrdma.kit.pathprefix import below, prefixOf
from txrdma.kit.webaccess import AccessControl
from txrdma.monitor.series.exposition import CONTENT_TYPE
from txrdma.monitor.web.html import failed, sendPage
from txrdma.monitor.web.layout import badge, head, health, table, tags
from txrdma.monitor.web.openapi import description
from txrdma.monitor.web.rest import answerLater, READING, refuseMethod, sendJSON
from txrdma.monitor.web.routes import overview
from txrdma.monitor.web.site import MonitorFactory, MonitorSite, putCommon


class FabricsSite:
    """
    Site of several fabrics.

    @ivar factory: speaks HTTP on connections.
    """

    def __init__(self, sites: Mapping[str, MonitorSite], access: AccessControl) -> None:
        """@param sites: sites of the fabrics, by their names."""
        self._sites = sites
        root, api, version = Resource(), Resource(), Resource()
        root.putChild(b"", _Overview(sites))
        root.putChild(b"fabrics", _Fabrics(sites))
        version.putChild(b"fabrics", _List(sites))
        version.putChild(b"openapi.json", _Description(sites))
        api.putChild(b"v1", version)
        root.putChild(b"api", api)
        putCommon(root, _AllMetrics(sites))
        self.factory = MonitorFactory(root, access, self.sickness, self.unreadiness)

    def sickness(self) -> str:
        """Return why a restart would help; C{""} if it would not."""
        return _joined({name: site.watch.sickness() for name, site in self._sites.items()})

    def unreadiness(self) -> str:
        """Return why another monitor should be asked instead; C{""} if not."""
        return _joined({name: site.watch.unreadiness() for name, site in self._sites.items()})


def _joined(problems: Mapping[str, str]) -> str:
    return "; ".join(f"{name}: {problem}" for name, problem in problems.items() if problem)


class _Part(Resource):
    """Resource without others below it, of several fabrics."""

    isLeaf = True

    def __init__(self, sites: Mapping[str, MonitorSite]) -> None:
        super().__init__()  # type: ignore[no-untyped-call]  # of Twisted's
        self._sites = sites


class _Fabrics(Resource):
    """C{/fabrics/NAME}: the whole site of a fabric."""

    def __init__(self, sites: Mapping[str, MonitorSite]) -> None:
        super().__init__()  # type: ignore[no-untyped-call]  # of Twisted's
        self._sites = {name.encode(): site for name, site in sites.items()}

    def getChild(self, name: bytes, request: Request) -> IResource:
        site = self._sites.get(name)
        if site is None:
            return NoResource("There is no such fabric.")
        below(request, b"fabrics", name)
        return site.root


class _Overview(_Part):
    """Page that lists all fabrics."""

    def render(self, request: Request) -> bytes | int:
        if request.method not in READING:
            return refuseMethod(request)
        return answerLater(request, sendPage(request, self._page()), failed)

    def _page(self) -> Tag:
        rows: list[tuple[Any, ...]] = []
        for name, site in self._sites.items():
            context = site.watch.context()
            verdict, colour = health(context)
            state = "active" if site.watch.isActive else "standby"
            link = tags.a(name, href=f"/fabrics/{name}/")
            shown = tags.span(verdict, class_=f"badge {colour}")
            rows.append((link, shown, len(context.fabric.nodes), badge(state)))
        return tags.html(
            head("Fabrics"),
            tags.body(
                tags.main(
                    tags.h1("Fabrics"),
                    table("All fabrics", ("Fabric", "State", "Nodes", "Monitor"), rows, "There is none."),
                    id="main",
                )
            ),
            lang="en",
        )


class _List(_Part):
    """C{/api/v1/fabrics}: all fabrics as JSON; C{/fabrics/NAME/api/v1} has the data of each."""

    def render(self, request: Request) -> bytes:
        if request.method not in READING:
            return refuseMethod(request)
        rows = [
            {"fabric": name, "isActive": site.watch.isActive, **overview(site.watch.context())}
            for name, site in self._sites.items()
        ]
        return sendJSON(request, 200, {"rows": rows})


class _Description(_Part):
    """C{/api/v1/openapi.json}: description of the REST interface of all fabrics."""

    def render(self, request: Request) -> bytes:
        """Answer with the description."""
        if request.method not in READING:
            return refuseMethod(request)
        return sendJSON(request, 200, description(prefixOf(request), list(self._sites)))


class _AllMetrics(_Part):
    """C{/metrics}: each family with the series of all fabrics, which differ by the label C{fabric}."""

    def render_GET(self, request: Request) -> bytes:
        families: dict[str, list[str]] = {}
        for site in self._sites.values():
            for part in site.metrics.parts():
                name = part.split(" ", 3)[2]
                known = families.get(name)
                families.setdefault(name, []).append(part if known is None else part.split("\n", 2)[2])
        request.setHeader("Content-Type", CONTENT_TYPE)
        return "".join(text for parts in families.values() for text in parts).encode("utf-8", "replace")
