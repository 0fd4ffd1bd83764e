"""Graphs: their edges in closed form, keyed draws, sequences that average exactly, files and records."""

import json
from dataclasses import dataclass
from functools import partial

import networkx as nx
import numpy as np
import pytest

from raylfl.core.mixing import Edges, matrices
from raylfl.errors import BadValue
from raylfl.heterogeneity.links.bernoulli import Bernoulli, Perfect
from raylfl.heterogeneity.participation.availability import Full
from raylfl.heterogeneity.topologies import TOPOLOGIES
from raylfl.heterogeneity.topologies.base import Graph
from raylfl.heterogeneity.topologies.record import graph_line
from raylfl.heterogeneity.topologies.summary import mixing_rate, numbers
from tests.heterogeneity import draws

world = partial(draws.world, rounds=10)


def pairs(name: str, count: int, r: int = 0, seed: int = 0, **options) -> set[tuple[int, int]]:
    graph = TOPOLOGIES.get(name).cls(**options)
    graph.check(world(count, seed))
    return set(map(tuple, graph.pairs(r, world(count, seed)).tolist()))


def both(edges) -> set[tuple[int, int]]:
    return {(a, b) for a, b in edges} | {(b, a) for a, b in edges}


def test_fixed_graphs_have_their_edges():
    assert pairs("complete", 4) == {(i, j) for i in range(4) for j in range(4) if i != j}
    assert pairs("star", 4) == both([(0, 1), (0, 2), (0, 3)])
    assert pairs("ring", 5) == pairs("auto", 5) == both([(i, (i + 1) % 5) for i in range(5)])
    assert pairs("directed_ring", 5) == {(i, (i + 1) % 5) for i in range(5)}
    assert pairs("grid", 6) == both([(0, 1), (1, 2), (3, 4), (4, 5), (0, 3), (1, 4), (2, 5)])
    assert pairs("torus", 9) == both([(3 * a + b, 3 * a + (b + 1) % 3) for a in range(3) for b in range(3)]) | both(
        [(3 * a + b, 3 * ((a + 1) % 3) + b) for a in range(3) for b in range(3)]
    )
    assert pairs("exponential", 6) == {(i, (i + k) % 6) for i in range(6) for k in (1, 2, 4)}
    assert pairs("hypercube", 8) == both([(i, i ^ b) for i in range(8) for b in (1, 2, 4)])


@pytest.mark.parametrize("name", [name for name in TOPOLOGIES.names() if name not in ("file", "recorded")])
def test_every_graph_takes_one_and_two_clients_or_says_why_not(name):
    for count in (1, 2):
        try:
            assert all(max(pair) < count for pair in pairs(name, count))
        except BadValue as error:
            assert name in ("random_regular", "small_world"), error


def product(name: str, count: int, length: int) -> np.ndarray:
    graph, context, w = TOPOLOGIES.get(name).cls(), world(count), np.eye(count)
    for r in range(length):
        w = graph.edges(r, context, Perfect()).doubly(np.arange(count)).matrix @ w
    return w


@pytest.mark.parametrize(
    ("name", "count", "length"),
    [("one_peer_exponential", 8, 3), ("one_peer_exponential", 16, 4), ("hyper_cuboid", 12, 3), ("hyper_cuboid", 7, 1)],
)
def test_sequences_average_exactly_after_one_cycle(name, count, length):
    np.testing.assert_allclose(product(name, count, length), 1 / count, atol=1e-15)
    assert length == 1 or abs(product(name, count, length - 1) - 1 / count).max() > 0.01


@pytest.mark.parametrize(
    ("name", "options"),
    [("erdos_renyi", {"p": 0.3}), ("random_regular", {"degree": 3}), ("small_world", {"degree": 4, "p": 0.5})],
)
def test_random_graphs_are_functions_of_the_seed_and_if_dynamic_of_the_round(name, options):
    assert pairs(name, 10, **options) == pairs(name, 10, **options) == pairs(name, 10, r=5, **options)
    assert pairs(name, 10, **options) != pairs(name, 10, seed=1, **options)
    dynamic = {**options, "dynamic": True}
    assert pairs(name, 10, r=5, **dynamic) == pairs(name, 10, r=5, **dynamic) != pairs(name, 10, r=6, **dynamic)


def test_messages_are_lost_with_the_probability_of_their_sender_independently_on_every_edge():
    graph, link = TOPOLOGIES.get("complete").cls(), Bernoulli(q=[0.0, 0.5, 0.9] + [0.2] * 37)
    context = world(40)
    lost = np.mean([~graph.edges(r, context, link).arrives for r in range(40)], axis=0)
    sent = graph.pairs(0, context)[:, 0]
    for node, q in ((0, 0.0), (1, 0.5), (2, 0.9)):
        assert lost[sent == node].mean() == pytest.approx(q, abs=4 * (q * (1 - q) / (39 * 40)) ** 0.5)
        assert q == 0 or lost[sent == node].std() > 0.02


@pytest.mark.parametrize(
    ("name", "options", "count", "key"),
    [
        ("hypercube", {}, 6, "name"),
        ("grid", {"rows": 4}, 6, "rows"),
        ("random_regular", {"degree": 3}, 5, "degree"),
        ("random_regular", {"degree": 4}, 4, "degree"),
        ("small_world", {"degree": 6}, 5, "degree"),
        ("small_world", {"degree": 3}, 5, "degree"),
        ("erdos_renyi", {"p": 0.001}, 30, "name"),
    ],
)
def test_options_that_do_not_fit_are_refused_by_name(name, options, count, key):
    with pytest.raises(BadValue) as refused:
        pairs(name, count, **options)
    assert refused.value.key == key


def test_a_file_has_its_edges_and_is_refused_with_its_fault(tmp_path, monkeypatch):
    path = tmp_path / "edges.txt"
    path.write_text("0 1  # comment\n\n2 1\n")
    monkeypatch.setenv("HOME", str(tmp_path))
    assert pairs("file", 3, path="~/edges.txt") == both([(0, 1), (1, 2)])
    assert pairs("file", 3, path=str(path)) == both([(0, 1), (1, 2)])
    assert pairs("file", 3, path=str(path), one_way=True) == {(0, 1), (2, 1)}
    with pytest.raises(BadValue, match=r"edge 2 1.*clients 0\.\.1"):
        pairs("file", 2, path=str(path))
    path.write_text("0 1 2\n")
    with pytest.raises(BadValue, match="two client numbers a line"):
        pairs("file", 3, path=str(path))


def test_lines_of_a_record_are_those_of_its_rows():
    """Nothing, then nodes, then lost messages change."""
    ring, context = TOPOLOGIES.get("ring").cls(), world(6)
    some, everyone = np.array([0, 1, 4]), np.arange(6)
    for r, (nodes, q) in enumerate([(everyone, 0.0), (everyone, 0.0), (some, 0.0), (some, 0.5), (everyone, 0.5)]):
        edges = ring.edges(r, context, Bernoulli(q=q))
        new = Edges(6, edges.pairs, edges.arrives)
        line = graph_line(r, edges, nodes, "doubly", matrices(edges, nodes, "doubly"))
        assert line.endswith("\n")
        assert line == graph_line(r, new, nodes, "doubly", [new.doubly(nodes)])
        assert json.loads(line).keys() == {"round", "directed", "edges", "arrives", "nodes", "W"}
    assert ring.edges(7, context, Perfect()) is ring.edges(8, context, Perfect())


@pytest.mark.parametrize(
    ("graph", "count", "expected"),
    [
        ("ring", 8, {"gap": pytest.approx(1 - (1 + 2 * np.cos(2 * np.pi / 8)) / 3), "diameter": 4}),
        ("exponential", 16, {"gap": pytest.approx(2 / (1 + 4)), "diameter": 4}),  # Ying et al. 2021, prop. 1
        ("complete", 5, {"gap": pytest.approx(1.0), "diameter": 1}),
        ("hypercube", 8, {"gap": pytest.approx(2 / 4), "diameter": 3}),
        ("ring", 5, {"edges": 5, "degree": 2, "diameter": 2}),
        ("directed_ring", 5, {"edges": 5, "degree": 1, "diameter": 4}),
        ("star", 5, {"edges": 4, "degree": "1..4", "diameter": 2}),
        # every node sends to one
        ("0 1\n1 0\n2 1\n3 2\n4 2", 5, {"edges": 5, "degree": 1, "diameter": "not connected"}),
        ("0 1\n0 2\n0 3\n1 4\n2 4\n3 4\n4 0", 5, {"edges": 7, "degree": "1..3", "diameter": 3}),
    ],
)
def test_numbers_of_a_graph_are_those_of_the_literature_or_counted(tmp_path, graph, count, expected):
    """A degree is the number of nodes to which a node sends."""
    named, path = graph in TOPOLOGIES.names(), tmp_path / "edges.txt"
    path.write_text(graph)
    options = {} if named else {"path": str(path), "one_way": True}
    made = TOPOLOGIES.get(graph if named else "file").cls(**options)
    found = numbers(made, world(count), "doubly" if named else "column")
    assert found | expected == found
    assert found["nodes"] == count


def test_the_mixing_of_a_run_counts_nodes_and_messages_that_are_missing():
    ring, context = TOPOLOGIES.get("ring").cls(), world(8)

    def rate(graph, participation, q=0.0):
        return mixing_rate(graph, context, "doubly", participation, Bernoulli(q=q))

    assert rate(ring, Full()) == pytest.approx(numbers(ring, context, "doubly")["gap"])
    assert rate(TOPOLOGIES.get("one_peer_exponential").cls(), Full()) == 1.0
    assert 0 <= rate(ring, Full(), q=0.5) < rate(ring, Full())


def seconds(ends, floats, count=4, **options) -> list[float]:
    graph = TOPOLOGIES.get("complete").cls(**options)
    graph.check(world(count))
    return graph.seconds(np.array(ends), np.array(floats, dtype=float), world(count)).tolist()


def test_a_message_takes_the_longer_latency_and_the_smaller_bandwidth_of_its_ends(tmp_path):
    """A server (-1) has neither, so that its client's values count; values of edges and of a file come first."""
    ends, floats = [[0, 1], [3, 0], [-1, 2], [2, -1], [1, 2]], [4, 8, 12, 0, 20]
    latency, bandwidth = [0.5, 1.0, 2.0, 0.25], [4.0, 8.0, 2.0, 16.0]
    assert seconds(ends, floats) == [0.0] * 5
    assert seconds(ends, floats, latency=latency) == [1.0, 0.5, 2.0, 2.0, 2.0]
    assert seconds(ends, floats, bandwidth=bandwidth) == [1.0, 2.0, 6.0, 0.0, 10.0]
    assert seconds(ends, floats, latency=latency, bandwidth=bandwidth) == [2.0, 2.5, 8.0, 2.0, 12.0]
    between = {"edge_latency": 3.0, "edge_bandwidth": 4.0}
    assert seconds(ends, floats, latency=latency, bandwidth=bandwidth, **between) == [4.0, 5.0, 8.0, 2.0, 8.0]
    path = tmp_path / "links.txt"
    path.write_text("2 1 7 10  # in either order\n0 3 0 inf\n")
    assert seconds(ends, floats, latency=latency, links=str(path)) == [1.0, 0.0, 2.0, 2.0, 9.0]
    path.write_text("# none\n")
    assert seconds(ends, floats, latency=latency, links=str(path)) == [1.0, 0.5, 2.0, 2.0, 2.0]


@pytest.mark.parametrize("key", ["latency", "bandwidth"])
def test_values_of_links_do_not_change_within_a_run(key):
    with pytest.raises(BadValue, match=f"{key}.phases"):
        seconds([[0, 1]], [1], **{key: {"phases": [{"until": 0.5, "value": 1}, {"value": 2}]}})


def test_edges_drawn_at_random_have_their_values_in_both_directions_and_each_its_own():
    there = [[0, 1], [1, 2], [0, 2], [2, 3]]
    drawn = seconds(there, [0] * 4, edge_latency={"uniform": [1, 2]})
    assert seconds([edge[::-1] for edge in there], [0] * 4, edge_latency={"uniform": [1, 2]}) == drawn
    assert len(set(drawn)) == 4
    assert all(1 <= value <= 2 for value in drawn)


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("0 4 1 1", r"edge 0 4, but must be edges between clients 0\.\.3"),
        ("-1 2 1 1", "edge -1 2, but must be client numbers from 0"),
        ("0 1 inf 1", "edge 0 1, but must be seconds of at least 0"),
        ("0 1 -0.1 1", "edge 0 1, but must be seconds of at least 0"),
        ("0 1 1 0", "edge 0 1, but must be floats a second above 0"),
        ("0 1 1 1\n2 3 1 1\n3 2 1 1", "edge 2 3, but must be one line for an edge"),
        ("0 1 1", "two client numbers, seconds and floats a second: not enough values"),
    ],
)
def test_links_are_refused_by_their_line(tmp_path, text, says):
    path = tmp_path / "links.txt"
    path.write_text(text)
    with pytest.raises(BadValue, match=says):
        seconds([[0, 1]], [1], links=str(path))
    path.write_text("0 3 0 0.001")  # the limits themselves
    assert seconds([[3, 0]], [1], links=str(path)) == [1000.0]


def test_the_edges_of_links_are_those_of_a_graph_that_does_not_change(tmp_path):
    path = tmp_path / "links.txt"
    path.write_text("0 2 1 1")
    with pytest.raises(BadValue, match="edge 0 2, but must be edges of the graph"):
        TOPOLOGIES.get("ring").cls(links=str(path)).check(world(4))
    TOPOLOGIES.get("one_peer_exponential").cls(links=str(path)).check(world(4))


@pytest.mark.parametrize(
    ("edges", "options", "says"),
    [
        ([[0, 3]], {}, r"with client 3, but must be edges between clients 0\.\.2"),
        ([[0, 2]], {"latency": [1.0, 2.0]}, "latency=2 entries, but must be 3, one per client"),
        ([[0, 2], [1, 2]], {}, "2 edges, but 1 entries of arrives"),
        ([[0, 2]], {}, None),
        ([], {}, None),
    ],
)
def test_a_record_fits_the_clients_of_the_run(tmp_path, edges, options, says):
    path = tmp_path / "topology.jsonl"
    rows = [{"round": r, "directed": True, "edges": edges, "arrives": [True] * min(len(edges), 1)} for r in range(10)]
    path.write_text("\n".join(map(json.dumps, rows)))
    if says is None:
        assert pairs("recorded", 3, path=str(path), **options) == set(map(tuple, edges))
        return
    with pytest.raises(BadValue, match=says):
        pairs("recorded", 3, path=str(path), **options)
    path.write_text(json.dumps({"round": 0, "directed": False, "edges": [[0, 1], [1, 0]], "arrives": [True, True]}))
    with pytest.raises(BadValue, match="without round 1"):
        pairs("recorded", 3, path=str(path))


@dataclass(kw_only=True)
class Fading(Graph):
    """The complete directed graph in round 0, a path later; or, reversed, the other way round."""

    changes, directed = True, True
    reverse: bool = False

    def graph(self, r, world):
        path = nx.path_graph(world.count, create_using=nx.DiGraph)
        return path if (r > 0) is not self.reverse else nx.complete_graph(world.count, nx.DiGraph)


def test_what_a_graph_that_changes_has_in_numbers_and_whether_it_is_balanced_are_those_of_round_0():
    assert [len(Fading().pairs(r, world(4))) for r in (0, 1, 0)] == [12, 3, 12]
    found = numbers(Fading(), world(4), "doubly")
    assert (found["edges"], found["diameter"], found["gap"]) == (12, 1, pytest.approx(1.0))
    assert Fading().balanced(world(4))
    assert not Fading(reverse=True).balanced(world(4))


@pytest.mark.parametrize(
    ("edges", "balanced"),
    [
        ("0 1\n1 2\n2 0", True),
        ("0 1\n1 0\n0 2\n2 3\n3 0", True),  # two cycles through node 0, which has two edges in and two out
        ("1 2\n2 1\n3 3", True),  # nodes without edges
        ("0 1\n1 2\n2 0\n0 2", False),
        ("0 1\n1 2\n2 3", False),
    ],
)
def test_a_graph_is_balanced_if_each_node_has_as_many_edges_in_as_out(tmp_path, edges, balanced):
    path = tmp_path / "edges.txt"
    path.write_text(edges)
    assert TOPOLOGIES.get("file").cls(path=str(path), one_way=True).balanced(world(4)) is balanced
