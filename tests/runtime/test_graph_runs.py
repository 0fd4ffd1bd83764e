"""Whole runs of methods without a server: bits, resumes, records and their replay, costs, refusals."""

import csv
import json
from collections import Counter
from functools import partial
from itertools import pairwise
from typing import Any

import numpy as np
import pytest
import torch

from raylfl.config.load import load_config
from raylfl.errors import BadConfig
from raylfl.experiment.assemble import assemble
from raylfl.runtime.session import rows_in_process
from raylfl.testing.runs import RandomWorkers, carry_out, killed, outcome, strike
from tests.shares import also

PROBLEM: dict[str, Any] = {
    "base": ["data/dense_quadratics", "model/dense_quadratic"],
    "rounds": 6,
    "dtype": "float64",
    "data": {"init_args": {"num_clients": 8, "dim": 3}},
    "partition": {"name": "natural"},
    "participation": {"name": "bernoulli", "p": 0.7},
    "link": {"name": "bernoulli", "q": 0.2},
    "topology": {"name": "exponential"},
    "algorithm": {"name": "push_pull"},
    "local": {"batch_size": "full", "steps": 2, "lr": 0.05},
    "eval": {"every": 0},
    "checkpoint": {"every": 2},
    "runtime": {"backend": "local", "vectorize": "never", "step": "autograd"},
    "logging": {"report": False},
}


def rows(folder, name: str) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (folder / name).read_text().splitlines()]


@pytest.mark.parametrize("dtype", ["float32", also("float64")])
def test_a_thousand_nodes_mixed_at_once_or_block_by_block_have_the_same_bits(tmp_path, dtype):
    """One call mixes all messages in process, and one call per block on workers; sums are fused or pairwise."""
    settings = ["data.init_args.num_clients=1000", "rounds=1", f"dtype={dtype}", "checkpoint.every=0"]
    settings += ["runtime={vectorize: auto, step: auto}"]
    carry_out(PROBLEM, tmp_path / "once", settings)
    carry_out(PROBLEM, tmp_path / "blocks", settings, rows=partial(rows_in_process, make=RandomWorkers))
    assert outcome(tmp_path / "once") == outcome(tmp_path / "blocks")


@pytest.mark.parametrize("algorithm", ["push_pull", "dsgd", also("sgp")])
def test_a_record_has_the_matrices_and_replays_to_the_same_bits(tmp_path, algorithm):
    carry_out(PROBLEM, tmp_path / "first", [f"algorithm={algorithm}", "rounds=3"])
    record = tmp_path / "first" / "topology.jsonl"
    replay = [
        f"topology={{name: recorded, path: {record}}}",
        f"participation={{name: trace, path: {tmp_path / 'first' / 'participation.jsonl'}}}",
        "link=perfect",
        f"algorithm={algorithm}",
        "rounds=3",
    ]
    carry_out(PROBLEM, tmp_path / "again", replay)
    first, again = outcome(tmp_path / "first"), outcome(tmp_path / "again")
    assert first["params"] == again["params"]
    for row in rows(tmp_path / "first", "topology.jsonl"):
        for name, axis in {"push_pull": (("R", 1), ("C", 0)), "dsgd": (("W", 0), ("W", 1)), "sgp": (("C", 0),)}[
            algorithm
        ]:
            matrix = np.zeros((8, 8))
            matrix[row["nodes"], row["nodes"]] = row[name]["own"]
            for i, j, weight in row[name]["entries"]:
                assert matrix[i, j] == 0  # each pair once
                matrix[i, j] = weight
            np.testing.assert_allclose(matrix.sum(axis=axis)[row["nodes"]], 1)


def counted(folder) -> dict[tuple[str, str], tuple[int, float]]:
    """edges.csv: (messages, floats) by (from, to)."""
    with (folder / "edges.csv").open() as file:
        return {(r["from"], r["to"]): (int(r["messages"]), float(r["floats"])) for r in csv.DictReader(file)}


@pytest.mark.parametrize("algorithm", ["sgp", also("push_diging"), also("dsgd"), "push_pull"])
def test_consensus_and_distances_are_measured_from_the_model_that_is_evaluated(tmp_path, algorithm):
    """For push-sum x is the mean of the undivided rows, which differs from the mean of the nodes' models."""
    carry_out(PROBLEM, tmp_path / "run", [f"algorithm={algorithm}", "eval.nodes=true", "eval.every=1", "rounds=3"])
    final = torch.load(tmp_path / "run" / "final.pt", weights_only=True)
    assert final["nodes"].shape == (8, 3)
    away = (final["nodes"] - final["params"]).norm(dim=1)
    optimum = torch.from_numpy(assemble(load_config(PROBLEM)).optimum.x)
    distances = ((final["nodes"] - optimum).norm(dim=1) / optimum.norm()).tolist()
    last = rows(tmp_path / "run", "metrics.jsonl")[-1]
    assert last["algo/consensus_error"] == pytest.approx(float(away.square().mean().sqrt()), rel=1e-9)
    assert last["global/worst_distance"] == pytest.approx(max(distances))
    for name, expected in (("distance", distances), ("from_mean", away.tolist())):
        found = [last["per_client"][f"nodes/{name}"][str(i)] for i in range(8)]
        assert found == pytest.approx(expected, rel=1e-9)
    apart = (final["nodes"].mean(dim=0) - final["params"]).norm() > 1e-6 * away.max()
    assert bool(apart) == (algorithm in ("sgp", "push_diging"))


@pytest.mark.parametrize(
    ("algorithm", "weights", "floats", "exchange"),
    [
        ("dsgd", "row_stochastic", 3, False),
        ("dsgd", "metropolis", 3, True),
        ("push_pull", "auto", 6, False),
        also("push_pull", "metropolis", 6, True),
        also("sgp", "auto", 4, False),
        ("sgp", "max_degree", 4, True),
        ("push_diging", "lazy", 7, True),
    ],
)
@pytest.mark.parametrize("graph", [also("directed_ring"), "exponential"])
def test_floats_of_a_directed_graph_are_those_of_the_vectors_that_are_mixed(
    tmp_path, graph, algorithm, weights, floats, exchange
):
    """Nodes absent, messages lost: an exchange along an edge needs both vectors, other weights only the sender's."""
    settings = [f"topology={{name: {graph}, weights: {weights}}}", f"algorithm={algorithm}"]
    carry_out(PROBLEM, tmp_path / "run", [*settings, "local.steps=1", "link.q=0.3"])
    total, node, link, along = 0, 0, 0, Counter[tuple[int, int]]()
    for row, metrics in zip(
        rows(tmp_path / "run", "topology.jsonl"), rows(tmp_path / "run", "metrics.jsonl"), strict=True
    ):
        working = set(row["nodes"])
        edges = [(a, b, ok) for (a, b), ok in zip(row["edges"], row["arrives"], strict=True) if {a, b} <= working]
        sent = {(a, b) for a, b, _ in edges}
        if exchange and not (len(working) == 8 and all(row["arrives"])):
            sent |= {(b, a) for a, b, ok in edges if ok}
        along.update(sent)
        total += floats * len(sent)
        node += floats * max(Counter(i for pair in sent for i in pair).values(), default=0)
        link += floats * max(Counter(frozenset(pair) for pair in sent).values(), default=0)
        assert metrics["cost/peer_floats"] == total
        assert (metrics["cost/busiest_node_floats"], metrics["cost/busiest_link_floats"]) == (node, link)
    sent = {(str(a), str(b)): (n, float(floats * n)) for (a, b), n in along.items()}
    assert counted(tmp_path / "run") == sent
    both = Counter[frozenset[str]]()
    for pair, n in along.items():
        both[frozenset(map(str, pair))] += floats * n
    busiest = json.loads((tmp_path / "run" / "summary.json").read_text())["busiest_link"]
    assert busiest["floats"] == both[frozenset(busiest["between"])] == max(both.values())


def test_every_nodes_model_is_evaluated_where_asked(tmp_path):
    """The metrics equal the accuracy of the module at each node's parameters."""
    settings = ["algorithm=dsgd", "topology=ring", "eval.nodes=true", "eval.every=2"]
    config = {"base": ["data/digits", "model/logistic"], "num_clients": 4, "rounds": 2, "local": {"lr": 0.5}}
    carry_out(config, tmp_path / "run", [*settings, "runtime.backend=local", "partition={name: classes, classes: 3}"])
    final = torch.load(tmp_path / "run" / "final.pt", weights_only=True)
    last = rows(tmp_path / "run", "metrics.jsonl")[-1]
    test = assemble(load_config(tmp_path / "run" / "config.yaml")).setup.test
    images, labels = (torch.as_tensor(a) for a in test.arrays)
    expected = []
    for x in final["nodes"]:
        weight, bias = x[:-10].view(10, -1), x[-10:]
        guess = (images.flatten(1).to(x) / 16 @ weight.T + bias).argmax(dim=1)
        expected.append(float((guess == labels).double().mean()))
    assert [last["per_client"]["nodes/accuracy"][str(i)] for i in range(4)] == pytest.approx(expected, abs=1e-6)
    found = (last["nodes/accuracy_min"], last["nodes/accuracy_mean"], last["nodes/accuracy_max"])
    assert found == pytest.approx((min(expected), np.mean(expected), max(expected)), abs=1e-6)
    assert all(name.startswith("nodes/") for name in last["per_client"])  # the rest is asked for by eval.per_client


@pytest.mark.parametrize(
    ("algorithm", "node", "link", "seconds"),
    [
        ("fedavg", 8 * 6, 6, 2 * 8.0 + 6 / 1.0),  # the server; a client's link; the last client is the slowest
        ("sfl", 6, 3, None),
        ("dsgd", 6 * 3, 6, 8.0 + 6 / 1.0),  # three messages out and three in; a link carries two
    ],
)
def test_star_chain_and_graph_have_one_cost_model(tmp_path, algorithm, node, link, seconds):
    """Client i's latency is i + 1 seconds, and its bandwidth 8 - i floats a second; local steps take no time."""
    latency, rate = [float(i + 1) for i in range(8)], [float(8 - i) for i in range(8)]
    settings = [f"topology.latency={latency}", f"topology.bandwidth={rate}", "system.seconds_per_step=1e-9"]
    settings += ["participation=full", "link=perfect", "rounds=1", "topology=hypercube", f"algorithm={algorithm}"]
    carry_out(PROBLEM, tmp_path / "run", settings)
    row = rows(tmp_path / "run", "metrics.jsonl")[0]
    assert (row["cost/busiest_node_floats"], row["cost/busiest_link_floats"]) == (node, link)
    if seconds is None:  # in the order of the round
        path = [-1, *rows(tmp_path / "run", "participation.jsonl")[0]["cohort"], -1]
        ends = [[i for i in pair if i >= 0] for pair in pairwise(path)]
        seconds = sum(max(latency[i] for i in pair) + 3 / min(rate[i] for i in pair) for pair in ends)
    assert row["time/virtual"] == pytest.approx(seconds, abs=1e-6)


def test_a_ring_of_four_waits_for_its_slowest_link(tmp_path):
    """Links 0-1 and 2-3 from a file, the others by their clients: latency i seconds, 4 - i floats a second."""
    path = tmp_path / "links.txt"
    path.write_text("1 0 0.5 2  # in either order\n2 3 7 inf\n")
    ring = ["algorithm=dsgd", "topology=ring", "participation=full", "link=perfect", "rounds=2", "local.steps=3"]
    ring += ["data.init_args.num_clients=4", "topology.latency=[0, 1, 2, 3]", "topology.bandwidth=[4, 3, 2, 1]"]
    d = 3
    took = {(0, 1): 0.5 + 2 * d / 2, (1, 2): 2 + 2 * d / 2, (2, 3): 7.0, (0, 3): 3 + 2 * d / 1}  # both ways
    speeds = [1.0, 9.0, 2.0, 0.5]  # of a local step: node 1 works 27 s, and waits for 1-2
    system = ["system.bandwidth=12", f"system.seconds_per_step={speeds}"]  # a node passes 4 d floats: a second
    carry_out(PROBLEM, tmp_path / "run", [*ring, f"topology.links={path}", *system])
    slowest = [max(s for edge, s in took.items() if i in edge) for i in range(4)]
    expected = max(3 * speed + wait for speed, wait in zip(speeds, slowest, strict=True))
    assert expected == 27 + 5
    expected += 4 * d / 12
    last = rows(tmp_path / "run", "metrics.jsonl")[-1]
    assert last["time/virtual"] == pytest.approx(2 * expected)
    assert last["cost/busiest_link_floats"] == 2 * 2 * d


@pytest.mark.parametrize(
    ("algorithm", "own"), [("fedavg", "star"), ("sfl", "ring"), ("dsgd", "star"), ("dsgd", "ring")]
)
def test_star_and_ring_are_names_of_what_methods_do_anyway(algorithm, own):
    experiment = assemble(load_config(PROBLEM, [f"algorithm={algorithm}", f"topology={own}"]))
    assert not any("does not apply" in warning for warning in experiment.warnings)
    warned = assemble(load_config(PROBLEM, ["algorithm=fedavg"])).warnings
    assert "fedavg does not run on a graph: topology exponential does not apply; its own is star" in warned


@pytest.mark.parametrize("algorithm", ["fedavg", "sfl", "centralized"])
def test_the_floats_along_each_link_of_star_and_chain_are_on_record(tmp_path, algorithm):
    """A star sends each sampled client's model down and its update up, a chain the hops of each round."""
    carry_out(PROBLEM, tmp_path / "run", [f"algorithm={algorithm}"])
    sent = Counter()
    for row in rows(tmp_path / "run", "participation.jsonl"):
        clients = ["server", *map(str, row["cohort"]), "server"]
        if algorithm == "sfl" and row["cohort"]:
            sent.update(pairwise(clients))
        elif algorithm == "fedavg":
            sent.update([("server", i) for i in clients[1:-1]] + [(i, "server") for i in clients[1:-1]])
    if algorithm == "centralized":
        assert not (tmp_path / "run" / "edges.csv").exists()
    else:
        assert counted(tmp_path / "run") == {ends: (n, 3.0 * n) for ends, n in sent.items()}


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        (["algorithm=dsgd", "topology.weights=pair"], "topology.weights=pair, but must be one of auto, metropolis"),
        (["algorithm=sgp", "topology.weights=row_stochastic"], "topology.weights=row_stochastic, but must be one of"),
        (["algorithm=dsgd", "topology=hypercube", "data.init_args.num_clients=6"], "need|hypercube with 6 clients"),
        (["algorithm=dsgd", "topology.latency=[1, 2]"], "topology.latency=2 entries, but must be 8, one per client"),
        (
            ["algorithm=dsgd", "topology.edge_latency=[1, 2]"],
            r"topology.edge_latency=\[1, 2\], but must be a number, {u",
        ),
        (["algorithm=dsgd", "topology.edge_latency={uniform: [2, 1]}"], "topology.edge_latency.uniform="),
        (["algorithm=dsgd", "topology.edge_bandwidth=0"], "topology.edge_bandwidth=0, but must be a number above 0"),
        (["algorithm=fedavg", "topology.bandwidth=0"], "topology.bandwidth=0, but must be a number above 0"),
        (["algorithm=dsgd", "local.buffers=local"], "local.buffers=local, but must be average"),
    ],
)
def test_what_cannot_run_on_a_graph_is_refused(settings, message):
    with pytest.raises(BadConfig, match=message):
        assemble(load_config(PROBLEM, settings))


@pytest.mark.parametrize(
    ("lines", "settings", "message"),
    [
        ("0 1 1", ["algorithm=dsgd"], "topology.links=.*lines of two client numbers, seconds and floats a second"),
        ("0 2 1 1", ["algorithm=dsgd"], "with edge 0 2, but must be edges of the graph"),
        ("0 1 1 1", ["algorithm=fedavg"], "but must be null: fedavg sends nothing along the edges of a graph"),
        ("0 1 1 1", ["algorithm=sfl"], "but must be null: sfl sends nothing along the edges of a graph"),
    ],
)
def test_links_that_do_not_fit_are_refused_by_their_edge(tmp_path, lines, settings, message):
    path = tmp_path / "links.txt"
    path.write_text(lines + "\n")
    with pytest.raises(BadConfig, match=message):
        assemble(load_config(PROBLEM, ["topology=ring", f"topology.links={path}", *settings]))


def test_an_unbalanced_directed_graph_is_for_push_methods_only(tmp_path):
    path = tmp_path / "edges.txt"
    path.write_text("".join(f"{i} {(i + 1) % 8}\n" for i in range(8)) + "0 4\n")
    file = f"topology={{name: file, path: {path}, one_way: true}}"
    for push in ("sgp", "push_diging", "push_pull"):
        assemble(load_config(PROBLEM, [file, f"algorithm={push}"]))
    with pytest.raises(BadConfig, match="dsgd needs doubly stochastic weights"):
        assemble(load_config(PROBLEM, [file, "algorithm=dsgd"]))
    experiment = assemble(load_config(PROBLEM, [file, "algorithm=dsgd", "topology.weights=row_stochastic"]))
    assert any("another weighted sum" in warning for warning in experiment.warnings)
    path.write_text(path.read_text() + "4 0\n")
    assemble(load_config(PROBLEM, [file, "algorithm=dsgd"]))


# -- stopped between checkpoints and resumed -------------------------------------------------------------------------


def state(folder) -> dict[str, bytes]:
    """The tensors of the last checkpoint, among them all rows of all nodes, as bytes."""
    blob = torch.load(folder / "checkpoints" / "round_000006" / "server.pt", weights_only=True)
    parts = {**blob["server"], **blob["links"]}
    return {name: rows.numpy().tobytes() for name, rows in parts.items()}


@pytest.mark.parametrize("name", ["push_pull", also("led")])
def test_a_stopped_run_resumes_with_the_rows_of_every_node_on_a_changing_graph(tmp_path, name):
    """Nodes come and go, messages are lost; rounds 3 and 4 are lost with the process. Every method: test_resume.py."""
    settings = [f"algorithm={name}", "topology={name: erdos_renyi, p: 0.4, dynamic: true}", "checkpoint.every=3"]
    carry_out(PROBLEM, tmp_path / "clean", settings)
    killed(lambda: carry_out(PROBLEM, tmp_path / "stopped", settings, fault=strike("log", 4)))
    carry_out(PROBLEM, tmp_path / "stopped", settings, resume=True)
    clean, stopped = tmp_path / "clean", tmp_path / "stopped"
    assert {k for k in state(clean) if k.startswith("node_")} >= {"node_x"}
    assert state(stopped) == state(clean)
    assert outcome(stopped) == outcome(clean)
    for record in ("topology.jsonl", "edges.csv"):
        assert (stopped / record).read_text() == (clean / record).read_text()
