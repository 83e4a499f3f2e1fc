"""
Site of several fabrics: a page that lists them, their open findings and what is searched, the pages of each
below C{/fabrics/NAME/}, and REST listings and metrics of all. Monitors of fabrics may be other processes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any, Final

from twisted.internet.defer import Deferred, DeferredList, gatherResults
from twisted.internet.interfaces import IReactorTime
from twisted.web.pages import notFound
from twisted.web.resource import IResource
from twisted.web.server import Request
from twisted.web.template import Tag

from txrdma.error import RDMAError
from txrdma.kit.logs import errorText
from txrdma.kit.pathprefix import below, prefixOf
from txrdma.kit.webaccess import AccessControl
from txrdma.monitor.process import ProcessMeasures
from txrdma.monitor.series.exposition import Family, family, labels
from txrdma.monitor.web import html
from txrdma.monitor.web.layout import ago, badge, foot, head, Part, searchForm, table, tags, verdict
from txrdma.monitor.web.openapi import description
from txrdma.monitor.web.parameters import Parameter, routed, ServedPath, Wrong
from txrdma.monitor.web.remotes import OPEN_FINDINGS, POLL_SECONDS, RemoteFabric
from txrdma.monitor.web.rest import answerLater, failed, Folder, NO_RESOURCE, ReadOnly, sendJSON, sendText
from txrdma.monitor.web.routes import LISTINGS, overview
from txrdma.monitor.web.scrapes import Scrapes
from txrdma.monitor.web.searches import Searches
from txrdma.monitor.web.site import AllPaths, MonitorFactory, MonitorSite, putCommon
from txrdma.monitor.web.tables import FINDINGS, MOST_ROWS, NODES, SEVERITIES, Table, TEXT
from txrdma.monitor.web.watch import PageContext, Watch

Row = dict[str, Any]

SHARED_SECONDS: Final = 2
"""Seconds for which equal requests for rows of several processes have one answer."""

_PATHS: Final = (ServedPath("", (Parameter("search", {**TEXT, "maxLength": 200}, "Text to search"),)),)


class FabricsSite:
    """
    Site of several fabrics.

    @ivar factory: serves HTTP on connections.
    @ivar remotes: fabrics whose monitors are other processes.
    """

    def __init__(
        self,
        reactor: IReactorTime,
        sites: Mapping[str, MonitorSite],
        access: AccessControl,
        process: ProcessMeasures,
        remotes: Sequence[tuple[str, str, str]] = (),
    ) -> None:
        """
        @param sites: sites of the fabrics of this process, by their names.
        @param process: measures the process.
        @param remotes: names of the other fabrics, URLs of their monitors, and Authorization headers.
        """
        self._sites = sites
        self._seconds = reactor.seconds
        self._searches = Searches(reactor)
        self.remotes = [RemoteFabric(reactor, *one, self._searches.pause) for one in remotes]
        root = Folder()  # type: ignore[no-untyped-call]  # of Twisted's
        root.putChild(
            b"", ReadOnly(lambda request: answerLater(request, self._sendOverview(request), html.failed))
        )
        root.putChild(b"fabrics", _Fabrics(sites, self.remotes))
        api = AllPaths(ReadOnly(self._answerREST))
        api.putChild(b"fabrics", ReadOnly(self._list))
        measures = partial(self._families, process)
        self._scrapes = Scrapes(reactor, [site.metrics for site in sites.values()], measures)
        putCommon(root, api, self._scrapes)
        problems = [partial(self._problems, of) for of in (Watch.livenessProblem, Watch.readinessProblem)]
        self.factory = MonitorFactory(reactor, root, access, *problems)

    def start(self) -> None:
        """Begin to read the states of fabrics whose monitors are other processes."""
        for remote in self.remotes:
            remote.start()

    def stop(self) -> Deferred[Any]:
        """End all responses in progress; fires when no other process is being read."""
        self._scrapes.stop()
        self._searches.stop()
        return gatherResults([remote.stop() for remote in self.remotes])

    def _problems(self, problemOf: Callable[[Watch], str]) -> str:
        """Return a problem of each fabric of this process that has one; C{""} if there is none."""
        problems = {name: problemOf(site.watch) for name, site in self._sites.items()}
        return "; ".join(f"{name}: {problem}" for name, problem in problems.items() if problem)

    def _families(self, process: ProcessMeasures) -> Iterator[Family]:
        """Yield what is measured of the process, and of the other ones."""
        yield from process.families()
        if self.remotes:
            ages = [(labels(fabric=one.name), f"{one.age():.3f}") for one in self.remotes]
            text = "Seconds since the monitor of a fabric, which is another process, has last answered"
            yield family("txrdma_monitor_remote_age_seconds", "gauge", text, ages)

    # Rows of all fabrics.

    def _contexts(self) -> dict[str, PageContext]:
        return {name: site.watch.context() for name, site in self._sites.items()}

    async def _page(self, path: str, rows: Table[Any], wanted: Mapping[str, Any]) -> Row:
        """
        Return a page of the rows of all fabrics for JSON; it names those whose rows are missing.

        @param path: path of the listing below C{/api/v1}.
        """
        contexts = list(self._contexts().values())
        if not self.remotes:
            return await rows.page(contexts, wanted)
        most = wanted["offset"] + wanted["limit"]
        if most > MOST_ROWS:
            raise Wrong(f"of several processes, offset and limit are at most {MOST_ROWS} together")
        first = {**wanted, "offset": 0, "limit": most}

        async def make() -> Row:
            local = [rows.page(contexts, first)] if contexts else []
            reading = [*local, *(one.page(path, rows, first) for one in self.remotes)]
            done = [Deferred.fromCoroutine(each) for each in reading]
            results: list[tuple[bool, Any]] = await DeferredList(done, consumeErrors=True)
            for isRead, found in results:
                if not (isRead or found.check(RDMAError)):
                    found.raiseException()
            away = [
                {"fabric": remote.name, "problem": errorText(found.value)}
                for remote, (isRead, found) in zip(self.remotes, results[len(local) :], strict=True)
                if not isRead
            ]
            pages = [found for isRead, found in results if isRead]
            return {**rows.merged(pages, wanted), "away": away}

        asked = path, tuple(sorted(wanted.items()))
        return await self._searches.shared(asked, int(self._seconds() / SHARED_SECONDS), make)

    # Answers.

    def _answerREST(self, request: Request) -> bytes | int:
        if request.postpath == [b"openapi.json"]:
            names = [*self._sites, *(one.name for one in self.remotes)]
            return sendJSON(request, 200, description(prefixOf(request), names))
        return answerLater(request, self._sendListing(request), failed)

    async def _sendListing(self, request: Request) -> None:
        route, values = routed(LISTINGS, request.postpath or (), request.args, NO_RESOURCE)
        assert route.table is not None, "it is no listing"
        page = await self._page(route.path, route.table, values)
        request.write(sendJSON(request, 200, page))
        request.finish()

    def _states(self) -> list[Row]:
        """Return the states of all fabrics for JSON."""
        several: list[Row] = [
            {"fabric": name, "problem": "", **overview(one)} for name, one in self._contexts().items()
        ]
        return several + [{"fabric": one.name, "problem": one.problem, **one.state} for one in self.remotes]

    def _list(self, request: Request) -> bytes:
        """Send all fabrics as JSON; C{/fabrics/NAME/api/v1} has the data of each."""
        return sendJSON(request, 200, {"rows": self._states()})

    async def _sendOverview(self, request: Request) -> None:
        """Send a page that lists all fabrics, and the open findings of all, or what is searched."""
        try:
            _, values = routed(_PATHS, [b""], request.args, "")
        except Wrong as error:
            request.write(sendText(request, 400, str(error)))
            request.finish()
            return
        search = values["search"]
        form = searchForm("/", values, "Name or GUID of a node, or text of a finding")
        parts: list[Part] = []
        if search:
            wanted = {**OPEN_FINDINGS, "search": search}
            parts += self._findings(await self._page("/findings", FINDINGS, wanted))
            del wanted["isOpen"]
            parts += self._nodes(await self._page("/nodes", NODES, wanted))
        else:
            pages = [one.findings for one in self.remotes]
            contexts = list(self._contexts().values())
            if contexts:
                pages.insert(0, await FINDINGS.page(contexts, OPEN_FINDINGS))
            parts += self._findings(FINDINGS.merged(pages, OPEN_FINDINGS))
        states, found = _updated("fabrics", self._fabrics()), _updated("found", parts)
        main = tags.main(tags.h1("Fabrics"), states, form, found, id="main")
        # A search costs all monitors some processor time, and is not repeated.
        script = "" if search else tags.script(src="/static/monitor.js", defer="defer")
        page = tags.html(head("Fabrics", script), tags.body(main, foot()), lang="en")
        page(**{"data-poll": f"{POLL_SECONDS:g}"})
        html.sendPage(request, await html.flattened(request, page, self._searches.pause))

    # Parts of the page.

    def _fabrics(self) -> Part:
        """Return the table of all fabrics; a fabric whose monitor is away has its last known state."""
        ages = {one.name: one.age() for one in self.remotes}
        rows: list[list[Part]] = []
        for row in self._states():
            name, problem = row["fabric"], row["problem"]
            found = [level for level in SEVERITIES if row["findings"][level]]
            worst = found[-1] if found else None
            number = sum(row["findings"].values())
            result = verdict(row["isKnown"], row["knownAt"], row["at"], number, worst)
            shown: Part = badge("active" if row["isActive"] else "standby")
            if problem:
                last = "; its state is the last known one" if row["at"] else ""
                shown = [_away(), f" for {ago(ages[name])}: {problem}{last}"]
                result = result if row["at"] else ("Unknown", "info")
            state = tags.span(result[0], class_=f"badge {result[1]}")
            rows.append([tags.a(name, href=f"/fabrics/{name}/"), state, row["nodes"], shown])
        return table("All fabrics", ("Fabric", "State", "Nodes", "Monitor"), rows, "There is none.")

    def _findings(self, page: Row) -> list[Part]:
        """Open findings of all fabrics, the worst first, with links to the pages of their fabrics."""
        away = {one.name for one in self.remotes if one.problem}
        rows = []
        for row in page["rows"]:
            home = f"/fabrics/{row['fabric']}"
            where = tags.a(row["where"], href=home + (_nodePath(row) if row["guid"] else "/findings"))
            old = [" ", _away()] if row["fabric"] in away else ""
            link = tags.a(row["fabric"], href=f"{home}/")
            rows.append(([link, old], badge(row["severity"]), where, row["text"]))
        heads = ("Fabric", "Severity", "Where", "What")
        return _listed("Findings", page, table("Findings of all fabrics", heads, rows, "There is none."))

    def _nodes(self, page: Row) -> list[Part]:
        rows = [
            (
                row["fabric"],
                tags.a(row["name"] or row["guid"], href=f"/fabrics/{row['fabric']}{_nodePath(row)}"),
                row["type"].capitalize(),
                row["findings"] or "–",
                tags.code(row["guid"]),
            )
            for row in page["rows"]
        ]
        heads = ("Fabric", "Name", "Type", "Findings", "GUID")
        return _listed("Nodes", page, table("Nodes", heads, rows, "No node is like that."))


class _Fabrics(Folder):
    """C{/fabrics/NAME}: the whole site of a fabric, or redirections to that of another process."""

    def __init__(self, sites: Mapping[str, MonitorSite], remotes: Sequence[RemoteFabric]) -> None:
        super().__init__()  # type: ignore[no-untyped-call]  # of Twisted's
        self._sites = {name.encode(): site for name, site in sites.items()}
        self._remotes = {one.name.encode(): one for one in remotes}

    def getChild(self, name: bytes, request: Request) -> IResource:
        if name in self._remotes:
            return ReadOnly(self._remotes[name].redirect)
        site = self._sites.get(name)
        if site is None:
            return notFound(message="There is no such fabric.")
        below(request, b"fabrics", name)
        return site.root


def _updated(name: str, part: Part) -> Tag:
    """Return a part of the page that is replaced while the page is open."""
    return tags.div(part, id=name, **{"data-live": "yes"})


def _away() -> Tag:
    return tags.span("away", class_="badge critical")


def _nodePath(row: Row) -> str:
    return f"/nodes/{row['guid']}"


def _listed(heading: str, page: Row, shown: Part) -> list[Part]:
    """Return a heading, the table of a page of rows, and a line with the fabrics whose rows are missing."""
    count, total = len(page["rows"]), page["total"]
    text = f"the first {count} of {total}" if total > count else total
    missing = [
        tags.p(f"Without those of {one['fabric']}: {one['problem']}.", class_="empty", role="alert")
        for one in page.get("away", ())
    ]
    return [tags.h2(f"{heading} ({text})"), missing, shown]
