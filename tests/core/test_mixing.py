"""Mixing matrices: sums of rows and columns whichever nodes work and messages arrive; sums in a fixed order."""

import networkx as nx
import numpy as np
import pytest
import torch

from raylfl.core.mixing import DENSE, Edges, Mixing, Weights, matrices
from raylfl.core.reduce import tree_sum
from raylfl.errors import RaylflError
from tests.algorithms.graph_rounds import N, edges_of, random_rounds
from tests.oracles import graphs

CIRCULANT = np.array([[i, (i + k) % N] for i in range(N) for k in (1, 2, 4)])  # as many edges in as out
# two cycles through node 0, which alone has two edges in and two out
EIGHT = np.array([*([i, (i + 1) % 3] for i in range(3)), [0, 3], *([i, (i + 1) % N] for i in range(3, N))])


def rounds(seed: int, directed: bool = False):
    for r in random_rounds(seed, directed):
        yield r, np.array(r.nodes, dtype=np.int64)


def whole(matrix: np.ndarray, nodes: np.ndarray) -> np.ndarray:
    """The matrix on all N nodes: the identity where a node does not work."""
    out = np.eye(N)
    out[np.ix_(nodes, nodes)] = matrix
    return out


@pytest.mark.parametrize("seed", range(5))
def test_weights_are_their_definitions_entry_by_entry(seed):
    for r, nodes in rounds(seed):
        np.testing.assert_allclose(whole(edges_of(r).doubly(nodes).matrix, nodes), graphs.metropolis(r, N))
    for r, nodes in rounds(seed, directed=True):
        np.testing.assert_allclose(whole(edges_of(r).row(nodes).matrix, nodes), graphs.row_stochastic(r, N))
        np.testing.assert_allclose(whole(edges_of(r).column(nodes).matrix, nodes), graphs.column_stochastic(r, N))


@pytest.mark.parametrize("weights", ["auto", "metropolis", "max_degree", "lazy"])
@pytest.mark.parametrize("directed", [False, True])
@pytest.mark.parametrize("graph", [CIRCULANT, EIGHT])
def test_doubly_stochastic_weights_stay_so_when_nodes_and_messages_are_missing(weights: Weights, directed, graph):
    rng = np.random.default_rng(0)
    for seed in range(20):
        nodes = np.sort(rng.choice(N, rng.integers(1, N + 1), replace=False))
        arrives = rng.random(len(graph)) > (0.3 if seed else 0)
        edges = Edges(N, graph, arrives, directed, weights)
        if not directed:
            back = graph[:, ::-1]
            pairs = np.unique(np.concatenate([graph, back]), axis=0)
            edges = Edges(N, pairs, rng.random(len(pairs)) > 0.3, directed, weights)
        w = edges.doubly(nodes).matrix
        assert (w >= -1e-15).all()
        np.testing.assert_allclose(w.sum(axis=0), 1)
        np.testing.assert_allclose(w.sum(axis=1), 1)


def test_doubly_stochastic_weights_of_an_unbalanced_directed_graph_are_refused_by_node():
    pairs = np.concatenate([CIRCULANT, [[3, 0]]])
    for arrives in (np.ones(len(pairs), dtype=bool), np.arange(len(pairs)) != 5):
        edges = Edges(N, pairs, arrives, directed=True)
        with pytest.raises(RaylflError, match="4 edges into node 0 and 3 out of it"):
            edges.doubly(np.arange(N))
        edges.column(np.arange(N))


def test_over_a_directed_graph_messages_go_one_way_while_nothing_is_missing():
    edges = Edges(N, CIRCULANT, np.ones(len(CIRCULANT), dtype=bool), directed=True)
    w = edges.doubly(np.arange(N)).matrix
    assert w[1, 0] == 0.25
    assert w[0, 1] == 0
    assert len(edges.messages(np.arange(N), "doubly")) == len(CIRCULANT)
    half = edges.doubly(np.arange(N - 1)).matrix
    assert half[1, 0] == half[0, 1] == 0.125
    np.testing.assert_array_equal(half, half.T)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_a_plain_sum_adds_its_neighbours_rows_as_a_tree(dtype):
    """Push-pull therefore has the bits of FOCUS, whose server adds uploads by `tree_sum`."""
    rows = torch.randn(6, 1000, generator=torch.Generator().manual_seed(0), dtype=dtype)
    to_server = Mixing(np.array([1.0, 0, 0, 0, 0, 0]), np.arange(1, 6), np.zeros(5, dtype=np.int64), np.ones(5))
    assert torch.equal(to_server(rows)[0], rows[0] + tree_sum(rows[1:]))
    assert not to_server(rows)[1:].any()


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_a_row_without_own_weight_takes_nothing_of_itself(dtype):
    """Two nodes that exchange their rows, and one that keeps its own: no 0 times infinity, and no -0."""
    swap = Mixing(np.array([0.0, 0.0, 1.0]), np.array([1, 0]), np.array([0, 1]), np.ones(2))
    rows = torch.tensor([[torch.inf, -1.0], [2.0, 0.0], [3.0, -4.0]], dtype=dtype)
    mixed = swap(rows)
    assert torch.equal(mixed, rows[[1, 0, 2]])
    assert not torch.signbit(mixed[0]).any()


def test_degrees_of_the_graph_and_lazy_weights_have_their_closed_forms():
    """A path 0-1-2-3: W = I - L / (1 + 2) by the largest degree, and lazy: (I + Metropolis) / 2."""
    path = np.array([[0, 1], [1, 0], [1, 2], [2, 1], [2, 3], [3, 2]])
    laplacian = np.diag([1.0, 2, 2, 1]) - np.eye(4, k=1) - np.eye(4, k=-1)

    def of(weights: Weights, nodes=(0, 1, 2, 3)) -> np.ndarray:
        return Edges(4, path, np.ones(6, dtype=bool), False, weights).doubly(np.array(nodes)).matrix

    np.testing.assert_allclose(of("max_degree"), np.eye(4) - laplacian / 3)
    np.testing.assert_allclose(of("max_degree", (0, 1)), [[2 / 3, 1 / 3], [1 / 3, 2 / 3]])  # not of what is left of it
    np.testing.assert_allclose(of("metropolis", (0, 1)), [[1 / 2, 1 / 2], [1 / 2, 1 / 2]])
    np.testing.assert_allclose(of("lazy"), (np.eye(4) + of("metropolis")) / 2)


FAMILIES: dict[str, tuple[Weights, ...]] = {
    "doubly": ("auto", "metropolis", "max_degree", "lazy", "row_stochastic"),
    "column": ("auto", "column_stochastic", "metropolis", "max_degree", "lazy"),
    "pair": ("auto", "pair", "metropolis", "max_degree", "lazy"),
}


@pytest.mark.parametrize(("family", "weights"), [(f, w) for f, every in FAMILIES.items() for w in every])
@pytest.mark.parametrize("directed", [False, True])
def test_messages_are_the_edges_of_working_nodes_and_the_entries_of_their_matrices(family, weights, directed):
    """A node's new vector needs the vectors of the columns of its row, each once, whatever the weights."""
    rng = np.random.default_rng(0)
    both = np.array([[i, (i + k) % N] for i in range(N) for k in ((1, 2, N - 2) if directed else (1, N - 1, 2, N - 2))])
    for missing in (0.0, 0.0, 0.3, 0.3, 0.3):
        nodes = np.flatnonzero(rng.random(N) >= missing)
        edges = Edges(N, both, rng.random(len(both)) >= missing, directed, weights)
        wanted = {(a, b) for a, b in both.tolist() if a in nodes and b in nodes}
        for mixing in matrices(edges, nodes, family):
            into, out = np.nonzero(mixing.matrix - np.diag(np.diag(mixing.matrix)))
            wanted |= set(zip(nodes[out].tolist(), nodes[into].tolist(), strict=True))
        sent = [tuple(pair) for pair in nodes[edges.messages(nodes, family)].tolist()]
        assert len(sent) == len(set(sent))
        assert set(sent) == wanted


def test_the_same_edges_and_nodes_have_the_same_matrices_as_objects():
    pairs = np.array([[i, (i + k) % 6] for i in range(6) for k in (1, 5)])
    edges = Edges(6, pairs, np.ones(12, dtype=bool))
    everyone, some, shown = np.arange(6), np.array([0, 1, 3]), repr(edges)
    first = matrices(edges, everyone, "pair")
    assert matrices(edges, some, "pair")[0].matrix.shape == (3, 3)
    assert matrices(edges, everyone, "doubly")[0].matrix.shape == (6, 6)
    assert matrices(edges, np.arange(6), "pair") is first
    assert repr(edges) == shown


@pytest.mark.parametrize("seed", range(5))
def test_components_are_the_strongly_connected_parts(seed):
    """networkx finds the same parts; for doubly stochastic weights a gap of 0 means several parts."""
    for r, nodes in rounds(seed, directed=True):
        for mixing in (edges_of(r).row(nodes), edges_of(r).column(nodes), edges_of(r).doubly(nodes)):
            graph = nx.DiGraph(np.argwhere(mixing.matrix.T > 0).tolist())
            graph.add_nodes_from(range(len(nodes)))
            assert mixing.components == nx.number_strongly_connected_components(graph)
        if len(nodes) > 1:
            w = edges_of(r).doubly(nodes)
            assert (w.gap < 1e-12) == (w.components > 1)


def test_the_gap_is_that_of_textbooks():
    ring = np.array([[i, (i + k) % 8] for i in range(8) for k in (1, 7)])
    w = Edges(8, ring, np.ones(16, dtype=bool)).doubly(np.arange(8))
    assert w.gap == pytest.approx(1 - (1 + 2 * np.cos(2 * np.pi / 8)) / 3)
    assert Edges.complete(8).doubly(np.arange(8)).gap == pytest.approx(1.0)
    assert Edges(8, ring, np.ones(16, dtype=bool)).doubly(np.array([0, 1, 4])).gap == 0.0


@pytest.mark.parametrize("degree", [3, DENSE + 2])
@pytest.mark.parametrize(("width", "dtype"), [(7, torch.float32), (40_000, torch.float32), (40, torch.float64)])
def test_a_row_has_the_same_bits_in_every_part_of_a_matrix(degree, width, dtype):
    """Blocks of the nodes, in any order, each from no more rows than it needs, in any order."""
    rng, count = np.random.default_rng(degree), DENSE + 8
    pairs = np.array([[i, (i + k) % count] for i in range(count) for k in range(1, degree + 1)])
    w = Edges(count, pairs, rng.random(len(pairs)) < 0.97, True, "auto").column(np.arange(count))
    assert w.dense == (degree > DENSE)
    rows = torch.randn(count, width, generator=torch.Generator().manual_seed(1), dtype=dtype)
    whole_rows = w(rows)
    torch.testing.assert_close(whole_rows, torch.from_numpy(w.matrix).to(dtype) @ rows, rtol=1e-4, atol=1e-5)
    for targets in np.array_split(rng.permutation(count), 3):
        needs = rng.permutation(w.needs(targets))
        assert set(targets) <= set(needs)
        part = w.rows_of(targets, needs)(rows[torch.from_numpy(needs)])
        assert torch.equal(part, whole_rows[torch.from_numpy(targets)])
