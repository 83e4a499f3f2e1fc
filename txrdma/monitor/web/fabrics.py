"""
Site of several fabrics: a page that lists them and their open findings, the pages of each below
C{/fabrics/NAME/}, and REST listings and metrics of all.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, Final

from twisted.internet.interfaces import IReactorTime
from twisted.web.pages import notFound
from twisted.web.resource import IResource
from twisted.web.server import Request
from twisted.web.template import Tag

from txrdma.kit.pathprefix import below
from txrdma.kit.webaccess import AccessControl
from txrdma.monitor.process import ProcessMeasures
from txrdma.monitor.web.html import failed, flattened, sendPage
from txrdma.monitor.web.layout import badge, head, health, Part, table, tags
from txrdma.monitor.web.rest import answerLater, answerREST, Folder, ReadOnly, sendJSON
from txrdma.monitor.web.routes import overview
from txrdma.monitor.web.scrapes import Scrapes
from txrdma.monitor.web.site import AllPaths, MonitorFactory, MonitorSite, putCommon
from txrdma.monitor.web.tables import FINDINGS
from txrdma.monitor.web.watch import PageContext, Watch

_MOST_FINDINGS: Final = 100


class FabricsSite:
    """
    Site of several fabrics.

    @ivar factory: serves HTTP on connections.
    """

    def __init__(
        self,
        reactor: IReactorTime,
        sites: Mapping[str, MonitorSite],
        access: AccessControl,
        process: ProcessMeasures,
    ) -> None:
        """
        @param sites: sites of the fabrics, by their names.
        @param process: measures the process.
        """
        self._sites = sites
        root = Folder()  # type: ignore[no-untyped-call]  # of Twisted's
        root.putChild(
            b"", ReadOnly(lambda request: answerLater(request, self._sendOverview(request), failed))
        )
        root.putChild(b"fabrics", _Fabrics(sites))
        api = AllPaths(ReadOnly(partial(answerREST, [site.watch for site in sites.values()], list(sites))))
        api.putChild(b"fabrics", ReadOnly(self._list))
        self._scrapes = Scrapes(reactor, [site.metrics for site in sites.values()], process)
        putCommon(root, api, self._scrapes)
        problems = [partial(self._problems, of) for of in (Watch.livenessProblem, Watch.readinessProblem)]
        self.factory = MonitorFactory(reactor, root, access, *problems)

    def stop(self) -> None:
        """End all responses in progress."""
        self._scrapes.stop()

    def _problems(self, problemOf: Callable[[Watch], str]) -> str:
        """Return a problem of each fabric that has one; C{""} if there is none."""
        problems = {name: problemOf(site.watch) for name, site in self._sites.items()}
        return "; ".join(f"{name}: {problem}" for name, problem in problems.items() if problem)

    # Answers.

    def _contexts(self) -> dict[str, PageContext]:
        return {name: site.watch.context() for name, site in self._sites.items()}

    async def _sendOverview(self, request: Request) -> None:
        """Send a page that lists all fabrics, and the open findings of all, the worst first."""
        rows: list[tuple[Any, ...]] = []
        contexts = self._contexts()
        for name, context in contexts.items():
            verdict, colour = health(context)
            state = "active" if context.watch.isActive else "standby"
            link = tags.a(name, href=f"/fabrics/{name}/")
            shown = tags.span(verdict, class_=f"badge {colour}")
            rows.append((link, shown, len(context.fabric.nodes), badge(state)))
        page = tags.html(
            head("Fabrics"),
            tags.body(
                tags.main(
                    tags.h1("Fabrics"),
                    table("All fabrics", ("Fabric", "State", "Nodes", "Monitor"), rows, "There is none."),
                    *await _openFindings(list(contexts.values())),
                    id="main",
                )
            ),
            lang="en",
        )
        pause = next(iter(contexts.values())).watch.searches.pause
        sendPage(request, await flattened(request, page, pause))

    def _list(self, request: Request) -> bytes:
        """Send all fabrics as JSON; C{/fabrics/NAME/api/v1} has the data of each."""
        rows = [
            {"fabric": name, "isActive": context.watch.isActive, **overview(context)}
            for name, context in self._contexts().items()
        ]
        return sendJSON(request, 200, {"rows": rows})


class _Fabrics(Folder):
    """C{/fabrics/NAME}: the whole site of a fabric."""

    def __init__(self, sites: Mapping[str, MonitorSite]) -> None:
        super().__init__()  # type: ignore[no-untyped-call]  # of Twisted's
        self._sites = {name.encode(): site for name, site in sites.items()}

    def getChild(self, name: bytes, request: Request) -> IResource:
        site = self._sites.get(name)
        if site is None:
            return notFound(message="There is no such fabric.")
        below(request, b"fabrics", name)
        return site.root


async def _openFindings(contexts: Sequence[PageContext]) -> tuple[Tag, Part]:
    """Return the open findings of all fabrics, the worst first, with links to the pages of their fabrics."""
    page = await FINDINGS.page(contexts, {"isOpen": True, "limit": _MOST_FINDINGS, "offset": 0})
    rows = []
    for row in page["rows"]:
        home = f"/fabrics/{row['fabric']}"
        place = home + ("/findings" if row["guid"] is None else f"/nodes/{row['guid']}")
        where = tags.a(row["where"], href=place)
        rows.append((tags.a(row["fabric"], href=f"{home}/"), badge(row["severity"]), where, row["text"]))
    shown = f"the worst {len(rows)} of {page['total']}" if page["total"] > len(rows) else page["total"]
    heads = ("Fabric", "Severity", "Where", "What")
    return tags.h2(f"Findings ({shown})"), table("Findings of all fabrics", heads, rows, "There is none.")
