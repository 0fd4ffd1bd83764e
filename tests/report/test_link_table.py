"""The table and the curves that compare star, chain and graph by what they send."""

from __future__ import annotations

import json

import pytest

from raylfl.report.derived import counted_axes
from raylfl.report.page import content_of, shown_tables
from raylfl.report.runs import group_runs, load_run
from raylfl.report.tables import link_table
from tests.report.synthetic import rows_of, write_run


@pytest.fixture
def folder(tmp_path):
    """A star, and a graph whose clients send to each other."""
    write_run(tmp_path / "star", rows_of([0.3, 0.5]))
    rows = rows_of([0.3, 0.5])
    for r, row in enumerate(rows, 1):
        row |= {"cost/uplink_floats": 0, "cost/downlink_floats": 0, "cost/peer_floats": 50 * r}
        row |= {"cost/busiest_node_floats": 20 * r, "cost/busiest_link_floats": 6 * r}
    path = write_run(tmp_path / "graph", rows, {"algorithm.name": "dsgd"})
    summary = json.loads((path / "summary.json").read_text())
    (path / "summary.json").write_text(json.dumps({**summary, "busiest_link": {"between": ["2", "5"], "floats": 11.0}}))
    return tmp_path


def groups(*paths):
    return group_runs([load_run(path) for path in paths])


def test_each_setting_has_its_floats_seconds_and_busiest_link(folder):
    graph, star = sorted(link_table(groups(folder / "star", folder / "graph")).rows, key=lambda row: row["setting"])
    assert graph == {"setting": "DSGD", "floats": 100, "seconds": 1.0, "node": 40, "link": "2 – 5", "carried": 11}
    assert star.keys() == {"setting", "floats", "seconds"}  # from before the others were recorded
    assert [table.name for table in shown_tables(content_of(folder))] == ["summary", "links"]


def test_the_busiest_link_is_a_cost_only_where_clients_send_to_each_other(folder):
    star, graph = load_run(folder / "star"), load_run(folder / "graph")
    assert "link" in counted_axes([star, graph])
    assert "link" not in counted_axes([star])
    assert link_table(groups(folder / "star")) is None


@pytest.mark.parametrize("damage", [None, 3, {"between": 4}, {"between": ["1", "2"], "floats": "many"}])
def test_a_damaged_summary_leaves_the_cells_empty(folder, damage):
    path = folder / "graph" / "summary.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), "busiest_link": damage}))
    (row,) = link_table(groups(folder / "graph")).rows
    assert "link" not in row
    assert row["floats"] == 100
