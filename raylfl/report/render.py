"""Rendering of tables as Markdown, LaTeX (booktabs), CSV, HTML and for the terminal."""

import csv
import io
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from functools import cache
from pathlib import Path
from typing import Any

import jinja2
from rich.table import Table as RichTable
from rich.text import Text

from raylfl.errors import visible
from raylfl.report.derived import Stat
from raylfl.report.statistics import ConfidenceInterval
from raylfl.report.tables import ReportTable

LONGEST = 60  # characters of a text that LaTeX does not wrap

_LATEX = {
    "\\": r"\textbackslash{}",
    "&": r"\&",
    "%": r"\%",
    "$": r"\$",
    "#": r"\#",
    "_": r"\_",
    "{": r"\{",
    "}": r"\}",
    "~": r"\textasciitilde{}",
    "^": r"\textasciicircum{}",
    "±": r"$\pm$",
    "≥": r"$\geq$",
    "≤": r"$\leq$",
    "∞": r"$\infty$",
    "−": "$-$",
    "×": r"$\times$",
    "–": "--",
    "…": r"\dots{}",
    "\u2009": r"\,",
    "\u202f": r"\,",
    "χ": r"$\chi$",
    "²": r"$^2$",
    "‖": r"$\Vert$",
    "Ω": r"$\Omega$",
}


def to_markdown(table: ReportTable) -> str:
    """A table in GitHub Markdown; best values in **bold**, block headings as separate rows."""
    lines = ["| " + " | ".join(_md(column.head) for column in table.columns) + " |"]
    lines.append("| " + " | ".join("---:" if column.numeric else "---" for column in table.columns) + " |")
    for heading, rows in table.cells():
        if heading:
            lines.append(f"| *{_md(heading)}* |" + " |" * (len(table.columns) - 1))
        for cells in rows:
            lines.append("| " + " | ".join(f"**{_md(text)}**" if best else _md(text) for text, best in cells) + " |")
    return "\n".join(lines) + "\n"


def _md(text: str) -> str:
    return text.replace("|", r"\|").replace("*", r"\*").replace("\n", " ")


def to_latex(table: ReportTable) -> str:
    """A table as LaTeX environment `table`; best values in bold, a rule between blocks.

    The first line names the packages. A table that is wider than a column of the page is scaled to its width; the texts
    of a column of over LONGEST characters are wrapped.
    """
    spec = ""
    for column in table.columns:
        longest = max((len(column.show(row[column.key])) for row in table.rows if column.key in row), default=0)
        spec += "r" if column.numeric else r"p{0.7\linewidth}" if longest > LONGEST else "l"
    lines = [r"% needs \usepackage{booktabs,graphicx}", r"\begin{table}[t]", r"\centering"]
    lines += [rf"\caption{{{latex(table.caption)}}}", rf"\label{{tab:{table.name}}}"]
    lines += [r"\resizebox{\ifdim\width>\linewidth\linewidth\else\width\fi}{!}{%"]
    lines += [rf"\begin{{tabular}}{{{spec}}}", r"\toprule"]
    lines.append(" & ".join(latex(column.head) for column in table.columns) + r" \\")
    for heading, rows in table.cells():
        lines.append(r"\midrule")
        if heading:
            lines.append(rf"\multicolumn{{{len(table.columns)}}}{{l}}{{\emph{{{latex(heading)}}}}} \\")
        for cells in rows:
            shown = (rf"\textbf{{{latex(text)}}}" if best else latex(text) for text, best in cells)
            lines.append(" & ".join(shown) + r" \\")
    lines += [r"\bottomrule", r"\end{tabular}}", r"\end{table}"]
    return "\n".join(lines) + "\n"


def latex(text: str) -> str:
    """Text with LaTeX's special characters escaped; 1.2e-12 becomes 1.2 x 10^-12 in math mode."""
    escaped = "".join(_LATEX.get(char, char) for char in text)
    return re.sub(r"\b(\d+(?:\.\d+)?)e(-?\d+)\b", r"$\1\\times10^{\2}$", escaped)


def to_csv(table: ReportTable) -> str:
    """A table as CSV with unrounded numbers: four columns (_mean, _std, ...) for a statistic, three for an interval."""
    records = []
    for row in table.rows:
        record: dict[str, Any] = {"block": row["block"]} if any("block" in r for r in table.rows) else {}
        for column in table.columns:
            cell = row.get(column.key, "")
            if isinstance(cell, Stat | ConfidenceInterval):
                record |= {f"{column.key}_{name}": value for name, value in asdict(cell).items()}
            else:
                record[column.key] = cell
        records.append(record)
    return csv_text(records)


def csv_text(rows: Sequence[Mapping[str, Any]]) -> str:
    """Rows as CSV, below the keys of all; a text that a spreadsheet would evaluate gets a leading apostrophe."""
    text, head = io.StringIO(), list(dict.fromkeys(key for row in rows for key in row))
    lines = [head, *([row.get(key, "") for key in head] for row in rows)]
    csv.writer(text, lineterminator="\n").writerows([[_inert(cell) for cell in line] for line in lines])
    return text.getvalue()


def _inert(cell: Any) -> Any:
    if not isinstance(cell, str) or not cell.startswith(("=", "+", "-", "@", "\t", "\r")):
        return cell
    try:
        float(cell)
        return cell
    except ValueError:
        return f"'{cell}"


@cache
def template() -> jinja2.Template:
    """The jinja2 template of a report's page, page.html.j2, which is loaded once; its macro `table` renders a table."""
    loader = jinja2.FileSystemLoader(Path(__file__).parent)
    environment = jinja2.Environment(loader=loader, autoescape=True, trim_blocks=True, lstrip_blocks=True)
    return environment.get_template("page.html.j2")


def to_rich(table: ReportTable) -> RichTable:
    """A table for the terminal, with its caption; best values in bold."""
    caption = Text(visible(table.caption), "table.caption")
    shown = RichTable(caption=caption, caption_justify="left", header_style="bold")
    for column in table.columns:
        shown.add_column(Text(column.head), justify="right" if column.numeric else "left", overflow="fold")
    for heading, rows in table.cells():
        if heading:
            shown.add_row(Text(visible(heading), "italic"))
        for cells in rows:
            shown.add_row(*(Text(visible(text), "bold" if best else "") for text, best in cells))
        shown.add_section()
    return shown


FORMATS: dict[str, Callable[[ReportTable], str]] = {"md": to_markdown, "tex": to_latex, "csv": to_csv}
