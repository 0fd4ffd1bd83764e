"""The table of traffic: floats sent, virtual seconds, busiest node and link, to compare star, chain and graph."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from raylfl.report.derived import between_clients, cost
from raylfl.report.runs import Group, RunRecord
from raylfl.report.tables import Column, ReportTable
from raylfl.report.wording import number

NODE = "cost/busiest_node_floats"


def link_table(groups: Sequence[Group]) -> ReportTable | None:
    """The table of traffic, one row per setting (its first seed); None if no client sends to another client."""
    if not between_clients([group.runs[0] for group in groups]):
        return None
    columns = [
        Column("setting", "setting"),
        Column("floats", "floats sent", number, "min", numeric=True),
        Column("seconds", "virtual s", number, "min", numeric=True),
        Column("node", "busiest node's floats", number, "min", numeric=True),
        Column("link", "busiest link"),
        Column("carried", "its floats", number, "min", numeric=True),
    ]
    caption = (
        "Traffic of each setting, from its first seed. Busiest node: of each round; busiest link: of the whole run, "
        "both directions together (edges.csv has all links)."
    )
    return ReportTable("links", caption, columns, [{"setting": g.label, **_row(g.runs[0])} for g in groups])


def _row(run: RunRecord) -> dict[str, Any]:
    """The entries of the row of a run: column -> value. Quantities that the run has not recorded are left out."""
    totals = {"floats": cost(run, "floats"), "seconds": cost(run, "virtual"), "node": run.metrics.get(NODE)}
    row: dict[str, Any] = {
        key: float(values[-1]) for key, values in totals.items() if values is not None and len(values)
    }
    found = run.summary.get("busiest_link")
    try:
        ends, floats = found["between"], float(found["floats"])  # type: ignore[index]
        return {**row, "link": " – ".join(map(str, ends)), "carried": floats}
    except (TypeError, KeyError, ValueError):  # the run is unfinished, damaged, or older than this record
        return row
