"""Whole runs in process: learning-rate schedules in closed form, buffers, records, replay, cut models."""

import json

import numpy as np
import pytest
import torch
from lightning.pytorch import LightningModule

import raylfl
from raylfl.errors import BadConfig, NonFinite
from raylfl.runtime import session
from tests.runtime.faults import outcome
from tests.runtime.measured import rounds_of
from tests.runtime.modules import Quadratics
from tests.runtime.tiny import ONE_BY_ONE, OWNED, TINY, Points
from tests.shares import one_in

QUADRATICS = {
    "name": "quadratics",
    "dtype": "float64",
    "rounds": 6,
    "model": {"class_path": "tests.runtime.modules.Quadratic"},
    "data": {"class_path": "tests.runtime.modules.Quadratics"},
    "partition": {"name": "natural"},
    "local": {"steps": 3, "batch_size": "full", "lr": 0.1},
    "runtime": {"backend": "local"},
}
DIGITS = {
    "name": "digits",
    "rounds": 4,
    "num_clients": 8,
    "data": {"class_path": "tests.runtime.modules.DigitsModule"},
    "model": {"class_path": "tests.runtime.modules.Noisy"},
    "participation": {"name": "uniform", "size": 3},
    "local": {"steps": 2, "batch_size": 16},
    "runtime": {"backend": "local"},
}


def run(config, runs, *overrides):
    return raylfl.run(config, [*runs, *overrides])


SCHEDULES = {  # eta_{r,t} / eta in round r and local step t, with decay 0.7 and period 2
    "exponential": lambda r, t: 0.7**r,
    "sqrt": lambda r, t: (1 + r / 2) ** -0.5,
    "step_exponential": lambda r, t: 0.7**t,
    "step_sqrt": lambda r, t: (1 + t / 2) ** -0.5,
}


def scheduled(name):
    return f"local.lr_schedule={{name: {name}, " + ("decay: 0.7}" if "exponential" in name else "period: 2}")


@pytest.mark.parametrize("name", SCHEDULES)
def test_local_rates_follow_the_closed_form_of_the_schedule_in_every_round_and_step(name):
    result, data, x = rounds_of(QUADRATICS, [scheduled(name), "rounds=4"]), Quadratics(), np.ones(3)
    for r in range(4):
        ends = np.tile(x, (6, 1))
        for t in range(3):
            gradients = np.einsum("nij,nj->ni", data.hessians, ends) - data.b
            ends -= 0.1 * SCHEDULES[name](r, t) * gradients
        x = ends.mean(axis=0)
    np.testing.assert_allclose(result.params.numpy(), x, rtol=1e-12)


@pytest.mark.parametrize(
    ("name", "algorithm"), one_in(3, [(name, algorithm) for name in SCHEDULES for algorithm in ("kgt", "led")])
)
def test_graph_methods_divide_by_the_sum_of_the_learning_rates_of_the_steps(name, algorithm):
    """On the complete graph W = 11'/N: K-GT's z is a mean of directions, and LED subtracts e once in K steps."""
    given = [f"algorithm.name={algorithm}", scheduled(name), "topology.name=complete", "rounds=4"]
    result = rounds_of(QUADRATICS, [*given, *(["algorithm.lazy=false"] if algorithm == "led" else [])])
    data, rows, duals = Quadratics(), np.ones((6, 3)), np.zeros((6, 3))
    for r in range(4):
        rates = [0.1 * SCHEDULES[name](r, t) for t in range(3)]
        ends, directions = rows.copy(), []
        for rate in rates:
            directions.append(np.einsum("nij,nj->ni", data.hessians, ends) - data.b)
            directions[-1] += duals if algorithm == "kgt" else duals / sum(rates)
            ends -= rate * directions[-1]
        if algorithm == "kgt":
            z = np.average(directions, axis=0, weights=rates)
            duals += z.mean(axis=0) - z
        else:
            duals += ends - ends.mean(axis=0)
        rows = np.tile(ends.mean(axis=0), (6, 1))
    np.testing.assert_allclose(result.params.numpy(), rows[0], rtol=1e-11)


@pytest.mark.parametrize("algorithm", ["fedavg", "focus", "sfl"])
def test_buffers_that_stay_with_the_clients_are_neither_sent_nor_counted(algorithm):
    """BatchNorm over six units has a mean and a variance of each; how many batches it saw stays where it is."""
    config = {**ONE_BY_ONE, "rounds": 1, "algorithm": {"name": algorithm}}
    both = [rounds_of(config, [f"local.buffers={kind}"]).metrics[-1] for kind in ("average", "local")]
    for way in ("uplink", "downlink", "peer"):
        averaged, local = (row[f"cost/{way}_floats"] for row in both)
        hops = local / 63
        assert averaged == hops * (63 + 12)


class Seen(LightningModule):
    """A module with one buffer, the mean of its last batch, assigned or written in place."""

    def __init__(self, assigned: bool = True):
        super().__init__()
        self.assigned, self.body = assigned, torch.nn.Linear(4, 3)
        self.register_buffer("seen", torch.zeros(1))

    def training_step(self, batch, batch_idx):
        mean = batch[0].mean().reshape(1)
        if self.assigned:
            self.seen = mean
        else:
            self.seen.copy_(mean)
        return torch.nn.functional.cross_entropy(self.body(batch[0]), batch[1])

    def validation_step(self, batch, batch_idx):
        self.log("seen", self.seen[0])


@pytest.mark.parametrize(("step", "assigned"), [("auto", True), ("auto", False), ("autograd", True)])
def test_a_buffer_that_a_step_assigns_is_averaged_as_one_that_it_changes(runs, assigned, step):
    model = {"class_path": "tests.runtime.test_run.Seen", "init_args": {"assigned": assigned}}
    config = {**OWNED, "model": model, "local": {"steps": 5, "batch_size": "full"}, "rounds": 2}
    result = run(config, runs, f"runtime.step={step}", "eval.every=1")
    mean = pytest.approx(float(Points().x.mean()), rel=1e-5)
    assert float(result.module.seen) == mean
    assert [row["test/seen"] for row in result.metrics] == [mean, mean]


def test_a_buffer_of_another_shape_is_named(runs):
    config = {**TINY, "model": {"class_path": "tests.runtime.test_run.Growing"}}
    with pytest.raises(BadConfig, match=r"buffer seen by a buffer of shape \[2\]; it must keep its shape \[1\]"):
        run(config, runs)


class Growing(Seen):
    def training_step(self, batch, batch_idx):
        self.seen = torch.zeros(2)
        return torch.nn.functional.cross_entropy(self.body(batch[0]), batch[1])


def test_the_single_client_that_owns_all_data_has_no_local_buffers(runs):
    config = {**ONE_BY_ONE, "rounds": 2, "algorithm": {"name": "centralized"}}
    average, local = (run(config, runs, f"local.buffers={kind}").run_dir for kind in ("average", "local"))
    assert outcome(average) == outcome(local)


def test_a_run_leaves_the_records_that_the_interface_names(runs):
    result = run(DIGITS, runs)
    folder = result.run_dir
    assert {p.name for p in folder.iterdir()} >= {
        *("config.yaml", "metrics.jsonl", "participation.jsonl", "checkpoints"),
        *("final.pt", "summary.json", "log.txt", "partition.json"),
    }
    rows = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    assert [row["round"] for row in rows] == [0, 1, 2, 3]
    assert rows == result.metrics
    summary = json.loads((folder / "summary.json").read_text())
    assert summary["final"]["test/accuracy"] == rows[-1]["test/accuracy"]
    assert summary["seed"] == 0
    final = torch.load(folder / "final.pt", weights_only=True)
    assert torch.equal(final["params"], result.params)
    flat = torch.cat([p.detach().reshape(-1) for p in result.module.parameters()])
    assert torch.equal(flat, result.params)


@pytest.mark.parametrize(("samples", "clients"), [(1000, 8), (999, 8), (1000, 7)])
def test_files_of_more_samples_or_clients_than_the_limits_are_left_out(runs, monkeypatch, samples, clients):
    monkeypatch.setattr(session, "MOST_SAMPLES", samples)
    monkeypatch.setattr(session, "MOST_CLIENTS", clients)
    folder = run(DIGITS, runs, "rounds=0").run_dir
    assert (folder / "partition.json").exists() == (samples == 1000)
    assert (folder / "partition_counts.json").exists() == (clients == 8)
    if samples == 1000:
        owners = json.loads((folder / "partition.json").read_text())
        assert sorted(k for own in owners.values() for k in own) == list(range(1000))


def test_one_seed_is_one_world_for_every_algorithm(runs):
    """Partition, cohorts and links are the same.

    As the only local step starts from the initial model, equal bits of the loss mean equal weights, batches and
    dropout.
    """
    lossy = ["link.name=bernoulli", "link.q=0.3", "rounds=2", "local.steps=1", "eval.every=0"]
    worlds = set()
    for name in ("fedavg", "focus", "scaffold", "fedadam"):
        result = run(DIGITS, runs, *lossy, f"algorithm.name={name}")
        records = [(result.run_dir / file).read_text() for file in ("participation.jsonl", "partition.json")]
        worlds.add((*records, result.metrics[0]["train/loss"]))
    assert len(worlds) == 1
    other = run(DIGITS, runs, *lossy, "seed=1")
    assert other.metrics[0]["train/loss"] != worlds.pop()[-1]


def test_an_update_that_overflows_after_finite_losses_is_named(runs):
    """One step of 1e308: x leaves the range of float64 only after the one loss is known."""
    overflow = ["local.lr=1e308", "local.steps=1"]
    with pytest.raises(NonFinite, match=r"client \d+ sent a non-finite update in round 0; last finite loss -?\d"):
        run(QUADRATICS, runs, *overflow)
    result = run(QUADRATICS, runs, *overflow, "runtime.on_nonfinite=drop", "rounds=1")
    assert result.params.tolist() == [1.0, 1.0, 1.0]
    assert len(result.metrics[0]["events"]) == 6


# -- split learning on shipped networks -------------------------------------------------------------------------------


WORLD = ["data.init_args.upscale=28", "participation.name=uniform", "participation.size=2", "rounds=1"]
WORLD += ["local.steps=2", "local.batch_size=4", "eval.every=0", "runtime.backend=local"]


def test_a_cut_model_takes_the_trajectory_of_the_whole_one_and_the_ways_of_its_gradient_send_the_same():
    """The gradient is computed by matrix products with the batch last, by kernels, and by autograd."""
    ways = ["batch_last", "channels_last", "auto"]
    models = ["model.name=lenet5"] * 2 + ["model.class_path=tests.runtime.modules.Plain"]
    rows, cut = [], ["algorithm.name=ssl", "algorithm.cut=layers.pool1"]
    for way, model in zip(ways, models, strict=True):
        world = [*WORLD, model, f"runtime.layout={way}"]
        apart = rounds_of("digits", [*world, *cut])
        rows.append({k: v for k, v in apart.metrics[-1].items() if k.startswith("cost/")})
        if way == "batch_last":
            together = rounds_of("digits", [*world, "algorithm.name=sfl"])
            assert torch.equal(together.params, apart.params)
    assert rows[0] == rows[1] == rows[2]
    assert rows[0]["cost/uplink_floats"] != together.metrics[-1]["cost/uplink_floats"]
