"""Rounds of very many clients: what they write and allocate depends on the cohort, not on the number of clients."""

import tracemalloc

import cloudpickle
import pytest
import ray

from raylfl.config.load import load_config
from raylfl.experiment.assemble import assemble
from raylfl.heterogeneity.trace import encode_row
from raylfl.runtime.ray.stored import StoredExperiment
from raylfl.runtime.round.loop import Federation
from raylfl.runtime.workers.backend import LocalBackend
from tests.runtime.tiny import TINY

MANY, FEW, WARM_UP, MEASURED = 100_000, 1_000, 5, 3  # clients, clients, rounds, rounds
DATA = {"shape": [1, 2, 2], "num_train": 4 * FEW, "num_test": 10}
LINKS = {"name": "bernoulli", "q": {"uniform": [0, 0.4]}}


def rounds(clients, algorithm, cohort, **changes):
    """The records of a run in which each client has one sample."""
    data = {"name": "synthetic_images", "init_args": {"shape": [1, 2, 2], "num_train": clients, "num_test": 10}}
    config = {
        "num_clients": clients,
        "rounds": WARM_UP + MEASURED + 2,
        "model": {"name": "logistic"},
        "data": data,
        "partition": {"name": "iid"},
        "participation": {"name": "uniform", "size": cohort},
        "local": {"steps": 2, "batch_size": 1},
        "eval": {"every": 0},
        "runtime": {"backend": "local"},
        "algorithm": algorithm,
    }
    experiment = assemble(load_config({**config, **changes}))
    return Federation.of(experiment, LocalBackend(experiment.setup)).rounds(WARM_UP + MEASURED + 2)


def allocated(clients, algorithm, **changes):
    """The most bytes that Python and numpy allocate at a time in a round after the first ones.

    Of several rounds the least: a round can also import a module, or compare a form of a step.
    """
    records = rounds(clients, algorithm, 5, **changes)
    for _ in range(WARM_UP):
        next(records)
    tracemalloc.start()
    try:
        next(records)
        peaks = []
        for _ in range(MEASURED):
            before, _ = tracemalloc.get_traced_memory()
            tracemalloc.reset_peak()
            metrics = next(records).metrics
            assert ("inconsistency/chi2" in metrics) is (algorithm["name"] == "fedavg")  # that of others is not known
            peaks.append(tracemalloc.get_traced_memory()[1] - before)
        return min(peaks)
    finally:
        tracemalloc.stop()


METHODS = [{"name": "fedavg", "aggregate": "anonymous"}, {"name": "scaffold"}, {"name": "mifa"}]


@pytest.mark.slow
def test_a_round_allocates_no_array_over_all_clients(fork):
    """The smallest one, of a byte a client, has 100 kB."""
    network = {"link": LINKS, "topology": {"latency": 0.1}}
    for options in METHODS:
        few, many = (fork.submit(allocated, clients, options, **network).result() for clients in (FEW, MANY))
        assert many < few + MANY / 2, options


@pytest.mark.parametrize("placement", ["shared", "pinned"])
def test_workers_read_three_numbers_a_client_at_the_start(monkeypatch, placement):
    """Weight, size and offset; not an array of samples for each client, which take seconds to read at 10^6 clients."""
    stored: list[bytes] = []
    monkeypatch.setattr(ray, "put", lambda value: stored.append(cloudpickle.dumps(value)))
    for clients in (FEW, 4 * FEW):
        config = {**TINY, "data": {"name": "synthetic_images", "init_args": DATA}, "model": "logistic"}
        config |= {"num_clients": clients, "partition": "iid", "runtime": {"backend": "ray", "placement": placement}}
        StoredExperiment.put(assemble(load_config(config)), 2)
    few, many = (max(map(len, half)) for half in (stored[: len(stored) // 2], stored[len(stored) // 2 :]))
    assert many - few < 3 * FEW * (3 * 8 + 1)  # bytes


@pytest.mark.parametrize("options", [{"name": "fedavg"}, {"name": "fedacs"}, {"name": "fedacs", "estimate": "ema"}])
def test_a_line_of_participation_holds_the_cohort_only(options):
    """At most 10 kB with a cohort of 100, for numbers of clients up to seven digits and any probabilities."""
    records = rounds(10 * FEW, options, 100, link={**LINKS, "dynamic": True})
    rows = [next(records).row for _ in range(4)]
    for row in rows:
        assert "q" in row
        assert ("p" in row) is (options["name"] == "fedacs")
        longest = {**row, "cohort": [9_999_999] * len(row["cohort"])}
        longest |= {key: [1.2345678901234567e-100] * len(row[key]) for key in ("p", "q") if key in row}
        assert len(encode_row(longest)) <= 10_000
