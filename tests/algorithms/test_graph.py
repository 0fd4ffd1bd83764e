"""Methods without a server: against dense matrices, their papers' recursions, and twins."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from raylfl.algorithms import ALGORITHMS
from raylfl.algorithms.dsgd import DSGD
from raylfl.algorithms.fedavg import FedAvg
from raylfl.algorithms.gradient_tracking import GradientTracking, PushPull
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


@pytest.mark.parametrize("seed", one_in(2, range(4)))
@pytest.mark.parametrize("order", ["atc", "cta", "dgd"])
def test_dsgd_follows_its_matrices(seed, order):
    (problem, x0), rounds = case(seed), random_rounds(seed)
    same(node(play(DSGD(order=order), problem, rounds, x0)), graphs.dsgd(problem, rounds, x0, order))


@pytest.mark.parametrize("seed", one_in(2, range(4)))
def test_dsgd_with_momentum_follows_its_matrices(seed):
    (problem, x0), rounds = case(seed), random_rounds(seed)
    ours = play(ALGORITHMS.get("dsgdm").cls(beta=0.7), problem, rounds, x0)
    same(node(ours), graphs.dsgdm(problem, rounds, x0, 0.7))


@pytest.mark.parametrize("seed", one_in(2, range(4)))
def test_sgp_follows_its_matrices(seed):
    (problem, x0), rounds = case(seed), random_rounds(seed, directed=True)
    ours, theirs = play(SGP(), problem, rounds, x0), graphs.sgp(problem, rounds, x0)
    same(node(ours), [x for x, _ in theirs])
    same(node(ours, "w")[..., 0], [w for _, w in theirs])


@pytest.mark.parametrize("seed", one_in(2, range(4)))
@pytest.mark.parametrize(
    ("algorithm", "form", "steps"),
    [
        (GradientTracking(), "diging", 1),
        (GradientTracking(order="atc"), "atc", 1),
        (PushPull(), "push_pull", 3),
        (PushDIGing(), "push_diging", 1),
    ],
    ids=["diging", "atc", "push_pull", "push_diging"],
)
def test_gradient_tracking_follows_its_matrices(seed, algorithm, form, steps):
    problem, x0 = case(seed)
    rounds = random_rounds(seed, directed=form.startswith("push"), steps=steps)
    ours, theirs = play(algorithm, problem, rounds, x0), graphs.tracking(problem, rounds, x0, form)
    for name, column in (("x", 0), ("y", 1), ("g_prev", 2)):
        same(node(ours, name), [state[column] for state in theirs])


@pytest.mark.parametrize("seed", one_in(2, range(4)))
@pytest.mark.parametrize("gamma", [1.0, 0.6, 3.0])
def test_kgt_follows_its_matrices(seed, gamma):
    (problem, x0), rounds = case(seed), random_rounds(seed)
    ours, theirs = play(KGT(gamma=gamma), problem, rounds, x0), graphs.kgt(problem, rounds, x0, gamma)
    same(node(ours), [x for x, _ in theirs])
    same(node(ours, "c"), [c for _, c in theirs])


@pytest.mark.parametrize("seed", one_in(2, range(4)))
@pytest.mark.parametrize("lazy", [True, False])
def test_led_follows_its_matrices(seed, lazy):
    (problem, x0), rounds = case(seed), random_rounds(seed, equal=True)
    ours, theirs = play(LED(lazy=lazy), problem, rounds, x0), graphs.led(problem, rounds, x0, lazy)
    same(node(ours), [x for x, _ in theirs])
    same(node(ours, "e"), [e for _, e in theirs])


@pytest.mark.parametrize("seed", one_in(2, range(4)))
@pytest.mark.parametrize(
    ("algorithm", "share"), [(LED(beta=0.4), 0.4), (ProxSkip(p=0.3), 0.3)], ids=["led", "proxskip"]
)
def test_a_constant_share_of_the_dual_follows_its_matrices(seed, algorithm, share):
    """ProxSkip's K is drawn anew for each round, the same for all nodes."""
    problem, x0 = case(seed)
    drawn = np.random.default_rng(seed).geometric(0.3, ROUNDS).tolist()
    rounds = [replace(r, steps=[k] * N) for r, k in zip(random_rounds(seed), drawn, strict=True)]
    ours, theirs = play(algorithm, problem, rounds, x0), graphs.led(problem, rounds, x0, True, share)
    same(node(ours), [x for x, _ in theirs])
    same(node(ours, "e"), [e for _, e in theirs])


@pytest.mark.parametrize("seed", one_in(2, range(4)))
def test_extra_follows_its_matrices(seed):
    (problem, x0), rounds = case(seed), random_rounds(seed, steps=1)
    ours, theirs = play(Extra(), problem, rounds, x0), graphs.extra(problem, rounds, x0)
    same(node(ours), [x for x, _ in theirs])
    same(node(ours, "s"), [s for _, s in theirs])


@pytest.mark.parametrize("seed", one_in(2, range(4)))
def test_exact_diffusion_follows_its_matrices_and_nids_is_the_same_sequence(seed):
    (problem, x0), rounds = case(seed), random_rounds(seed, steps=1)
    ours = node(play(ExactDiffusion(), problem, rounds, x0))
    same(ours, graphs.exact_diffusion(problem, rounds, x0))
    same(ours, node(play(NIDS(), problem, rounds, x0)))


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
    server = np.stack([s["x"].numpy() for s in play(FedAvg(), problem, rounds, x0)])
    same(node(play(DSGD(), problem, rounds, x0)), np.repeat(server[:, None], N, axis=1))
    problem, x0 = oracles.random_quadratics(4, N, D, weights="uniform", noise=0.1), np.ones(D)
    everyone = {(i, j) for i in range(N) for j in range(N) if i != j}
    rounds = [GraphRound(r, list(range(N)), everyone, [3] * N, 0.05) for r in range(ROUNDS)]
    server = np.stack([s["x"].numpy() for s in play(Scaffnew(), problem, rounds, x0)])
    same(node(play(LED(lazy=False), problem, rounds, x0)), np.repeat(server[:, None], N, axis=1))


HOLDS = {  # against dense matrices, under random participation; test_graph_invariants.py is about all methods
    "dsgd": test_dsgd_follows_its_matrices,
    "dsgdm": test_dsgd_with_momentum_follows_its_matrices,
    "exact_diffusion": test_exact_diffusion_follows_its_matrices_and_nids_is_the_same_sequence,
    "extra": test_extra_follows_its_matrices,
    "gradient_tracking": test_gradient_tracking_follows_its_matrices,
    "kgt": test_kgt_follows_its_matrices,
    "led": test_led_follows_its_matrices,
    "nids": test_exact_diffusion_follows_its_matrices_and_nids_is_the_same_sequence,
    "proxskip": test_a_constant_share_of_the_dual_follows_its_matrices,
    "push_diging": test_gradient_tracking_follows_its_matrices,
    "push_pull": test_gradient_tracking_follows_its_matrices,
    "sgp": test_sgp_follows_its_matrices,
}


def test_no_method_without_a_server_goes_unchecked():
    assert HOLDS.keys() == set(NAMES)
