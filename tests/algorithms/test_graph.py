"""Methods without a server: against dense matrices, their papers' recursions, and twins."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

import numpy as np
import pytest

from raylfl.algorithms import ALGORITHMS
from raylfl.algorithms.dsgd import DSGD, DSGDm
from raylfl.algorithms.fedavg import FedAvg
from raylfl.algorithms.gradient_tracking import GradientTracking, PushPull
from raylfl.algorithms.graph import GraphAlgorithm
from raylfl.algorithms.kgt import KGT
from raylfl.algorithms.led import LED, ProxSkip
from raylfl.algorithms.nids import NIDS, ExactDiffusion, Extra
from raylfl.algorithms.scaffnew import Scaffnew
from raylfl.algorithms.sgp import SGP, PushDIGing
from tests import oracles
from tests.algorithms.graph_rounds import NAMES, ROUNDS, D, N, case, full_rounds, node, play, random_rounds, same
from tests.oracles import graphs
from tests.oracles.graphs import GraphRound
from tests.shares import one_in

# --- against dense matrices, with random participation, lost messages, unequal K and an empty round ----------


@dataclass(frozen=True)
class Case:
    """A method, its oracle (problem, rounds, x0) -> the rows of these names after each round, and options of rounds."""

    method: GraphAlgorithm
    oracle: Callable[..., Any]
    rows: tuple[str, ...] = ("x",)
    rounds: Mapping[str, Any] = field(default_factory=dict)

    def __str__(self) -> str:
        options = vars(self.method).items()
        return "-".join([type(self.method).__name__, *(f"{key}={value}" for key, value in options)])


ONE, EQUAL, TRACKED = {"steps": 1}, {"equal": True}, ("x", "y", "g_prev")
CASES = [
    *(Case(DSGD(order=order), partial(graphs.dsgd, order=order)) for order in ("atc", "cta", "dgd")),
    Case(DSGDm(beta=0.7), partial(graphs.dsgdm, beta=0.7)),
    Case(SGP(), graphs.sgp, ("x", "w"), {"directed": True}),
    Case(GradientTracking(), partial(graphs.tracking, form="diging"), TRACKED, ONE),
    Case(GradientTracking(order="atc"), partial(graphs.tracking, form="atc"), TRACKED, ONE),
    Case(PushPull(), partial(graphs.tracking, form="push_pull"), TRACKED, {"directed": True}),
    Case(PushDIGing(), partial(graphs.tracking, form="push_diging"), TRACKED, {"directed": True, **ONE}),
    *(Case(KGT(gamma=gamma), partial(graphs.kgt, gamma=gamma), ("x", "c")) for gamma in (1.0, 0.6, 3.0)),
    *(Case(LED(lazy=lazy), partial(graphs.led, lazy=lazy), ("x", "e"), EQUAL) for lazy in (True, False)),
    Case(LED(beta=0.4), partial(graphs.led, lazy=True, share=0.4), ("x", "e"), EQUAL),
    Case(ProxSkip(p=0.3), partial(graphs.led, lazy=True, share=0.3), ("x", "e"), EQUAL),
    Case(Extra(), graphs.extra, ("x", "s"), ONE),
    Case(ExactDiffusion(), graphs.exact_diffusion, ("x",), ONE),
    Case(NIDS(), graphs.exact_diffusion, ("x",), ONE),  # the same sequence
]


@pytest.mark.parametrize("seed", one_in(2, range(4)))
@pytest.mark.parametrize("graph_case", CASES, ids=str)
def test_it_follows_its_matrices(graph_case, seed):
    """Under random participation; test_graph_invariants.py is about all methods. ProxSkip's K is drawn for a round."""
    (problem, x0), rounds = case(seed), random_rounds(seed, **graph_case.rounds)
    if isinstance(graph_case.method, ProxSkip):
        drawn = np.random.default_rng(seed).geometric(0.3, ROUNDS).tolist()
        rounds = [replace(r, steps=[k] * N) for r, k in zip(rounds, drawn, strict=True)]
    ours, theirs = play(graph_case.method, problem, rounds, x0), graph_case.oracle(problem, rounds, x0)
    for k, name in enumerate(graph_case.rows):
        rows = node(ours, name)
        same(rows, np.stack([state[k] if len(graph_case.rows) > 1 else state for state in theirs]).reshape(rows.shape))


def test_no_method_without_a_server_goes_unchecked():
    assert {ALGORITHMS.name_of(type(graph_case.method)) for graph_case in CASES} == set(NAMES)


# --- against the recursions as their papers print them --------------------------------------------------------


@pytest.mark.parametrize("seed", one_in(2, range(4)))
def test_a_constant_graph_gives_the_recursions_of_the_papers(seed):
    problem, x0 = case(seed, noise=0.0)
    rounds = full_rounds(seed, directed=False)
    w = graphs.metropolis(rounds[0], N)
    half = (np.eye(N) + w) / 2

    def literal(recursion: Any, matrix: np.ndarray) -> list[np.ndarray]:
        return recursion(problem, matrix, 0.05, ROUNDS, x0)

    same(node(play(Extra(), problem, rounds, x0)), literal(graphs.literal_extra, w))
    same(node(play(NIDS(), problem, rounds, x0)), literal(graphs.literal_nids, half))
    same(node(play(NIDS(lazy=False), problem, rounds, x0)), literal(graphs.literal_nids, w))
    same(node(play(GradientTracking(), problem, rounds, x0)), literal(graphs.literal_diging, w))
    directed = full_rounds(seed, directed=True)
    r, c = graphs.row_stochastic(directed[0], N), graphs.column_stochastic(directed[0], N)
    ours = node(play(PushPull(), problem, directed, x0))
    same(ours, graphs.literal_push_pull(problem, r, c, 0.05, ROUNDS, x0))


# --- twins ------------------------------------------------------------------------------------------------------


def test_on_the_complete_graph_dsgd_is_fedavg_and_led_is_scaffnew():
    """They are equal up to rounding: W = 11^T/N is a product, FedAvg's mean a sum of updates."""
    problem, x0 = oracles.random_quadratics(3, N, D, weights="uniform", noise=0.1), np.ones(D)
    everyone = {(i, j) for i in range(N) for j in range(N) if i != j}
    rounds = [GraphRound(r, list(range(N)), everyone, [3] * N, 0.05) for r in range(ROUNDS)]
    for served, on_graph in ((FedAvg(), DSGD()), (Scaffnew(), LED(lazy=False))):
        server = np.stack([s["x"].numpy() for s in play(served, problem, rounds, x0)])
        same(node(play(on_graph, problem, rounds, x0)), np.repeat(server[:, None], N, axis=1))
