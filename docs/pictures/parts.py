"""
Draws C{parts-light.svg} and C{parts-dark.svg}: what txrdma is made of, and what its parts speak to.

Run it after a change: C{python docs/pictures/parts.py}. It is narrow, so that it can be read on a phone.
"""

from __future__ import annotations

from html import escape
from pathlib import Path

WIDTH, GAP = 480, 12
FONT = "system-ui, -apple-system, 'Segoe UI', Helvetica, Arial, sans-serif"
MONO = "ui-monospace, SFMono-Regular, Menlo, Consolas, monospace"
COLOURS = {
    # ink, faint ink, lines, then the fill and the edge of programs, of txrdma, and of what it speaks to
    "light": (
        "#1f2328",
        "#59636e",
        "#818b98",
        "#ffffff",
        "#818b98",
        "#d9f0f1",
        "#0b7c84",
        "#f1f3f5",
        "#c4ccd4",
    ),
    "dark": (
        "#f0f6fc",
        "#a5adb8",
        "#7d8590",
        "#0d1117",
        "#7d8590",
        "#0d3538",
        "#4fc3cb",
        "#1c2128",
        "#3d444d",
    ),
}


class Picture:
    """The picture in one theme."""

    def __init__(self, theme: str) -> None:
        self.ink, self.faint, self.line, *kinds = COLOURS[theme]
        self.kinds = {
            name: (kinds[2 * n], kinds[2 * n + 1]) for n, name in enumerate(("program", "ours", "world"))
        }
        self.parts: list[str] = []

    def row(self, y: float, height: float, kind: str, *boxes: tuple[float, str, str]) -> None:
        """Boxes beside each other: the share of the width, a name (`code` in backticks), and what it is."""
        whole = sum(share for share, _, _ in boxes)
        x, room = 0.5, WIDTH - 1 - GAP * (len(boxes) - 1)
        fill, edge = self.kinds[kind]
        for share, name, what in boxes:
            width = room * share / whole
            self.parts.append(
                f'<rect x="{x:.1f}" y="{y + 0.5}" width="{width:.1f}" height="{height - 1}" rx="7" '
                f'fill="{fill}" stroke="{edge}"/>'
            )
            lines = [line for line in what.split("\n") if line]
            top = y + height / 2 + 5 - len(lines) * 7.5
            self.text(x + width / 2, top, name.strip("`"), self.ink, 14, name.startswith("`"), True)
            for number, line in enumerate(lines):
                self.text(x + width / 2, top + 16 + 15 * number, line, self.faint, 12)
            x += width + GAP

    def text(
        self,
        x: float,
        y: float,
        text: str,
        colour: str,
        size: float,
        isCode: bool = False,
        isBold: bool = False,
    ) -> None:
        """Centred."""
        font = MONO if isCode else FONT
        weight = ' font-weight="600"' if isBold else ""
        self.parts.append(
            f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="middle" font-family="{font}" font-size="{size}"'
            f'{weight} fill="{colour}">{escape(text)}</text>'
        )

    def arrow(self, x: float, y: float, dx: float = 0, dy: float = 16) -> None:
        """From what uses to what is used."""
        side = "l-4 -6m4 6l4 -6" if dy else "l6 -4m-6 4l6 4"
        self.parts.append(
            f'<path d="M{x:.1f} {y:.1f}l{dx} {dy}{side}" fill="none" stroke="{self.line}" '
            'stroke-width="1.5"/>'
        )

    def svg(self, height: float) -> str:
        """The file."""
        return (
            f'<svg xmlns="http://www.w3.org/2000/svg" width="600" viewBox="0 0 {WIDTH} {height}" role="img">'
            "\n"
            "<title>The parts of txrdma, and what they speak to</title>\n"
            + "\n".join(self.parts)
            + "\n</svg>\n"
        )


def draw(theme: str) -> str:
    """The picture."""
    picture = Picture(theme)
    picture.row(
        0, 56, "program",
        (3, "A Twisted program", "services, clients, TLS, twisted.web, treq"),
        (2, "Any other program", "over TCP"),
    )  # fmt: skip
    picture.arrow(145, 58)
    picture.arrow(387, 58)
    picture.row(
        78, 62, "ours",
        (3, "`smc:host:port`", "SMC-R streams;\nplain TCP if the peer has no SMC"),
        (2, "`twistd smc-proxy`", "TCP in, SMC-R out"),
    )  # fmt: skip
    picture.arrow(292.5, 109, -10, 0)
    picture.arrow(110, 142)
    picture.arrow(265, 142)
    picture.row(
        162, 46, "ours",
        (1, "software device", "queue pairs in Python"), (1, "`pyverbs:NAME`", "devices of the kernel"),
    )  # fmt: skip
    for x in (56, 180, 300, 424):
        picture.arrow(x, 210)
    picture.row(
        230, 62, "world",
        (1, "this host", "by shared\nmemory"), (1, "any host", "by RoCE v2\nover UDP"),
        (1, "rxe", "the kernel's\nsoftware RoCE"), (1, "adapters", "InfiniBand,\nRoCE, iWARP"),
    )  # fmt: skip
    picture.row(
        318, 56, "program",
        (3, "`txrdma discover, query …`", "commands for fabrics, nodes and ports"),
        (2, "A Twisted program", "asks, and serves"),
    )  # fmt: skip
    picture.arrow(145, 376)
    picture.arrow(387, 376)
    picture.row(
        396, 46, "ours",
        (1, "`txrdma.mad, txrdma.fabric`", "management datagrams as Deferreds; discovery, counters, routes"),
    )  # fmt: skip
    for x in (56, 180, 300, 424):
        picture.arrow(x, 444)
    picture.row(
        464, 62, "world",
        (1, "`umad`", "the kernel's\nInfiniBand ports"), (1, "`vmad`", "a queue pair\nof any device"),
        (1, "`ibsim`", "a simulator\nbeside it"), (1, "`sim:`", "a fabric in the\nown process"),
    )  # fmt: skip
    return picture.svg(527)


if __name__ == "__main__":
    for name in COLOURS:
        Path(__file__).with_name(f"parts-{name}.svg").write_text(draw(name))
