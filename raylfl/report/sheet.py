"""A self-contained HTML page while it is written: tables and pictures go in, and as files beside it."""

from __future__ import annotations

import base64
import re
from collections import Counter
from collections.abc import Sequence
from html import escape
from importlib import resources
from pathlib import Path

from matplotlib.figure import Figure

from raylfl.report.figures import PANEL, Block, composed, single
from raylfl.report.pictures import Picture
from raylfl.report.render import FORMATS, to_html
from raylfl.report.svg import inline_svg, legend_key
from raylfl.report.tables import Table

_SHELL = """<!DOCTYPE html>
<html lang="en"><head><meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>{title}</title>
<style>
{css}</style></head>
<body><main>
<header><h1>{title}</h1><nav>{links}</nav><dl class="facts">{facts}</dl>{notes}</header>
{body}
<footer>Made by <code>raylfl report</code>.</footer>
</main></body></html>
"""


class Sheet:
    """The page's folder (made if need be) and its sections so far.

    pdf: whether figures are saved as vector graphics for papers too, which takes as long as all the rest.
    `table`, `block` and `picture` write their files and return the HTML to put into a section.
    """

    def __init__(self, folder: Path, pdf: bool = True):
        self.folder, self.pdf = folder, pdf
        self._sections: list[tuple[str, str, str]] = []  # id, heading, html
        self._figures = 0
        self._names: Counter[str] = Counter()
        folder.mkdir(parents=True, exist_ok=True)

    def section(self, name: str, heading: str, html: str) -> None:
        """Append a section; an empty one is left out."""
        if html:
            self._sections.append((name, heading, html))

    def table(self, table: Table) -> str:
        """The table; as NAME.md, NAME.tex and NAME.csv beside the page."""
        for ending, convert in FORMATS.items():
            (self.folder / f"{table.name}.{ending}").write_text(convert(table), encoding="utf-8")
        links = ", ".join(f'<a href="{table.name}.{ending}">{ending}</a>' for ending in FORMATS)
        caption = f'<p class="caption">{escape(table.caption)} Table as {links}.</p>'
        return f'<div class="scroll">{to_html(table)}</div>{caption}'

    def block(self, block: Block, suffix: str = "", legend: bool = True) -> str:
        """The panels as inline SVG under one legend; composed as PNG and PDF beside the page."""
        if not block.panels:
            return ""
        keys = "".join(f"<li>{legend_key(line)}{escape(label)}</li>" for label, line in block.legend)
        html = [f'<ul class="legend">{keys}</ul>'] if keys and legend else []
        width = block.panels[0].size[0]
        wide = f' wide" style="--width:{110 * width:.0f}px' if width > PANEL[0] else ""
        html.append(f'<div class="panels{wide}">')
        for panel in block.panels:
            self._figures += 1
            html.append(f"<figure>{inline_svg(single(panel), f'f{self._figures}', panel.title)}</figure>")
        links = self._save(composed(block), f"{block.name}{suffix}")
        html.append(f'</div><p class="caption">{escape(block.caption)} {links}</p>')
        return "".join(html)

    def picture(self, picture: Picture) -> str:
        """A picture of the clients: a bitmap on white paper, for it may have thousands of cells."""
        links = self._save(picture.figure, picture.name)
        data = base64.b64encode((self.folder / f"{picture.name}.png").read_bytes()).decode()
        image = f'<img src="data:image/png;base64,{data}" alt="{escape(picture.caption)}">'
        style = f'style="--width:{110 * picture.figure.get_figwidth():.0f}px"'
        caption = f'<p class="caption">{escape(picture.caption)} {links}</p>'
        wide = ' class="broad"' if picture.figure.get_figwidth() > 8 else ""
        return f'<figure{wide}><div class="picture" {style}>{image}</div>{caption}</figure>'

    def _save(self, figure: Figure, name: str) -> str:
        """The figure as files; the links to them."""
        name = slug(name)
        self._names[name] += 1
        name += f"_{self._names[name]}" * (self._names[name] > 1)  # two labels may agree in what files allow
        figure.savefig(self.folder / f"{name}.png")
        if not self.pdf:
            return f'Figure as <a href="{name}.png">png</a>.'
        figure.set_layout_engine("none")  # as it has just been laid out
        figure.savefig(self.folder / f"{name}.pdf", metadata={"CreationDate": None})
        return f'Figure as <a href="{name}.png">png</a>, <a href="{name}.pdf">pdf</a>.'

    def write(self, title: str, facts: Sequence[tuple[str, str]], notes: Sequence[str]) -> Path:
        """Write `index.html`: facts (name, value) and notes stand above the sections. Returns its path."""
        sections = self._sections
        path = self.folder / "index.html"
        page = _SHELL.format(
            title=escape(title),
            css=resources.files("raylfl.report").joinpath("page.css").read_text(encoding="utf-8"),
            links="".join(f'<a href="#{name}">{escape(heading)}</a>' for name, heading, _ in sections),
            facts="".join(f"<div><dt>{escape(key)}</dt><dd>{escape(text)}</dd></div>" for key, text in facts),
            notes="".join(f'<p class="note">{escape(note)}</p>' for note in notes),
            body="".join(f'<section id="{n}"><h2>{escape(h)}</h2>{html}</section>\n' for n, h, html in sections),
        )
        path.write_text(page, encoding="utf-8")
        return path


def slug(text: str) -> str:
    """A label as part of a file name: `alpha=0.1, steps=5` -> `alpha-0.1_steps-5`."""
    return re.sub(r"[^A-Za-z0-9._]+", "-", text.replace(", ", "_")).strip("-")[:100]


def folded(heading: str, html: str) -> str:
    """HTML behind a heading that opens it."""
    return f"<details><summary>{escape(heading)}</summary>{html}</details>"
