"""Evaluations on clients' data against the accuracies of the final model, counted client by client."""

from __future__ import annotations

import itertools
import json

import numpy as np
import pytest
import torch

import raylfl
from raylfl.experiment.assemble import assemble
from raylfl.runtime.round.measure import fairness
from tests.runtime.measured import DIGITS, received


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
