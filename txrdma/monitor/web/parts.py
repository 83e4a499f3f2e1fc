"""
Parts of several pages: tables of findings, changes and links, and the place of the drawing.
"""

from __future__ import annotations

from typing import Any, Final

from twisted.web.template import Tag

from txrdma.monitor.diagnosis.findinglog import Entry
from txrdma.monitor.diagnosis.journal import FabricEvent
from txrdma.monitor.web.layout import (
    badge,
    errors,
    gauge,
    nodeLink,
    Part,
    portLink,
    subjectLink,
    table,
    tags,
    timeTag,
)
from txrdma.monitor.web.watch import PageContext, printable

Row = dict[str, Any]


def findingRows(context: PageContext, entries: list[Entry]) -> list[list[Part]]:
    """Cells of findings: severity, place, what and what to do, and since when."""
    return [
        [
            badge(entry.severity.name.lower()),
            subjectLink(context, entry.finding.guid, entry.finding.port, entry.finding.where),
            [
                tags.strong(printable(entry.finding.text)),
                tags.br(),
                f"Explained by {printable(entry.finding.cause)}." if entry.finding.cause else entry.advice,
            ],
            timeTag(entry.firstSeen, context.now),
        ]
        for entry in entries
    ]


def findingTable(context: PageContext, entries: list[Entry]) -> Part:
    """Table of findings that are there."""
    columns = ["Severity", "Where", "What, and what to do", "Since"]
    return table("Findings", columns, findingRows(context, entries), "No findings.")


def changeTable(context: PageContext, changes: list[FabricEvent], empty: str) -> Part:
    """Table of changes, with their times."""
    rows = [
        [
            timeTag(change.at, context.now),
            change.kind.replace("-", " "),
            subjectLink(context, change.guid, change.port, change.where),
            printable(change.text),
        ]
        for change in changes
    ]
    return table("Changes", ["When", "Change", "Where", "What"], rows, empty)


def mode(row: Row) -> str:
    """Width and speed of a link: C{"4x HDR"}."""
    return f"{row['width']}x {row['speed']}" if row["width"] and row["speed"] else "–"


def _ends(row: Row) -> list[Part]:
    one = [nodeLink(row["guid"], row["name"]), " port ", portLink(row["guid"], row["port"])]
    if row["peerGuid"] is None:  # the link was lost while the rows were searched
        return [one, "–"]
    peer = portLink(row["peerGuid"], row["peerPort"])
    return [one, [nodeLink(row["peerGuid"], row["peerName"]), " port ", peer]]


def linkTable(rows: list[Row], heads: list[Part], empty: str) -> Part:
    """Table of links, with the load of both directions."""
    return table(
        "Links",
        heads,
        (
            [
                *_ends(row),
                mode(row),
                row["state"].capitalize(),
                gauge(row["load"]),
                gauge(row["peerLoad"]),
                errors(row["errorRate"]),
            ]
            for row in rows
        ),
        empty,
    )


FINDING_HEADS: Final = ["Severity", "Where", "What, and what to do"]
LINK_HEADS: Final = ["From", "To", "Mode", "State", "Load", "Load back", "Errors/s"]


def drawing(isLarge: bool) -> Tag:
    """Place for the drawing of a topology, which a script shows."""
    return tags.figure(
        tags.div(
            tags.label("Find a switch ", tags.input(type="search", id="topology-search", autocomplete="off")),
            tags.label(
                "Colour by ",
                tags.select(
                    tags.option("load", value="load"),
                    tags.option("errors", value="errors"),
                    id="topology-colour",
                ),
            ),
            tags.button("+", type="button", id="topology-in", **{"aria-label": "Nearer"}),
            tags.button("−", type="button", id="topology-out", **{"aria-label": "Farther"}),
            tags.button("Whole", type="button", id="topology-whole"),
            class_="filters",
        ),
        tags.div(
            id="topology",
            class_="topology large" if isLarge else "topology",
            role="img",
            **{"aria-label": "Switches and their links; the table of links has the same"},
        ),
        tags.figcaption(id="topology-legend"),
        id="topology-figure",
        hidden="hidden",
    )
