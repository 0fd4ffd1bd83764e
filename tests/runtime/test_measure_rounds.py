"""Metrics of updates, of the objective and of evaluations on clients' data against a direct computation."""

import itertools
import json

import numpy as np
import pytest
import torch

import raylfl
from raylfl.experiment.assemble import assemble
from raylfl.runtime.round.measure import fairness
from tests.runtime import tiny
from tests.runtime.measured import DIGITS, ETA, LOSSY, STEPS, Points, W, received, walk


def test_loss_norm_and_diversity_are_those_of_the_received_updates():
    """K steps on |x - m|^2/2 multiply x - m by (1 - eta)^K, so U_i = (1 - (1 - eta)^K_i)(x - m_i)."""
    data, measured = Points(), 0
    for x, metrics, row, _ in walk([*LOSSY, "runtime={vectorize: auto, step: auto}"])[1]:
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


def test_the_objective_is_measured_when_evaluations_are_due_and_in_the_last_round():
    rounds = walk(["eval.global=true", "eval.every=3"])[1]
    assert [r for r, (_, m, _, _) in enumerate(rounds) if "global/loss" in m] == [0, 3, 6, 7]
    assert not any("global/loss" in m for _, m, _, _ in walk(["eval.global=true", "eval.every=0"])[1])


def test_measurements_on_training_data_have_no_augmentation_and_equal_sample_weights(tmp_path):
    """Clients' ten samples in batches of seven and three."""
    config = {
        **tiny.OWNED,
        "rounds": 1,
        "data": {"class_path": "tests.runtime.tiny.Augmented"},
        "model": {**tiny.TINY["model"], "init_args": {"norm": False, "dropout": 0.0}},
        "eval": {"every": 1, "batch_size": 7, "participants": True, "random_clients": 6, "global": True},
    }
    result = raylfl.run(config, [f"logging.dir={tmp_path}"])
    points = tiny.Points()
    with torch.no_grad():
        expected = float(torch.nn.functional.cross_entropy(result.module.body(points.x), points.targets))
    for name in ("participants/loss", "random/loss", "global/loss"):
        assert result.metrics[-1][name] == pytest.approx(expected, rel=1e-5), name


# -- evaluations on clients' data, counted client by client -----------------------------------------------------------


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
    wanted = [
        "eval.clients=true",
        "eval.participants=true",
        "eval.random_clients=3",
        "eval.batch_size=7",
        "eval.every=9",
    ]
    return evaluated_run(tmp_path_factory.mktemp("measure"), *wanted)


def test_fairness_is_that_of_the_clients_own_accuracies(evaluated):
    metrics, _, hits, sizes = evaluated
    accuracy = hits / sizes
    assert metrics["clients/accuracy_mean"] == pytest.approx(accuracy.mean(), rel=1e-6)
    assert metrics["clients/accuracy_std"] == pytest.approx(np.std(accuracy), rel=1e-6)
    assert metrics["clients/accuracy_p10"] == pytest.approx(np.sort(accuracy)[:2].mean(), rel=1e-6)


@pytest.mark.parametrize(("count", "worst"), [(1, 1), (9, 1), (10, 1), (19, 1), (20, 2), (35, 3), (100, 10)])
def test_the_worst_tenth_is_rounded_down_and_one_client_at_least(count, worst):
    accuracy = np.random.default_rng(count).permutation(count) / count
    assert fairness(accuracy)["clients/accuracy_p10"] == pytest.approx(np.arange(worst).mean() / count)


def test_participants_accuracy_is_that_on_the_data_of_those_received(evaluated):
    metrics, row, hits, sizes = evaluated
    here = received(row)
    assert 0 < len(here) < len(row["cohort"])  # an upload was lost, otherwise the claim is empty
    assert metrics["participants/accuracy"] == pytest.approx(hits[here].sum() / sizes[here].sum(), rel=1e-6)


def test_random_accuracy_is_that_on_the_data_of_so_many_clients(evaluated):
    metrics, _, hits, sizes = evaluated
    threes = (list(three) for three in itertools.combinations(range(20), 3))
    accuracies = np.array([hits[three].sum() / sizes[three].sum() for three in threes])
    assert np.abs(accuracies - metrics["random/accuracy"]).min() < 1e-7


def test_random_clients_are_all_clients_if_more_are_configured(tmp_path):
    metrics, _, hits, sizes = evaluated_run(tmp_path, "eval.random_clients=99", "rounds=1")
    assert metrics["random/accuracy"] == pytest.approx(hits.sum() / sizes.sum(), rel=1e-6)
