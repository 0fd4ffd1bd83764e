"""The tables of `raylfl theory`."""

from __future__ import annotations

from collections.abc import Sequence

from rich.table import Table

from raylfl.python.console import print_table, say
from raylfl.theory.summary import Theory


def theory_tables(theory: Theory) -> None:
    """Prints tables of constants, admissible step sizes and guaranteed rates, then notes on violated assumptions."""

    def table(title: str, rows: Sequence[tuple[str, ...]], headers: tuple[str, ...]) -> None:
        out = Table(title=title, title_justify="left", box=None, pad_edge=False)
        for header in headers:
            out.add_column(header, overflow="fold")
        for row in rows:
            out.add_row(*row)
        print_table(out)

    constants = [(c.symbol, f"{c.value:.4g}", c.meaning, c.how) for c in theory.constants]
    table("Constants", constants, ("", "value", "meaning", "how"))
    if theory.steps:
        inside = [
            (s.theorem, s.case, f"{s.largest:.4g}", "inside" if s.admits(theory.eta) else "OUTSIDE", s.formula)
            for s in theory.steps
        ]
        table(
            f"Step sizes (local.lr is {theory.eta:g})", inside, ("theorem", "case", "at most", "this run", "condition")
        )
    if theory.promises:
        rows = [(p.theorem, p.what, f"{p.value:.4g}") for p in theory.promises]
        table("Rates and limits", rows, ("theorem", "", "value"))
    for note in theory.notes:
        say(f"note: {note}")
