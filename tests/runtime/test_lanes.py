"""Local steps on lanes against plain loops: the same numbers, with graphs where their results prove them."""

import json
import random
from dataclasses import dataclass
from unittest import mock

import pytest
import torch
from lightning.pytorch import LightningModule
from torch import nn
from torchmetrics import MeanMetric

import raylfl
from raylfl.algorithms.fedavg import FedAvg
from raylfl.core.lane_steps import LaneSteps
from raylfl.runtime.workers.backend import LocalBackend
from raylfl.runtime.workers.worker import Worker
from tests.core.emulated_lanes import EmulatedLanes
from tests.runtime.measured import rounds_of
from tests.runtime.modules import Counting
from tests.runtime.test_run import DIGITS
from tests.shares import also, one_in

MLP = "model={name: mlp, init_args: {in_shape: [1, 8, 8], num_classes: 10}}"
TOGETHER = ["runtime.micro_cohort=8", "rounds=2", "local.steps=4"]
SAME_SIZES = "local.sampling=with_replacement"


def run_on_lanes(config, overrides, count=3, run=rounds_of, **objects):
    """(the result of a run whose local steps are on emulated lanes, the lanes)."""
    lanes = EmulatedLanes(count)
    with mock.patch("raylfl.runtime.workers.forms.lanes_of", return_value=lanes):
        return run(config, [*overrides, "runtime.backend=local"], **objects), lanes


def steps_of(result):
    """(form of the local step, why) of all forms of a run."""
    rows = json.loads((result.run_dir / "summary.json").read_text())["local_steps"]
    return [(row["step"], row["why"]) for row in rows]


class Net(LightningModule):
    """A network of users; `step` is what its subclasses change."""

    def __init__(self):
        super().__init__()
        self.body = nn.Sequential(nn.Flatten(), nn.Linear(64, 12), nn.Tanh(), nn.Linear(12, 10))

    def training_step(self, batch, batch_idx):
        x, y = batch
        return nn.functional.cross_entropy(self.body(x), y)

    def validation_step(self, batch, batch_idx):
        self.log("accuracy", (self.body(batch[0]).argmax(1) == batch[1]).float().mean())


class Numbered(Net):
    def training_step(self, batch, batch_idx):
        return super().training_step(batch, batch_idx) * (1 + batch_idx)


class Reading(Net):
    def training_step(self, batch, batch_idx):
        loss = super().training_step(batch, batch_idx)
        return loss * (2.0 if loss.item() > 2.3 else 1.0)


class OnTheHost(Net):
    """Random numbers of Python, which a graph would repeat."""

    def training_step(self, batch, batch_idx):
        return super().training_step(batch, batch_idx) * (1 + random.random())


class Logging(Net):
    def training_step(self, batch, batch_idx):
        loss = super().training_step(batch, batch_idx)
        self.log("double", 2 * loss)
        if batch[0].shape[0] < 16:
            self.log("small", loss.detach() * 0 + 1)
        return loss


class Dropping(Net):
    def __init__(self):
        super().__init__()
        self.drop = nn.Dropout(0.5)

    def training_step(self, batch, batch_idx):
        x, y = batch
        return nn.functional.cross_entropy(self.body(self.drop(x)), y)


class Normed(Net):
    def __init__(self):
        super().__init__()
        self.body = nn.Sequential(nn.Flatten(), nn.Linear(64, 12), nn.BatchNorm1d(12), nn.Tanh(), nn.Linear(12, 10))


class Hooked(Net):
    """A hook on a parameter, which freezes half of its rows."""

    def __init__(self):
        super().__init__()
        self.body[1].weight.register_hook(lambda g: torch.cat([g[:6], torch.zeros_like(g[6:])]))


@pytest.mark.parametrize(
    ("algorithm", "form", "more"),
    [
        ("scaffold", "never", ["local.sampling=reshuffle"]),
        also("focus", "never", [SAME_SIZES]),
        ("scaffold", "auto", [SAME_SIZES]),
    ],
)
def test_graphs_have_the_bits_of_steps_without_graphs(algorithm, form, more):
    settings = [MLP, f"algorithm.name={algorithm}", *TOGETHER, f"runtime.vectorize={form}", *more]
    settings += ["local.momentum=0.9", "local.clip_norm=1.0", "local.weight_decay=0.01"]
    ours, lanes = run_on_lanes(DIGITS, settings)
    plain, _ = run_on_lanes(DIGITS, [*settings, "runtime.graphs=never"])
    assert lanes.replays > lanes.captures
    assert lanes.captures > 2 if form == "never" else lanes.captures == 1
    assert torch.equal(ours.params, plain.params)
    if form == "never" and SAME_SIZES in more:  # equal steps of all clients are one launch
        assert lanes.joint >= 3
    here = rounds_of(DIGITS, [*settings, "runtime.backend=local"])
    torch.testing.assert_close(ours.params, here.params, rtol=1e-5, atol=1e-6)


SKEWED = "partition={name: dirichlet, alpha: 0.3, min_size: 2}"
UNEQUAL = {
    "steps of AdamW": ["local.steps={uniform: [1, 5]}", "local.optimizer=adamw", "local.lr=0.01"],
    "batches, kept momentum": [
        *("num_clients=20", "participation.size=9", "local.batch_size=50"),
        *("local.momentum=0.9", "local.optimizer_state=kept"),
    ],
    "epochs, a falling rate": [
        *("local.epochs=2", "local.steps=null", SKEWED),
        *("local.lr_schedule={name: step_exponential, decay: 0.5}", "eval.drift=true"),
    ],
    "full batches on a graph": [
        *("local.batch_size=full", SKEWED),
        *("algorithm.name=dsgd", "topology.name=ring", "participation={name: full}"),
    ],
    "a ring": ["algorithm.name=sfl"],
}


@pytest.mark.parametrize("case", one_in(2, UNEQUAL))
def test_unequal_work_is_that_of_the_host(case):
    settings = [MLP, *TOGETHER, "runtime.vectorize=never", *UNEQUAL[case]]
    ours, lanes = run_on_lanes(DIGITS, settings)
    here = rounds_of(DIGITS, [*settings, "runtime.backend=local"])
    torch.testing.assert_close(ours.params, here.params, rtol=1e-5, atol=2e-6)
    assert lanes.replays > 0
    for name in {"train/loss", "train/local_drift"} & here.metrics[-1].keys():
        assert ours.metrics[-1][name] == pytest.approx(here.metrics[-1][name], rel=1e-4)


REFUSED = {
    Counting: "changes the attribute `steps`",
    Numbered: "has other results as a CUDA graph",
    Reading: "cannot be captured",
    OnTheHost: "has other results as a CUDA graph",
}


@pytest.mark.parametrize("module", REFUSED, ids=lambda cls: cls.__name__)
def test_steps_that_a_graph_would_change_run_without_one_and_say_why(runs, module):
    settings = [*TOGETHER, SAME_SIZES, "runtime.vectorize=never"]
    ours, _ = run_on_lanes(DIGITS, [*runs, *settings], run=raylfl.run, model=module)
    forms = steps_of(ours)
    assert "captured" not in dict(forms)
    assert any(REFUSED[module] in why for _, why in forms)
    here = rounds_of(DIGITS, [*settings, "runtime.backend=local", "runtime.step=autograd"], model=module)
    torch.testing.assert_close(ours.params, here.params, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize(
    ("sampling", "module"), [("reshuffle", Logging), ("with_replacement", Normed), also("reshuffle", Hooked)]
)
def test_users_modules_are_captured_with_the_results_of_plain_steps(module, sampling):
    settings = [*TOGETHER, "local.steps=6", f"local.sampling={sampling}", "runtime.vectorize=never"]
    settings += ["num_clients=20", "participation.size=9", "local.batch_size=30"]
    ours, lanes = run_on_lanes(DIGITS, settings, model=module)
    here = rounds_of(DIGITS, [*settings, "runtime.backend=local", "runtime.step=autograd"], model=module)
    torch.testing.assert_close(ours.params, here.params, rtol=1e-5, atol=1e-6)
    assert lanes.replays > 0
    for mine, theirs in zip(ours.metrics, here.metrics, strict=True):
        names = {name for name in theirs if name.startswith(("train/", "test/"))}
        assert names <= mine.keys()
        for name in names:
            assert mine[name] == pytest.approx(theirs[name], rel=1e-4, nan_ok=True), name


def test_draws_of_a_client_do_not_depend_on_the_others_of_its_call():
    settings = ["rounds=2", "local.steps=4", SAME_SIZES, "runtime.vectorize=never"]
    results = [
        run_on_lanes(DIGITS, [*settings, f"runtime.micro_cohort={clients}"], lanes, model=Dropping)[0].params
        for clients, lanes in ((8, 3), (1, 1), (2, 5))
    ]
    assert all(torch.equal(results[0], other) for other in results[1:])
    plain, _ = run_on_lanes(DIGITS, [*settings, "runtime.graphs=never", "runtime.micro_cohort=8"], model=Dropping)
    assert torch.equal(results[0], plain.params)


def test_a_vectorised_step_that_becomes_wrong_ends_the_run():
    """Its graph has the bits of the vectorised step itself; only the client's own step shows what is wrong."""

    class Drifting(Net):
        def training_step(self, batch, batch_idx):
            loss = super().training_step(batch, batch_idx)
            together = torch._C._functorch.is_batchedtensor(loss)
            return loss * (5 if together and len(compared) > 6 else 3)

    compared, plain = [], LaneSteps._compare

    def compare(self, step, kind):
        compared.append(step.t)
        plain(self, step, kind)

    settings = [*TOGETHER, "rounds=60", SAME_SIZES]
    with (
        mock.patch.object(LaneSteps, "_compare", compare),
        pytest.raises(raylfl.errors.BadConfig, match=r"(?s)several clients in one call.*runtime.vectorize=never"),
    ):
        run_on_lanes(DIGITS, settings, model=Drifting)


@pytest.mark.parametrize("form", ["never", also("auto")])
def test_a_graph_that_becomes_wrong_by_an_evaluation_ends_the_run(runs, form):
    """The evaluation after round 9 changes a number outside the module, of which a graph knows the former value."""
    scale, rounds = {"of": 3.0}, []

    class Scaling(Net):
        def training_step(self, batch, batch_idx):
            return super().training_step(batch, batch_idx) * scale["of"]

        def validation_step(self, batch, batch_idx):
            super().validation_step(batch, batch_idx)
            scale["of"] = 3.0 if len(rounds) < 8 else 4.5

    class Rounds(raylfl.Callback):
        def on_round_end(self, *record):
            rounds.append(record)

    settings = [
        *runs,
        *TOGETHER,
        "rounds=60",
        "eval.every=9",
        SAME_SIZES,
        f"runtime.vectorize={form}",
        "participation.size=5",
    ]
    with pytest.raises(raylfl.errors.BadConfig, match=r"(?s)captured step number \d+.*runtime.step=autograd"):
        run_on_lanes(DIGITS, settings, run=raylfl.run, model=Scaling, callbacks=[Rounds()])
    assert 9 <= len(rounds) <= 11


# -- one launch for all clients ----------------------------------------------------------------------------------------


def test_clients_of_a_joint_step_share_one_gather_and_one_update():
    """Beside each client's own gradient, the operators of a joint graph are as many for seven clients as for three."""
    shared = []
    for clients in (3, 7):
        settings = [MLP, *TOGETHER, SAME_SIZES, f"participation.size={clients}", "local.momentum=0.9"]
        _, lanes = run_on_lanes(DIGITS, [*settings, "runtime.vectorize=never"])
        views = clients  # of the gathered batches
        shared.append((lanes.shared_operators[0] - 2 * views, lanes.shared_operators[1]))
    assert shared[0] == shared[1]


@dataclass
class ByNumber(FedAvg):
    """A direction that depends on the number of rows, as a sum over a row may by rounding."""

    def direction(self, x, g, carry):
        return g * (1 + 1e-5 * len(x)), carry


def test_clients_move_one_by_one_where_they_move_otherwise_together():
    settings = [MLP, *TOGETHER, SAME_SIZES, "runtime.vectorize=never", "rounds=4"]
    settings += ["algorithm.class_path=tests.runtime.test_lanes.ByNumber"]
    ours, lanes = run_on_lanes(DIGITS, settings)
    plain, _ = run_on_lanes(DIGITS, [*settings, "runtime.graphs=never"])
    assert torch.equal(ours.params, plain.params)
    assert lanes.joint > 4


# -- the host goes on while the device computes ------------------------------------------------------------------------


def test_the_steps_of_the_next_round_are_launched_before_a_round_is_recorded(runs):
    """So that a device computes while the host writes, evaluates and plans."""
    launched, lanes = [], EmulatedLanes()

    class Rounds(raylfl.Callback):
        def on_round_end(self, *record):
            launched.append(lanes.replays)

    with mock.patch("raylfl.runtime.workers.forms.lanes_of", return_value=lanes):
        settings = [*runs, *TOGETHER, SAME_SIZES, "rounds=5", "runtime.backend=local", "runtime.vectorize=never"]
        raylfl.run(DIGITS, settings, model=Net, callbacks=[Rounds()])
    assert len(launched) == 5
    assert launched[-1] == launched[-2]  # with the last round but one, the steps of the last one are launched
    assert launched[-2] > launched[-3] > launched[-4]


@pytest.mark.parametrize("case", ["buffers", also("a metric"), "together"])
def test_an_evaluation_between_the_launch_and_the_result_of_local_work_changes_neither(case, monkeypatch):
    """Batch normalisation has buffers, a metric object has state, and clients have unequal numbers of steps."""

    class Normed(Net):
        def __init__(self):
            super().__init__()
            self.body.insert(1, nn.BatchNorm1d(64))
            self.right = MeanMetric() if case == "a metric" else None

        def training_step(self, batch, batch_idx):
            loss = super().training_step(batch, batch_idx)
            self.log("twice", 2 * loss.detach())
            if self.right is not None:
                self.right(loss.detach())
                self.log("seen", self.right)
            return loss

    settings = [*TOGETHER, "eval.every=1", "eval.global=true", "local.epochs=1", "local.steps=null"]
    settings += ["runtime.vectorize=always"] if case == "together" else []
    ours, lanes = run_on_lanes(DIGITS, settings, model=Normed)
    assert bool(lanes.replays) == (case == "buffers")
    monkeypatch.setattr(LocalBackend, "begin", lambda *args: None)
    theirs, _ = run_on_lanes(DIGITS, settings, model=Normed)
    assert torch.equal(ours.params, theirs.params)
    assert ours.metrics == theirs.metrics


def test_work_that_fails_after_its_launch_is_tried_again_and_then_reported(monkeypatch):
    failures, plain = [], Worker._result

    def result(self, *rest):
        failures.append(len(failures))
        if len(failures) < 3:
            raise RuntimeError("an error that a kernel reports late")
        return plain(self, *rest)

    settings = [*TOGETHER, "runtime.client_retries=1", "runtime.vectorize=never", SAME_SIZES]
    before = torch.get_rng_state()
    expected, _ = run_on_lanes(DIGITS, settings, model=Net)
    monkeypatch.setattr(Worker, "_result", result)
    found, _ = run_on_lanes(DIGITS, settings, model=Net)
    assert torch.equal(found.params, expected.params)
    assert torch.equal(torch.get_rng_state(), before)
    assert len(failures) > 3
