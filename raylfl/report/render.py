"""Tables to Markdown, LaTeX (booktabs), CSV, HTML and the terminal."""

from __future__ import annotations

import csv
import io
import re
from collections.abc import Callable, Iterator, Sequence
from html import escape
from typing import Any

from rich.table import Table as RichTable

from raylfl.report.derived import Stat
from raylfl.report.tables import Column, Table, rank

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
    "–": "--",
    "…": r"\dots{}",
    "\u2009": r"\,",
    "\u202f": r"\,",
    "χ": r"$\chi$",
    "²": r"$^2$",
    "‖": r"$\Vert$",
    "Ω": r"$\Omega$",
}


def to_markdown(table: Table) -> str:
    """A GitHub table; best values in **bold**, block headings as rows of their own."""
    lines = ["| " + " | ".join(_md(column.head) for column in table.columns) + " |"]
    lines.append("| " + " | ".join("---:" if column.numeric else "---" for column in table.columns) + " |")
    for heading, rows in _body(table, _md, lambda text: f"**{text}**"):
        if heading:
            lines.append(f"| *{_md(heading)}* |" + " |" * (len(table.columns) - 1))
        lines += ["| " + " | ".join(cells) + " |" for cells in rows]
    return "\n".join(lines) + "\n"


def _md(text: str) -> str:
    return text.replace("|", r"\|").replace("*", r"\*").replace("\n", " ")


def to_latex(table: Table) -> str:
    """A `table` environment for booktabs; best values in bold, a rule between blocks."""
    spec = "".join("r" if column.numeric else "l" for column in table.columns)
    lines = [r"\begin{table}[t]", r"\centering", rf"\caption{{{latex(table.caption)}}}"]
    lines += [rf"\label{{tab:{table.name}}}", rf"\begin{{tabular}}{{{spec}}}", r"\toprule"]
    lines.append(" & ".join(latex(column.head) for column in table.columns) + r" \\")
    for heading, rows in _body(table, latex, lambda text: rf"\textbf{{{text}}}"):
        lines.append(r"\midrule")
        if heading:
            lines.append(rf"\multicolumn{{{len(table.columns)}}}{{l}}{{\emph{{{latex(heading)}}}}} \\")
        lines += [" & ".join(cells) + r" \\" for cells in rows]
    lines += [r"\bottomrule", r"\end{tabular}", r"\end{table}"]
    return "\n".join(lines) + "\n"


def latex(text: str) -> str:
    """Text with LaTeX's special characters escaped; 1.2e-12 becomes 1.2 x 10^-12 in maths."""
    escaped = "".join(_LATEX.get(char, char) for char in text)
    return re.sub(r"\b(\d+(?:\.\d+)?)e(-?\d+)\b", r"$\1\\times10^{\2}$", escaped)


def to_csv(table: Table) -> str:
    """Raw numbers, one line a row; a statistic becomes four columns: KEY_mean, _std, _count, _of."""
    records = []
    for row in table.rows:
        record: dict[str, Any] = {"block": row["block"]} if any("block" in r for r in table.rows) else {}
        for column in table.columns:
            cell = row.get(column.key, "")
            if isinstance(cell, Stat):
                names = ("mean", "std", "count", "of")
                record |= {f"{column.key}_{name}": getattr(cell, name) for name in names}
            else:
                record[column.key] = cell
        records.append(record)
    head = list(dict.fromkeys(key for record in records for key in record))
    return csv_text(head, [[record.get(key, "") for key in head] for record in records])


def csv_text(head: Sequence[str], lines: Sequence[Sequence[Any]]) -> str:
    """Cells under their heads. A text that a spreadsheet would run as a formula gets an apostrophe before it."""
    text = io.StringIO()
    csv.writer(text, lineterminator="\n").writerows([[_inert(cell) for cell in line] for line in (head, *lines)])
    return text.getvalue()


def _inert(cell: Any) -> Any:
    if not isinstance(cell, str) or not cell.startswith(("=", "+", "-", "@", "\t", "\r")):
        return cell
    try:
        float(cell)
        return cell
    except ValueError:
        return f"'{cell}"


def to_html(table: Table) -> str:
    """A <table> with best values in <b>; the caption is left to the page."""
    heads = "".join(f"<th{_cls(column)} scope=col>{escape(column.head)}</th>" for column in table.columns)
    lines = [f'<table class="{escape(table.name)}"><thead><tr>{heads}</tr></thead>']
    for heading, rows in _body(table, escape, lambda text: f"<b>{text}</b>"):
        lines.append("<tbody>")
        if heading:
            span = len(table.columns)
            lines.append(f'<tr class="block"><th colspan="{span}" scope="rowgroup">{escape(heading)}</th></tr>')
        for cells in rows:
            tds = (f"<td{_cls(column)}>{cell}</td>" for column, cell in zip(table.columns, cells, strict=True))
            lines.append(f"<tr>{''.join(tds)}</tr>")
        lines.append("</tbody>")
    return "\n".join([*lines, "</table>"])


def _cls(column: Column) -> str:
    return ' class="num"' if column.numeric else ""


def to_rich(table: Table) -> RichTable:
    """For the terminal; best values in bold."""
    shown = RichTable(caption=table.caption, caption_justify="left", header_style="bold")
    for column in table.columns:
        shown.add_column(column.head, justify="right" if column.numeric else "left", overflow="fold")
    for heading, rows in _body(table, _rich, lambda text: f"[bold]{text}[/bold]"):
        if heading:
            shown.add_row(f"[italic]{_rich(heading)}[/italic]")
        for cells in rows:
            shown.add_row(*cells)
        shown.add_section()
    return shown


def _rich(text: str) -> str:
    return text.replace("[", r"\[")


def _body(
    table: Table, quote: Callable[[str], str], strong: Callable[[str], str]
) -> Iterator[tuple[str, list[list[str]]]]:
    """Blocks as (heading, rows of cell texts), quoted for the format, the best of each column emphasised."""
    for heading, rows in table.blocks().items():
        best = {column.key: table.best_in(rows, column) for column in table.columns}
        texts = []
        for row in rows:
            cells = []
            for column in table.columns:
                text = quote(column.show(row[column.key])) if column.key in row else ""
                top = best[column.key]
                cells.append(strong(text) if top is not None and rank(row.get(column.key)) == top else text)
            texts.append(cells)
        yield heading, texts


FORMATS: dict[str, Callable[[Table], str]] = {"md": to_markdown, "tex": to_latex, "csv": to_csv}
