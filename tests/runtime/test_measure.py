"""Every metric of a round against a direct computation, on problems small enough for one."""

from __future__ import annotations

import itertools
import json
from dataclasses import fields

import numpy as np
import pytest
import torch
from torch.utils.data import TensorDataset

import raylfl
from raylfl.algorithms.base import ALGORITHMS, Algorithm
from raylfl.config.load import load_config
from raylfl.experiment import assemble
from raylfl.runtime.backend import LocalBackend
from raylfl.runtime.loop import Federation

ETA, STEPS = 0.1, np.array([1, 2, 3, 4, 5])
Q = np.array([0.0, 0.2, 0.4, 0.6, 0.8])
SIZES = np.array([3, 1, 4, 2, 5])
N, D = 5, 2


class Points:
    """Client i owns points e_k in the plane; with the model `quadratic`, f_i(x) = mean_k |x - e_k|^2 / 2."""

    dim = D

    def __init__(self):
        owner = np.repeat(np.arange(N), SIZES)
        self.points = np.random.default_rng(0).standard_normal((len(owner), D)) + owner[:, None]
        self.client_indices = [np.flatnonzero(owner == i).tolist() for i in range(N)]
        self.centres = np.stack([self.points[own].mean(axis=0) for own in self.client_indices])
        spread = [np.mean(np.sum((self.points[own] - self.points[own].mean(0)) ** 2, 1)) for own in self.client_indices]
        self.floor = np.array(spread) / 2  # f_i at its minimum, the centre

    def train_dataset(self):
        e = torch.from_numpy(self.points)
        return TensorDataset(torch.full_like(e, 0.5), -e, e.square().sum(dim=1) / 2)

    def optimum(self, weights):
        return weights @ self.centres


class OneOptimum(Points):
    """Knows x* for equal weights and no other."""

    def optimum(self):
        return self.centres.mean(axis=0)


POINTS = {
    "rounds": 8,
    "dtype": "float64",
    "weights": "data_size",
    "model": {"name": "quadratic", "init_args": {"x0": 5.0}},
    "data": {"class_path": "tests.runtime.test_measure.Points"},
    "partition": {"name": "natural"},
    "algorithm": {"name": "fedavg"},
    "local": {"steps": STEPS.tolist(), "batch_size": "full", "lr": ETA},
    "runtime": {"backend": "local"},
}
LOSSY = ["participation.name=uniform", "participation.size=3", "link.name=bernoulli", f"link.q={Q.tolist()}"]
W = SIZES / SIZES.sum()


class CountingBackend(LocalBackend):
    """Counts the floats that tasks are given and that come back from them."""

    down = up = answers = 0

    def run(self, tasks, down, own):
        work, known = super().run(tasks, down, own), self.worker.algorithm.known

        def counted():
            outcomes = work()
            for task, outcome in zip(tasks, outcomes, strict=True):
                self.down += len(task.clients) * sum(v.numel() for v in down.values())
                self.up += sum(v.numel() for name, v in outcome.up.items() if name not in known)
            return outcomes

        return counted


def walk(overrides, config=POINTS):
    """(backend, [(x before, metrics, participation row, x after)]) of a run in process."""
    experiment = assemble(load_config(config, overrides))
    backend = CountingBackend(experiment.setup)
    federation = Federation(experiment, backend)
    rounds = []
    before = federation.state.server["x"].numpy().copy()
    for metrics, row in federation.rounds(experiment.world.rounds):
        after = federation.state.server["x"].numpy().copy()
        rounds.append((before, metrics, row, after))
        before = after
    backend.close()
    return backend, rounds


def received(row):
    return np.array(row["cohort"], dtype=int)[np.array(row["received"], dtype=bool)]


# -- updates and objective -----------------------------------------------------------------------------------


def test_loss_norm_and_diversity_are_those_of_the_received_updates():
    """K steps on |x - m|^2/2 multiply x - m by (1 - eta)^K, so U_i = (1 - (1 - eta)^K_i)(x - m_i)."""
    data, measured = Points(), 0
    for x, metrics, row, _ in walk(LOSSY)[1]:
        here = received(row)
        assert (metrics["cohort/sampled"], metrics["cohort/received"]) == (3, len(here))
        if not len(here):
            assert not {"train/loss", "update/norm", "update/diversity"} & set(metrics)
            continue
        measured += 1
        away = x - data.centres
        updates = (1 - (1 - ETA) ** STEPS[:, None]) * away
        w = W[here] / W[here].sum()
        mean = np.linalg.norm(w @ updates[here])
        squares = w @ np.sum(updates[here] ** 2, axis=1)
        assert metrics["update/norm"] == pytest.approx(mean, rel=1e-12)
        assert metrics["update/diversity"] == pytest.approx(np.sqrt(squares) / mean, rel=1e-9)
        losses = [
            np.mean([(1 - ETA) ** (2 * t) * np.sum(away[i] ** 2) / 2 + data.floor[i] for t in range(STEPS[i])])
            for i in here
        ]
        assert metrics["train/loss"] == pytest.approx(np.mean(losses), rel=1e-12)
    assert measured > 5


def test_objective_gradient_and_distance_are_those_after_the_server_step():
    data = Points()
    optimum = W @ data.centres
    for _, metrics, _, x in walk([*LOSSY, "eval.global=true"])[1]:
        losses = np.sum((x - data.centres) ** 2, axis=1) / 2 + data.floor
        assert metrics["global/loss"] == pytest.approx(W @ losses, rel=1e-12)
        assert metrics["global/grad_norm"] == pytest.approx(np.linalg.norm(x - optimum), rel=1e-12)
        assert metrics["global/distance_abs"] == pytest.approx(np.linalg.norm(x - optimum), rel=1e-12)
        relative = np.linalg.norm(x - optimum) / np.linalg.norm(optimum)
        assert metrics["global/distance"] == pytest.approx(relative, rel=1e-12)


def test_the_distance_to_an_optimum_at_zero_is_absolute():
    world = ["data=coefficients", "model.name=quadratic", "model.init_args.x0=3.0", "local.steps=2"]
    for _, metrics, _, x in walk(world)[1]:
        assert metrics["global/distance"] == metrics["global/distance_abs"] == pytest.approx(abs(float(x[0])))


def test_the_objective_is_measured_when_evaluations_are_due_and_in_the_last_round():
    rounds = walk(["eval.global=true", "eval.every=3"])[1]
    assert [r for r, (_, m, _, _) in enumerate(rounds) if "global/loss" in m] == [0, 3, 6, 7]
    assert not any("global/loss" in m for _, m, _, _ in walk(["eval.global=true", "eval.every=0"])[1])


# -- inconsistency -------------------------------------------------------------------------------------------


def mean_over_arrivals(p):
    """E[1{i in R} / |R|] for independent arrivals with probabilities p [N], by all 2^N outcomes."""
    total = np.zeros(N)
    for outcome in itertools.product([0, 1], repeat=N):
        here = np.array(outcome)
        if here.any():
            total += np.prod(np.where(here, p, 1 - p)) * here / here.sum()
    return total


P = np.array([0.9, 0.7, 0.5, 0.3, 0.1])
SAMPLED = ["participation.name=uniform", "participation.size=3"]
LINKS = ["link.name=bernoulli", f"link.q={Q.tolist()}"]
COINS = ["participation.name=bernoulli", f"participation.p={P.tolist()}"]


@pytest.mark.parametrize(
    ("overrides", "omega"),
    [
        ([*SAMPLED, "weights=uniform"], STEPS),  # FedNova's objective inconsistency
        (["weights=uniform", "local.steps=2"], np.ones(N)),
        (["algorithm.aggregate=weighted"], W * STEPS),
        ([*LINKS, "algorithm.aggregate=full"], W * (1 - Q) * STEPS),
        ([*SAMPLED, *LINKS, "algorithm.aggregate=anonymous"], (1 - Q) * STEPS),
        ([*COINS, *LINKS], mean_over_arrivals(P * (1 - Q)) * STEPS),
        ([*COINS, "algorithm.aggregate=anonymous_uniform"], W * mean_over_arrivals(P) * STEPS),
        ([*SAMPLED, *LINKS, "algorithm.name=fedacs"], W),
        ([*SAMPLED, *LINKS, "algorithm.name=cafedavg"], STEPS),  # corrects links; neither steps nor that p is not w
    ],
    ids=lambda value: " ".join(value)[-60:] if isinstance(value, list) else "",
)
def test_chi2_is_that_of_the_surrogate_weights(overrides, omega):
    w = np.full(N, 1 / N) if "weights=uniform" in overrides else W
    omega = omega / omega.sum()
    expected = np.sum((w - omega) ** 2 / omega)
    bias = np.linalg.norm((omega - w) @ Points().centres) / np.linalg.norm(w @ Points().centres)  # [3] eq. (4)
    for _, metrics, _, _ in walk([*overrides, "rounds=2"])[1]:
        assert metrics["inconsistency/chi2"] == pytest.approx(expected, rel=1e-10, abs=1e-14)
        assert metrics["inconsistency/predicted_distance"] == pytest.approx(bias, rel=1e-10, abs=1e-14)


def test_a_run_stalls_at_the_predicted_distance():
    """Full participation, unequal K and a small step: exactly there but for O(eta K)."""
    small = ["weights=uniform", "local.lr=1e-4", "algorithm.gamma=100", "rounds=400"]
    *_, (_, metrics, _, _) = walk(small)[1]
    assert metrics["inconsistency/predicted_distance"] > 0.01
    assert metrics["global/distance"] == pytest.approx(metrics["inconsistency/predicted_distance"], rel=0.01)


def test_no_distance_is_predicted_where_the_data_know_one_optimum_only():
    rows = walk(["data.class_path=tests.runtime.test_measure.OneOptimum", "rounds=2"])[1]
    for _, metrics, _, _ in rows:
        assert "global/distance" in metrics
        assert "inconsistency/chi2" in metrics
        assert "inconsistency/predicted_distance" not in metrics


@pytest.mark.parametrize(
    "overrides",
    [
        ["algorithm.name=sfl"],
        ["algorithm.name=focus"],  # no fixed combination of updates
        [*SAMPLED, *LINKS],  # 1/|R| and arrivals of unequal probability: no closed form
        ["eval.inconsistency=false"],
    ],
)
def test_chi2_is_left_out_where_it_is_not_known_or_not_wanted(overrides):
    assert not any("inconsistency/chi2" in metrics for _, metrics, _, _ in walk([*overrides, "rounds=2"])[1])


# -- the virtual clock ---------------------------------------------------------------------------------------

SECONDS, FLOATS_PER_SECOND = np.array([0.5, 1.0, 2.0, 4.0, 8.0]), 10.0
CLOCK = [f"system.seconds_per_step={SECONDS.tolist()}", f"system.bandwidth={FLOATS_PER_SECOND}"]


def test_a_parallel_round_takes_as_long_as_its_slowest_client():
    virtual = computation = 0.0
    for _, metrics, row, _ in walk([*LOSSY, *CLOCK])[1]:
        cohort = np.array(row["cohort"])
        work = STEPS[cohort] * SECONDS[cohort]
        virtual += np.max(work + 2 * D / FLOATS_PER_SECOND)  # a lost upload took its time too
        computation += work.sum()
        assert metrics["time/virtual"] == pytest.approx(virtual, rel=1e-12)
        assert metrics["time/computation"] == pytest.approx(computation, rel=1e-12)


def test_a_ring_takes_the_sum_of_its_clients_and_of_its_hand_overs():
    virtual = 0.0
    for _, metrics, row, _ in walk([*LOSSY, *CLOCK, "algorithm.name=sfl"])[1]:
        cohort = np.array(row["cohort"])
        virtual += np.sum(STEPS[cohort] * SECONDS[cohort]) + (len(cohort) + 1) * D / FLOATS_PER_SECOND
        assert metrics["time/virtual"] == pytest.approx(virtual, rel=1e-12)


def test_a_round_without_clients_takes_no_virtual_time():
    last = walk(["participation.name=bernoulli", "participation.p=0.0"])[1][-1][1]
    assert last["time/virtual"] == last["time/computation"] == 0.0


# -- evaluations on clients' data ----------------------------------------------------------------------------

DIGITS = {
    "rounds": 3,
    "num_clients": 20,
    "model": {"name": "logistic"},
    "data": {"name": "digits"},
    "partition": {"name": "dirichlet", "alpha": 0.3, "min_size": 5},
    "participation": {"name": "uniform", "size": 4},
    "link": {"name": "bernoulli", "q": 0.5},
    "runtime": {"backend": "local"},
}


def evaluated_run(base, *wanted):
    """(last row of metrics, of participation, hits and sizes of every client) of a run on digits."""
    result = raylfl.run(DIGITS, [*wanted, f"logging.dir={base}"])
    x, y = (torch.from_numpy(np.asarray(a)) for a in assemble(result.config).setup.train.arrays)
    with torch.no_grad():
        hit = (result.module(x.float() / 16).argmax(dim=1) == y).numpy()
    owners = json.loads((result.run_dir / "partition.json").read_text())
    shards = [np.array(owners[str(i)]) for i in range(20)]
    rows = [json.loads(line) for line in (result.run_dir / "participation.jsonl").read_text().splitlines()]
    hits, sizes = np.array([hit[s].sum() for s in shards]), np.array([len(s) for s in shards])
    return result.metrics[-1], rows[-1], hits, sizes


@pytest.fixture(scope="module")
def evaluated(tmp_path_factory):
    """A run with all evaluations, in batches smaller than most clients."""
    wanted = ["eval.clients=true", "eval.participants=true", "eval.random_clients=3", "eval.batch_size=7"]
    return evaluated_run(tmp_path_factory.mktemp("measure"), *wanted)


def test_fairness_is_that_of_the_clients_own_accuracies(evaluated):
    metrics, _, hits, sizes = evaluated
    accuracy = hits / sizes
    assert metrics["clients/accuracy_mean"] == pytest.approx(accuracy.mean(), rel=1e-6)
    assert metrics["clients/accuracy_std"] == pytest.approx(np.std(accuracy), rel=1e-6)
    assert metrics["clients/accuracy_p10"] == pytest.approx(np.sort(accuracy)[:2].mean(), rel=1e-6)


def test_participants_accuracy_is_that_on_the_data_of_those_received(evaluated):
    metrics, row, hits, sizes = evaluated
    here = received(row)
    assert 0 < len(here) < len(row["cohort"])  # somebody was lost, or the claim says nothing
    assert metrics["participants/accuracy"] == pytest.approx(hits[here].sum() / sizes[here].sum(), rel=1e-6)


def test_random_accuracy_is_that_on_the_data_of_so_many_clients(evaluated):
    metrics, _, hits, sizes = evaluated
    threes = (list(three) for three in itertools.combinations(range(20), 3))
    accuracies = np.array([hits[three].sum() / sizes[three].sum() for three in threes])
    assert np.abs(accuracies - metrics["random/accuracy"]).min() < 1e-7


def test_random_clients_are_all_of_them_where_more_are_asked_for(tmp_path):
    metrics, _, hits, sizes = evaluated_run(tmp_path, "eval.random_clients=99", "rounds=1")
    assert metrics["random/accuracy"] == pytest.approx(hits.sum() / sizes.sum(), rel=1e-6)


def test_the_objective_of_more_clients_than_one_group_is_that_of_all(tmp_path):
    """20 clients are two groups of at most 16; F = (1/N) sum_i f_i with f_i over all of client i's data."""
    result = raylfl.run(DIGITS, ["eval.global=true", "dtype=float64", f"logging.dir={tmp_path}", "rounds=1"])
    experiment, module = assemble(result.config), result.module
    x, y = (torch.from_numpy(np.asarray(a)) for a in experiment.setup.train.arrays)
    losses = [module.training_step((x[own].double() / 16, y[own]), 0) for own in experiment.split.clients]
    objective = torch.stack(losses).mean()
    gradient = torch.cat([g.flatten() for g in torch.autograd.grad(objective, list(module.parameters()))])
    last = result.metrics[-1]
    assert last["global/loss"] == pytest.approx(float(objective.detach()), rel=1e-12)
    assert last["global/grad_norm"] == pytest.approx(float(gradient.norm()), rel=1e-10)


# -- what was sent and computed ------------------------------------------------------------------------------

PLAIN = [
    entry.name
    for entry in ALGORITHMS
    if entry.cls.route == "star"
    and not entry.cls.pooled
    and "cut" not in [f.name for f in fields(entry.cls)]  # type: ignore[arg-type]
    and entry.cls.acknowledge is Algorithm.acknowledge
    and not entry.cls().probes
]
DRAWN = ["participation.name=uniform", "participation.size=4", "participation.replace=true"]


def last_costs(rounds):
    return {name.removeprefix("cost/"): v for name, v in rounds[-1][1].items() if name.startswith("cost/")}


@pytest.mark.parametrize("name", PLAIN)
def test_counters_are_what_went_to_the_workers_and_came_back(name):
    backend, rounds = walk([*DRAWN, *LINKS, f"algorithm.name={name}", "weights=uniform"])
    costs = last_costs(rounds)
    assert (costs["downlink_floats"], costs["uplink_floats"]) == (backend.down, backend.up)
    assert costs["peer_floats"] == 0
    if not ALGORITHMS.get(name).cls.one_step:
        assert costs["local_steps"] == sum(sum(row["steps"]) for _, _, row, _ in rounds)


def test_scaffold_sends_twice_as_much_as_fedavg_both_ways():
    fedavg, scaffold = (last_costs(walk([*DRAWN, f"algorithm.name={name}"])[1]) for name in ("fedavg", "scaffold"))
    for way in ("uplink_floats", "downlink_floats"):
        assert scaffold[way] == 2 * fedavg[way] > 0


def test_a_ring_is_entered_once_left_once_and_handed_on_in_between():
    _, rounds = walk(["participation.name=bernoulli", "participation.p=0.3", *LINKS, "algorithm.name=sfl"])
    cohorts = np.array([len(row["cohort"]) for _, _, row, _ in rounds])
    assert 0 in cohorts  # an empty round costs nothing
    costs = last_costs(rounds)
    assert costs["downlink_floats"] == costs["uplink_floats"] == D * np.sum(cohorts > 0)
    assert costs["peer_floats"] == D * np.sum(np.maximum(cohorts - 1, 0))


def test_an_answer_goes_down_to_those_received_only():
    _, rounds = walk([*LOSSY, "algorithm.name=fedawe"])
    asked = sum(len(row["cohort"]) for _, _, row, _ in rounds)
    arrived = sum(len(received(row)) for _, _, row, _ in rounds)
    costs = last_costs(rounds)
    assert (costs["uplink_floats"], costs["downlink_floats"]) == (D * asked, D * arrived)


def test_probing_costs_a_broadcast_to_all_their_work_and_a_norm_each():
    _, rounds = walk([*LOSSY, "algorithm.name=optimal_sampling"])
    asked = sum(len(row["cohort"]) for _, _, row, _ in rounds)
    costs = last_costs(rounds)
    assert costs["downlink_floats"] == len(rounds) * N * D
    assert costs["uplink_floats"] == D * asked + len(rounds) * N
    assert costs["local_steps"] == len(rounds) * STEPS.sum()
    assert costs["gradients"] == len(rounds) * STEPS @ SIZES


def test_centralised_training_sends_nothing_and_computes_on_everything():
    costs = last_costs(walk(["algorithm.name=centralized", "local.steps=3"])[1])
    nothing = dict.fromkeys(("uplink_floats", "downlink_floats", "peer_floats"), 0)
    assert costs == {**nothing, "local_steps": 8 * 3, "gradients": 8 * 3 * SIZES.sum()}


@pytest.mark.parametrize(("name", "ring"), [("splitfed", False), ("ssl", True)])
def test_split_learning_moves_the_client_half_and_exchanges_activations(name, ring):
    """64-8-10 cut after the hidden layer: a half of 64*8 + 8, and 8 activations and gradients a sample."""
    half, width, batch = 64 * 8 + 8, 8, 16
    model = ["model.name=mlp", "model.init_args.hidden=[8]", f"algorithm.name={name}", "algorithm.cut=layers.relu1"]
    work = ["local.steps=2", f"local.batch_size={batch}", "local.sampling=with_replacement"]
    _, rounds = walk([*model, *work, "partition=iid"], DIGITS)
    asked, costs = 4 * len(rounds), last_costs(rounds)
    samples = asked * 2 * batch
    assert costs["gradients"] == samples
    travelled = len(rounds) if ring else asked
    assert costs["downlink_floats"] == costs["uplink_floats"] == half * travelled + width * samples
    assert costs["peer_floats"] == (half * 3 * len(rounds) if ring else 0)


def test_buffers_travel_with_the_parameters_and_are_counted():
    config = {**DIGITS, "model": {"class_path": "tests.runtime.modules.Noisy"}}
    backend, rounds = walk([], config)
    costs = last_costs(rounds)
    width = 64 * 16 + 16 + 2 * 16 + 16 * 10 + 10  # linear, batch norm, linear
    running = 2 * 16 + 1  # mean, variance, number of batches
    assert costs["downlink_floats"] == backend.down == 4 * len(rounds) * (width + running)
    assert costs["uplink_floats"] == backend.up


@pytest.mark.parametrize(("batch", "samples"), [("full", STEPS @ SIZES), ("2", STEPS @ np.minimum(SIZES, 2))])
def test_sample_gradients_are_counted_as_computed(batch, samples):
    overrides = [f"local.batch_size={batch}", "local.sampling=with_replacement" if batch == "2" else "rounds=8"]
    assert last_costs(walk(overrides)[1])["gradients"] == 8 * samples
