"""Whole runs in process: closed forms, records, replay, and the interface of user code."""

from __future__ import annotations

import json

import numpy as np
import pytest
import torch
import yaml
from lightning.pytorch import LightningModule

import raylfl
from raylfl.errors import BadConfig, NonFinite
from tests.runtime.faults import outcome
from tests.runtime.modules import Quadratics
from tests.runtime.tiny import TINY, Points
from tests.shares import also, one_in

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


def test_fedavg_on_quadratics_is_the_average_of_plain_gradient_descents(runs):
    result, data = run(QUADRATICS, runs), Quadratics()
    x = np.ones(3)
    for _ in range(6):
        ends = []
        for hessian, b in zip(data.hessians, data.b, strict=True):
            z = x.copy()
            for _ in range(3):
                z = z - 0.1 * (hessian @ z - b)
            ends.append(z)
        x = np.mean(ends, axis=0)
    np.testing.assert_allclose(result.params.numpy(), x, rtol=1e-12)
    assert result.params.dtype == torch.float64
    optimum = data.optimum().numpy()
    expected = np.linalg.norm(x - optimum) / np.linalg.norm(optimum)
    assert result.metrics[-1]["global/distance"] == pytest.approx(expected, rel=1e-10)


SCHEDULES = {  # eta_{r,t} / eta in round r and local step t, with decay 0.7 and period 2
    "exponential": lambda r, t: 0.7**r,
    "sqrt": lambda r, t: (1 + r / 2) ** -0.5,
    "step_exponential": lambda r, t: 0.7**t,
    "step_sqrt": lambda r, t: (1 + t / 2) ** -0.5,
}


@pytest.mark.parametrize("name", SCHEDULES)
def test_local_rates_follow_the_closed_form_of_the_schedule_in_every_round_and_step(runs, name):
    options = f"{{name: {name}, " + ("decay: 0.7}" if "exponential" in name else "period: 2}")
    result, data, x = run(QUADRATICS, runs, f"local.lr_schedule={options}"), Quadratics(), np.ones(3)
    for r in range(6):
        ends = np.tile(x, (6, 1))
        for t in range(3):
            gradients = np.einsum("nij,nj->ni", data.hessians, ends) - data.b
            ends -= 0.1 * SCHEDULES[name](r, t) * gradients
        x = ends.mean(axis=0)
    np.testing.assert_allclose(result.params.numpy(), x, rtol=1e-12)


@pytest.mark.parametrize("name", SCHEDULES)
@pytest.mark.parametrize("uplink", ["both", "update"])
@pytest.mark.parametrize("steps", [also([3] * 6), [1, 2, 3, 4, 5, 2]])
def test_scaffolds_variates_are_means_of_gradients_under_every_schedule(runs, name, uplink, steps):
    """Option 2 with the divisor sum_t eta_t: c_i+ is the mean of the client's gradients with weights eta_t."""
    options = f"{{name: {name}, " + ("decay: 0.7}" if "exponential" in name else "period: 2}")
    given = ["algorithm.name=scaffold", f"algorithm.uplink={uplink}", f"local.lr_schedule={options}"]
    result = run(QUADRATICS, runs, *given, f"local.steps={{list: {steps}}}")
    data, x, variates = Quadratics(), np.ones(3), np.zeros((6, 3))
    for r in range(6):
        ends, c, renewed = [], variates.mean(axis=0), []
        for i, (hessian, b) in enumerate(zip(data.hessians, data.b, strict=True)):
            z, gradients = x.copy(), []
            rates = [0.1 * SCHEDULES[name](r, t) for t in range(steps[i])]
            for rate in rates:
                gradients.append(hessian @ z - b)
                z = z - rate * (gradients[-1] - variates[i] + c)
            ends.append(z)
            renewed.append(np.average(gradients, axis=0, weights=rates))
        x, variates = np.mean(ends, axis=0), np.array(renewed)
    np.testing.assert_allclose(result.params.numpy(), x, rtol=1e-11)


@pytest.mark.parametrize(
    ("name", "algorithm"), one_in(3, [(name, algorithm) for name in SCHEDULES for algorithm in ("kgt", "led")])
)
def test_graph_methods_divide_by_the_sum_of_the_learning_rates_of_the_steps(runs, name, algorithm):
    """On the complete graph W = 11'/N: K-GT's z is a mean of directions, and LED subtracts e once in K steps."""
    options = f"{{name: {name}, " + ("decay: 0.7}" if "exponential" in name else "period: 2}")
    given = [f"algorithm.name={algorithm}", f"local.lr_schedule={options}", "topology.name=complete"]
    result = run(QUADRATICS, runs, *given, *(["algorithm.lazy=false"] if algorithm == "led" else []))
    data, rows, duals = Quadratics(), np.ones((6, 3)), np.zeros((6, 3))
    for r in range(6):
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


def test_focus_with_one_step_and_full_participation_is_gradient_descent_with_step_n_gamma(runs):
    result = run(QUADRATICS, runs, "algorithm.name=focus", "local.steps=1", "algorithm.gamma=0.02", "rounds=5")
    data, x = Quadratics(), np.ones(3)
    for _ in range(5):
        gradient = np.mean(data.hessians @ x - data.b, axis=0)
        x = x - 6 * 0.02 * gradient
    np.testing.assert_allclose(result.params.numpy(), x, rtol=1e-12)


def test_the_objective_and_its_gradient_are_those_of_f(runs):
    result, data = run(QUADRATICS, runs, "eval.global=true"), Quadratics()
    x = result.params.numpy()
    losses = [0.5 * x @ h @ x - b @ x for h, b in zip(data.hessians, data.b, strict=True)]
    gradient = np.mean(data.hessians @ x - data.b, axis=0)
    last = result.metrics[-1]
    assert last["global/loss"] == pytest.approx(np.mean(losses), rel=1e-12)
    assert last["global/grad_norm"] == pytest.approx(np.linalg.norm(gradient), rel=1e-12)


def test_traffic_and_work_are_counted_from_what_is_sent_and_done(runs):
    overrides = ["participation.name=uniform", "participation.size=4", "link.name=bernoulli", "link.q=0.5"]
    star = run(QUADRATICS, runs, *overrides).metrics[-1]
    assert star["cost/downlink_floats"] == star["cost/uplink_floats"] == 6 * 4 * 3
    assert star["cost/local_steps"] == star["cost/gradients"] == 6 * 4 * 3
    ring = run(QUADRATICS, runs, *overrides, "algorithm.name=sfl").metrics[-1]
    assert (ring["cost/downlink_floats"], ring["cost/uplink_floats"]) == (6 * 3, 6 * 3)
    assert ring["cost/peer_floats"] == 6 * 3 * 3


@pytest.mark.parametrize("algorithm", ["fedavg", "focus", "sfl"])
def test_buffers_that_stay_with_the_clients_are_neither_sent_nor_counted(runs, algorithm):
    """BatchNorm over six units has a mean and a variance of each; how many batches it saw stays where it is."""
    config = {**TINY, "rounds": 2, "algorithm": {"name": algorithm}}
    both = [run(config, runs, f"local.buffers={kind}").metrics[-1] for kind in ("average", "local")]
    for way in ("uplink", "downlink", "peer"):
        averaged, local = (row[f"cost/{way}_floats"] for row in both)
        hops = local / 63
        assert averaged == hops * (63 + 12)


def test_buffers_are_averaged_over_the_received_clients(runs):
    """After one step on all samples a running mean is a tenth of the batch's; here of six clients' batches."""
    config = {**TINY, "participation": {"name": "full"}, "link": {"name": "perfect"}, "partition": {"name": "natural"}}
    owned = ["data.init_args.owners=6", "local={steps: 1, batch_size: full}", "num_clients=null"]
    fresh, trained = (run(config, runs, *owned, f"rounds={rounds}").module for rounds in (0, 1))
    with torch.no_grad():
        means = torch.stack([fresh.body[0](x).mean(0) for x in Points().x.chunk(6)])
    assert (means.std(0) > 0.01).all()  # one client's mean is not another's
    torch.testing.assert_close(trained.body[1].running_mean, 0.1 * means.mean(0))


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


@pytest.mark.parametrize("assigned", [True, False])
@pytest.mark.parametrize("step", ["auto", "autograd"])
def test_a_buffer_that_a_step_assigns_is_averaged_as_one_that_it_changes(runs, assigned, step):
    config = {**TINY, "participation": {"name": "full"}, "link": {"name": "perfect"}, "partition": {"name": "natural"}}
    config["model"] = {"class_path": "tests.runtime.test_run.Seen", "init_args": {"assigned": assigned}}
    owned = ["data.init_args.owners=6", "local={steps: 5, batch_size: full}", "num_clients=null", "rounds=2"]
    result = run(config, runs, *owned, f"runtime.step={step}", "eval.every=1")
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


def test_initial_parameters_are_the_seeds_and_not_the_algorithms(runs):
    start = [run(TINY, runs, "rounds=0", f"seed={seed}").params for seed in (0, 0, 1)]
    other = run(TINY, runs, "rounds=0", "seed=0", "algorithm.name=focus").params
    assert torch.equal(start[0], start[1])
    assert torch.equal(start[0], other)
    assert not (start[0] == start[2])[:24].any()  # the first layer's weights, drawn at random


def test_the_single_client_that_owns_all_data_has_no_local_buffers(runs):
    config = {**TINY, "rounds": 2, "algorithm": {"name": "centralized"}}
    average, local = (run(config, runs, f"local.buffers={kind}").run_dir for kind in ("average", "local"))
    assert outcome(average) == outcome(local)


def test_a_run_leaves_the_records_that_the_interface_names(runs):
    result = run(DIGITS, runs)
    folder = result.run_dir
    assert {p.name for p in folder.iterdir()} >= {
        "config.yaml",
        "metrics.jsonl",
        "participation.jsonl",
        "checkpoints",
        "final.pt",
        "summary.json",
        "log.txt",
        "partition.json",
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


def test_the_saved_config_reproduces_the_run(runs):
    first = run(DIGITS, runs)
    saved = yaml.safe_load((first.run_dir / "config.yaml").read_text())
    again = run(saved, runs)
    assert torch.equal(first.params, again.params)
    assert again.run_dir != first.run_dir


def test_a_replayed_trace_gives_the_same_file_and_the_same_parameters(runs):
    lossy = ["link.name=bernoulli", "link.q=0.4", "local.steps={uniform: [1, 5]}", "local.dynamic=true"]
    first = run(DIGITS, runs, *lossy)
    trace = first.run_dir / "participation.jsonl"
    again = run(DIGITS, runs, "participation.name=trace", f"participation.path={trace}")
    assert (again.run_dir / "participation.jsonl").read_bytes() == trace.read_bytes()
    assert torch.equal(again.params, first.params)


def test_one_seed_is_one_world_for_every_algorithm(runs):
    """Partition, cohorts and links are the same.

    As the only local step starts from the initial model, equal bits of the loss mean equal weights, batches and
    dropout.
    """
    lossy = ["link.name=bernoulli", "link.q=0.3", "rounds=3", "local.steps=1"]
    worlds = set()
    for name in ("fedavg", "focus", "fednova", "feddyn", "scaffold", "fedadam", "mifa"):
        result = run(DIGITS, runs, *lossy, f"algorithm.name={name}")
        records = [(result.run_dir / file).read_text() for file in ("participation.jsonl", "partition.json")]
        worlds.add((*records, result.metrics[0]["train/loss"]))
    assert len(worlds) == 1
    other = run(DIGITS, runs, *lossy, "seed=1")
    assert other.metrics[0]["train/loss"] != worlds.pop()[-1]


def test_an_empty_round_changes_nothing_and_is_recorded(runs):
    result = run(QUADRATICS, runs, "participation.name=bernoulli", "participation.p=0.0", "rounds=2")
    assert result.params.tolist() == [1.0, 1.0, 1.0]
    assert [m["cohort/sampled"] for m in result.metrics] == [0, 0]
    assert all("train/loss" not in m for m in result.metrics)


def test_divergence_ends_in_one_line_that_names_client_round_and_remedy(runs):
    with pytest.raises(NonFinite, match=r"client \d+ sent a non-finite update in round \d+.*local.lr"):
        run(QUADRATICS, runs, "local.lr=1e200")


def test_an_update_that_overflows_after_finite_losses_is_named(runs):
    """One step of 1e308: x leaves the range of float64 only after the one loss is known."""
    overflow = ["local.lr=1e308", "local.steps=1"]
    with pytest.raises(NonFinite, match=r"client \d+ sent a non-finite update in round 0; last finite loss -?\d"):
        run(QUADRATICS, runs, *overflow)
    result = run(QUADRATICS, runs, *overflow, "runtime.on_nonfinite=drop", "rounds=1")
    assert result.params.tolist() == [1.0, 1.0, 1.0]
    assert len(result.metrics[0]["events"]) == 6


def test_non_finite_updates_can_be_dropped_and_count_as_lost(runs):
    result = run(QUADRATICS, runs, "local.lr=1e200", "runtime.on_nonfinite=drop", "rounds=2")
    assert result.params.tolist() == [1.0, 1.0, 1.0]
    rows = [json.loads(line) for line in (result.run_dir / "participation.jsonl").read_text().splitlines()]
    assert all(not any(row["received"]) for row in rows)
    assert all("non-finite" in event for m in result.metrics for event in m["events"])


def test_the_modules_own_optimizer_is_used_if_configured(runs):
    plain = run(QUADRATICS, runs, "local.lr=0.1")
    own = run(QUADRATICS, runs, "local.optimizer=module", "local.lr=0.7")  # its SGD has lr 0.1
    np.testing.assert_allclose(own.params.numpy(), plain.params.numpy(), rtol=1e-13)


def test_an_existing_id_is_never_overwritten(runs):
    run(QUADRATICS, runs, "logging.id=mine")
    with pytest.raises(BadConfig, match="never overwritten"):
        run(QUADRATICS, runs, "logging.id=mine")


@pytest.mark.parametrize(
    ("overrides", "words"),
    [
        (["model.class_path=tests.runtime.modules.Quadratik"], "did you mean Quadratic"),
        (["model.class_path=no.such.Module"], "cannot import"),
        (["model.init_args.dim=4"], "cannot be trained on a batch of"),
        (["model.init_args.dims=4"], "unknown key model.init_args.dims; did you mean model.init_args.dim"),
        (["num_clients=5"], "num_clients"),
        (["participation.name=uniform", "participation.size=99"], "participation.size=99"),
        (["local.lr=-1"], "local.lr=-1"),
        (["partition.name=dirichlet", "num_clients=3"], "label"),
    ],
)
def test_mistakes_end_before_anything_is_written(runs, tmp_path, overrides, words):
    with pytest.raises(BadConfig) as caught:
        run(QUADRATICS, runs, *overrides)
    assert words in str(caught.value)
    assert not (tmp_path / "runs").exists()
