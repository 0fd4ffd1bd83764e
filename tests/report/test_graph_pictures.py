"""Graphs in a report: the last round's edges and nodes, and their colours."""

import json

import numpy as np
import pytest
from matplotlib.collections import PathCollection
from matplotlib.colors import LogNorm, to_rgba

from raylfl.core.mixing import Edges
from raylfl.heterogeneity.topologies.record import graph_line
from raylfl.report import pictures as module
from raylfl.report.pictures import graph_pictures, last_graph
from raylfl.report.runs import group_runs, load_run
from raylfl.report.style import PAPER
from raylfl.report.topology_plot import Shade
from tests.report.synthetic import rows_of, write_run

RING = np.array([[i, (i + k) % 8] for i in range(8) for k in (1, 7)])
WORKING = np.array([0, 1, 2, 5])
ACCURACY = np.linspace(0.2, 0.9, 8)


@pytest.fixture
def run(tmp_path):
    """A run of DSGD on a ring of 8 nodes with the record of one round: nodes 0, 1, 2, 5; 0 -> 1 is lost."""
    rows = rows_of([0.3, 0.5])
    rows[0]["per_client"] = {"nodes/accuracy": {str(i): 0.1 for i in range(8)}}
    rows[1]["per_client"] = {
        "train/loss": {"0": 9.0},
        "nodes/accuracy": {str(i): v for i, v in enumerate(ACCURACY)},
        "nodes/from_mean": {**{str(i): 10.0**-i for i in range(7)}, "7": None},
    }
    path = write_run(tmp_path / "run", rows, {"algorithm.name": "dsgd", "topology.name": "ring"})
    edges = Edges(8, RING, ~(RING == [0, 1]).all(axis=1))
    line = graph_line(1, edges, WORKING, "doubly", [edges.doubly(WORKING)])
    (path / "topology.jsonl").write_text(json.dumps({"round": 0}) + "\n" + line)
    return path


def drawn(run, metric="test/accuracy"):
    (picture,) = graph_pictures(group_runs([load_run(run)]), metric)
    ax = picture.figure.axes[0]
    (nodes,) = (c for c in ax.collections if isinstance(c, PathCollection))
    return picture, nodes


def test_the_last_graph_has_its_weights_and_its_working_nodes(run):
    graph = last_graph(load_run(run))
    carried = {tuple(pair): w for pair, w in zip(graph.pairs.tolist(), graph.weights, strict=True)}
    assert {pair: w for pair, w in carried.items() if w} == {(1, 2): 0.5, (2, 1): 0.5}  # 0 and 1 lost a message
    assert set(carried) == set(map(tuple, RING.tolist()))
    assert (graph.name, graph.round, np.flatnonzero(graph.working).tolist()) == ("ring", 1, WORKING.tolist())


def test_nodes_have_the_colour_of_their_last_accuracy_and_absent_ones_are_hollow(run):
    picture, nodes = drawn(run)
    expected = Shade(ACCURACY, "", higher=True, percent=True).scale().to_rgba(100 * ACCURACY)
    np.testing.assert_allclose(nodes.get_edgecolors(), expected)
    away = np.setdiff1d(np.arange(8), WORKING)
    np.testing.assert_allclose(nodes.get_facecolors()[WORKING], expected[WORKING])
    np.testing.assert_allclose(nodes.get_facecolors()[away], np.tile(to_rgba(PAPER), (4, 1)))
    assert "round 1: 8 nodes on ring" in picture.caption
    assert "Hollow: 4 nodes" in picture.caption
    bar = picture.figure.axes[1]
    assert bar.get_xlabel() == "test accuracy of the node's model (%)"


def test_the_main_metrics_counterpart_comes_first_and_far_values_are_on_a_log_scale(run):
    picture, nodes = drawn(run, "algo/from_mean")
    assert picture.figure.axes[1].get_xlabel() == "distance from the nodes' mean"
    assert nodes.get_edgecolors()[7][3] == 0  # unknown: no colour
    scale = Shade(10.0 ** -np.arange(7), "", higher=False).scale()
    assert isinstance(scale.norm, LogNorm)
    assert scale.to_rgba(1e-6)[:3] > scale.to_rgba(1.0)[:3]  # the lighter the better


def test_without_values_of_nodes_there_are_no_colours_and_a_graph_too_large_has_no_figure(run, monkeypatch):
    lines = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    plain = [{k: v for k, v in row.items() if k != "per_client"} for row in lines]
    (run / "metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in plain))
    picture, nodes = drawn(run)
    assert len(picture.figure.axes) == len(np.unique(nodes.get_edgecolors(), axis=0)) == 1
    assert "eval.nodes=true" in picture.caption
    monkeypatch.setattr(module, "MOST", 7)
    assert graph_pictures(group_runs([load_run(run)]), "test/accuracy") == []


@pytest.mark.parametrize(
    "line",
    ["{", '{"round": 1}', '{"round": 1, "W": {"entries": [[0, 99, 1]]}, "edges": [], "nodes": [0], "directed": false}'],
)
def test_a_damaged_record_is_named(run, line):
    (run / "topology.jsonl").write_text(line + "\n")
    record = load_run(run)
    assert last_graph(record) is None
    assert record.faults == ["topology.jsonl: its last line cannot be read"]
