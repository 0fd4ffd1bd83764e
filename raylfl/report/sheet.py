"""The HTML page of a report and the files of its figures and tables; the page's template is `page.html.j2`."""

import base64
import io
import re
from collections import Counter
from collections.abc import Sequence
from html import escape
from pathlib import Path
from typing import Any

from matplotlib.figure import Figure

from raylfl.report.figures import Block, composed
from raylfl.report.pictures import Picture
from raylfl.report.render import FORMATS, template
from raylfl.report.style import GRID, INK, MUTED, PALETTE, PAPER
from raylfl.report.tables import ReportTable

Part = dict[str, Any]  # one element of the page (table, figure, heading, ...): its `kind` and the values it shows
PIXELS = 110  # width on the page of one inch of a figure
_THEMED = {INK: "--ink", MUTED: "--muted", GRID: "--grid", PAPER: "--paper"} | {
    color: f"--s{index}" for index, color in enumerate(PALETTE)
}
_DROPPED = (r"<\?xml.*?\?>", r"<!DOCTYPE.*?>", r"<metadata>.*?</metadata>", r'\sxmlns(:\w+)?="[^"]*"')


class Sheet:
    """A report's page under construction: its folder (created if missing) and the sections added so far.

    pdf: whether figures are also saved as PDF, which doubles the time. `table`, `block` and `pictures` write files and
    return elements of the page, which `section` adds to it.
    """

    def __init__(self, folder: Path, pdf: bool = True):
        self.folder, self.pdf = folder, pdf
        self._sections: list[dict[str, Any]] = []
        self._names: Counter[str] = Counter()
        folder.mkdir(parents=True, exist_ok=True)

    def new(self, name: str) -> Path:
        """The path of a file of the page; an earlier file is removed, as its content may be that of a hard link."""
        path = self.folder / name
        path.unlink(missing_ok=True)
        return path

    def section(self, name: str, heading: str, parts: Sequence[Part]) -> None:
        """Appends a section with this heading and these elements to the page; does nothing without elements."""
        if parts:
            self._sections.append({"name": name, "heading": heading, "parts": parts})

    def table(self, table: ReportTable | None) -> list[Part]:
        """Writes a table as NAME.md, NAME.tex and NAME.csv and returns its element; an empty list for None."""
        if table is None:
            return []
        files = {f"{table.name}.{ending}": convert(table) for ending, convert in FORMATS.items()}
        for name, text in files.items():
            self.new(name).write_text(text, encoding="utf-8")
        return [{"kind": "table", "table": table, "files": list(files)}]

    def block(self, block: Block | None, suffix: str = "") -> list[Part]:
        """Writes a block of panels as one figure, which its element has as inline SVG; an empty list without panels.

        suffix: appended to the file name.
        """
        if block is None or not block.panels:
            return []
        figure = composed(block.panels, block.legend)
        files = self._save(figure, f"{block.name}{suffix}")
        title = "; ".join(panel.title for panel in block.panels)
        title += f" ({', '.join(label for label, _ in block.legend)})" if block.legend else ""
        svg = inline_svg(figure, files[0].removesuffix(".png"), title)
        width = round(PIXELS * figure.get_figwidth())
        return [{"kind": "figure", "svg": svg, "width": width, "text": block.caption, "files": files}]

    def pictures(self, pictures: Sequence[Picture]) -> list[Part]:
        """Writes figures as PNG (and PDF if `pdf`); their element has bitmaps: there may be thousands of cells."""
        shown = []
        for picture in pictures:
            files = self._save(picture.figure, picture.name)
            data = base64.b64encode((self.folder / files[0]).read_bytes()).decode()
            width = round(PIXELS * picture.figure.get_figwidth())
            shown.append({"data": data, "width": width, "text": picture.caption, "files": files})
        return [{"kind": "pictures", "pictures": shown}] if shown else []

    def _save(self, figure: Figure, name: str) -> list[str]:
        name = slug(name)
        self._names[name] += 1
        name += f"_{self._names[name]}" * (self._names[name] > 1)  # two labels may give the same file name
        figure.savefig(self.new(f"{name}.png"))
        if not self.pdf:
            return [f"{name}.png"]
        figure.set_layout_engine("none")  # the layout has just been computed
        figure.savefig(self.new(f"{name}.pdf"), metadata={"CreationDate": None})
        return [f"{name}.png", f"{name}.pdf"]

    def write(self, title: str, facts: Sequence[tuple[str, str]], notes: Sequence[str]) -> Path:
        """Writes `index.html`: title, facts (name, value) and notes above the sections; returns its path."""
        path = self.new("index.html")
        page = template().render(title=title, facts=facts, notes=notes, sections=self._sections)
        path.write_text(page.strip() + "\n", encoding="utf-8")
        return path


def heading(text: str) -> list[Part]:
    """The element of a heading inside a section; an empty list for an empty text."""
    return [{"kind": "heading", "text": text}] if text else []


def folded(text: str, parts: Sequence[Part]) -> list[Part]:
    """One element that hides `parts` under the heading `text` until a click; an empty list if there are no parts."""
    return [{"kind": "folded", "text": text, "parts": parts}] if parts else []


def slug(text: str) -> str:
    """A label as a part of a file name, at most 100 characters: `alpha=0.1, steps=5` -> `alpha-0.1_steps-5`."""
    return re.sub(r"[^A-Za-z0-9._]+", "-", text.replace(", ", "_")).strip("-")[:100]


def inline_svg(figure: Figure, prefix: str, title: str) -> str:
    """The figure as an <svg> element that fills the width of its container, without size, namespace or metadata.

    prefix: of ids, unique within the page. title: for screen readers. The colours of `raylfl.report.style` become CSS
    variables (--ink, --muted, --grid, --s0, ...); the page defines them for its light and its dark theme.
    """
    text = io.StringIO()
    figure.savefig(text, format="svg", transparent=True, metadata={"Date": None})
    svg = text.getvalue()
    for pattern in _DROPPED:
        svg = re.sub(pattern, "", svg, flags=re.DOTALL)
    svg = re.sub(r'\bid="([^"]+)"', rf'id="{prefix}-\1"', svg)
    svg = re.sub(r'\bxlink:href="#', f'href="#{prefix}-', svg)
    svg = re.sub(r"url\(#", f"url(#{prefix}-", svg)
    for color, name in _THEMED.items():
        svg = re.sub(color, f"var({name})", svg, flags=re.IGNORECASE)
    head = f'<svg role="img" aria-label="{escape(title)}"'
    for size in ("width", "height"):
        svg = re.sub(rf'<svg\b([^>]*?)\s{size}="[^"]*"', r"<svg\1", svg, count=1)
    return svg.replace("<svg", head, 1).strip()
