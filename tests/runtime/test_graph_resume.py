"""Every method without a server, stopped between checkpoints and resumed: rows, states and records keep their bits."""

from __future__ import annotations

import pytest
import torch

from raylfl.algorithms import ALGORITHMS
from raylfl.algorithms.graph import GraphAlgorithm
from raylfl.testing.runs import carry_out, killed, outcome, strike
from tests.runtime.test_graph_runs import PROBLEM
from tests.shares import one_in

CHANGING = ["topology=erdos_renyi", "topology.p=0.4", "topology.dynamic=true"]
CASES = {
    "dsgd": [["algorithm.order=atc"], ["algorithm.order=cta"], ["algorithm.order=dgd"]],
    "dsgdm": [[]],
    "exact_diffusion": [["topology=ring"]],
    "extra": [["topology=ring"]],
    "gradient_tracking": [["algorithm.order=diging"], ["algorithm.order=atc", "topology=torus"]],
    "kgt": [["topology=torus"]],
    "led": [["algorithm.lazy=true"], ["algorithm.lazy=false", *CHANGING]],
    "nids": [["algorithm.lazy=true"], ["algorithm.lazy=false", "topology=ring"]],
    "proxskip": [["topology=ring"]],
    "push_diging": [[], ["topology=directed_ring"]],
    "push_pull": [[], ["topology=one_peer_exponential"], CHANGING],
    "sgp": [[], CHANGING],
}


def test_every_method_without_a_server_is_resumed_here():
    assert CASES.keys() == {e.name for e in ALGORITHMS if issubclass(e.cls, GraphAlgorithm)}


def state(folder) -> dict[str, bytes]:
    """The tensors of the last checkpoint, among them all rows of all nodes, as bytes."""
    blob = torch.load(folder / "checkpoints" / "round_000006" / "server.pt", weights_only=True)
    parts = {**blob["server"], **blob["links"]}
    return {name: rows.numpy().tobytes() for name, rows in parts.items()}


@pytest.mark.parametrize(
    ("name", "settings"), [c for name, some in CASES.items() for c in one_in(3, [(name, e) for e in some])]
)
def test_a_stopped_run_resumes_with_the_rows_of_every_node(tmp_path, name, settings):
    """Nodes come and go, messages are lost; rounds 3 and 4 are lost with the process and repeated."""
    settings = [f"algorithm={name}", *settings, "checkpoint.every=3"]
    carry_out(PROBLEM, tmp_path / "clean", settings)
    killed(lambda: carry_out(PROBLEM, tmp_path / "stopped", settings, fault=strike("log", 4)))
    carry_out(PROBLEM, tmp_path / "stopped", settings, resume=True)
    clean, stopped = tmp_path / "clean", tmp_path / "stopped"
    assert {k for k in state(clean) if k.startswith("node_")} >= {"node_x"}
    assert state(stopped) == state(clean)
    assert outcome(stopped) == outcome(clean)
    for record in ("topology.jsonl", "edges.csv"):
        assert (stopped / record).read_text() == (clean / record).read_text()
