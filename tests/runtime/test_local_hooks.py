"""Lightning's hooks in local work, its logs, schedulers and clipping, against loops written out."""

import numpy as np
import pytest
import torch
from torch import nn

import raylfl
from raylfl.config.load import load_config
from raylfl.core.flat import FlatModule
from raylfl.errors import BadConfig
from raylfl.python.api import checked
from raylfl.runtime.workers.evaluate import Recorder
from raylfl.runtime.workers.optimizer import ModuleOptimizer
from raylfl.runtime.workers.task import Task
from raylfl.runtime.workers.training import Training
from raylfl.runtime.workers.worker import Worker
from tests.runtime.lightning_modules import Clipping, Scheduled
from tests.runtime.tiny import PERFECT, TINY, Net, Points

LOCAL = {**PERFECT, "rounds": 2, "local": {"steps": 5, "batch_size": 4, "lr": 0.05}}
PLAIN = {**LOCAL, "model": {**TINY["model"], "init_args": {"norm": False, "dropout": 0.0}}}
ALONE = ["num_clients=1", "local.batch_size=full", "rounds=1"]


def run(name, runs, *overrides):
    return raylfl.run(LOCAL, [*runs, f"model.class_path=tests.runtime.lightning_modules.{name}", *overrides])


def test_training_hooks_are_called_in_lightnings_order_and_change_no_bits_by_themselves(runs):
    """The module compares the calls with the expected ones when each client's work ends."""
    hooked, plain = run("Hooked", runs), raylfl.run(PLAIN, [*runs, "runtime.vectorize=never"])
    assert torch.equal(hooked.params, plain.params)
    assert [row["train/epochs"] for row in hooked.metrics] == [2.0, 2.0]
    assert "clients work one by one: the model's on_train_start is called" in (hooked.run_dir / "log.txt").read_text()


def test_hooks_may_change_gradients_and_weights(runs):
    """One client with all data: sign descent, clamped after each step, and a bias set at the end."""
    result = run("Hooked", runs, "model.init_args={moves: true, epoch: 1}", *ALONE)
    module = raylfl.run(PLAIN, [*runs, "rounds=0"]).module
    x, y = Points().train_dataset().tensors
    for _ in range(5):
        module.zero_grad()
        nn.functional.cross_entropy(module.body(x), y).backward()
        with torch.no_grad():
            for p in module.parameters():
                p -= 0.05 * p.grad.sign()
                p.clamp_(-0.5, 0.5)
    with torch.no_grad():
        module.body[0].bias.fill_(0.25)
    torch.testing.assert_close(result.params, torch.cat([p.detach().reshape(-1) for p in module.parameters()]))


@pytest.mark.parametrize("vectorize", ["auto", "never"])
def test_what_training_steps_log_is_in_the_rows_as_means_over_steps_and_clients(runs, vectorize):
    """K_i = 1..6: of batch_idx 0..K_i - 1 the mean is (K_i - 1) / 2; some batches are smaller than others."""
    steps = "local.steps={list: [1, 2, 3, 4, 5, 6]}"
    result = run("Telling", runs, steps, f"runtime.vectorize={vectorize}")
    plain = raylfl.run(PLAIN, [*runs, steps, f"runtime.vectorize={vectorize}"])
    for row, other in zip(result.metrics, plain.metrics, strict=True):
        assert row["train/index"] == np.mean([(k - 1) / 2 for k in range(1, 7)])
        assert row["train/steps"] == 3.5
        # the loss that training_step returned; a dense network without logs runs as matrix products
        assert row["train/loss"] == pytest.approx(other["train/loss"], rel=1e-6 if vectorize == "auto" else 0)
        assert 0 < row["train/accuracy"] < 1
    tolerance = 1e-5 if vectorize == "auto" else 0
    torch.testing.assert_close(result.params, plain.params, rtol=tolerance, atol=tolerance / 10)


def test_metric_objects_in_training_are_computed_once_a_client(runs):
    """The mean accuracy of the steps is that of all samples, because batches are whole shards of one size."""
    row = run("TellingByMetric", runs, "local.batch_size=full").metrics[-1]
    assert row["train/by_metric"] == pytest.approx(row["train/accuracy"], rel=1e-6)


def model(name):
    return f"model.class_path=tests.runtime.lightning_modules.{name}"


def test_attributes_that_a_client_changes_do_not_reach_other_clients(runs):
    """Client 1 alone on a fresh worker, and after client 0 and an evaluation on another one."""
    setup = checked(load_config(LOCAL, [*runs, model("Counting")])).setup
    busy, fresh = Worker(setup), Worker(setup)
    broadcast = {"x": busy.initial.x}
    tasks = [Task(0, (c,), (3,), (4,), (3.0,), 0.05) for c in (0, 1)]
    busy.run(tasks[0], broadcast, [None])
    after_another, alone = (worker.run(tasks[1], broadcast, [None]).uploads for worker in (busy, fresh))
    assert torch.equal(after_another["update"], alone["update"])
    row = run("Counting", runs).metrics[-1]
    assert (row["test/count"], row["test/left"]) == (1.0, 0.0)


def test_a_hook_that_cuts_local_work_short_is_refused(runs):
    with pytest.raises(BadConfig, match="on_train_batch_start returned -1"):
        run("Stopping", runs)


@pytest.mark.parametrize(
    ("form", "rates"),
    [
        ("plain", [1, 1, 1, 1]),
        ("list", [1, 1, 1, 1]),
        ("two lists", [1, 1, 1, 0.5]),  # an epoch of three steps
        ("dict", [1, 1, 1, 0.5]),
        ("step", [1, 0.5, 0.25, 0.125]),
        ("every second", [1, 1, 0.5, 0.5]),
    ],
)
def test_optimizers_and_schedulers_are_stepped_as_lightning_does(form, rates):
    module = Scheduled(form, lr=1.0)
    flat = FlatModule(module, torch.float64, torch.device("cpu"))
    optimizer, ones, moved = ModuleOptimizer(flat, 3), torch.ones(1, flat.width, dtype=torch.float64), []
    for _ in rates:
        before = flat.params.clone()
        optimizer.step(flat.params[None], ones, ones[:, :0], lr=0.0)
        moved.append(float((before - flat.params).mean()))
    np.testing.assert_allclose(moved, rates, rtol=1e-12)


def test_schedules_restart_with_every_local_work(runs):
    """The closed form is raylfl's own schedule: eta, eta / 2, ... in every round."""
    overrides = ["local.optimizer=module", "model.init_args={form: step, lr: 0.05}", "runtime.vectorize=never"]
    theirs = run("Scheduled", runs, *overrides)
    schedule = "local.lr_schedule={name: step_exponential, decay: 0.5}"
    ours = raylfl.run(PLAIN, [*runs, schedule, "runtime.vectorize=never"])
    torch.testing.assert_close(theirs.params, ours.params)


@pytest.mark.parametrize(
    ("form", "words"),
    [("plateau", "as ReduceLROnPlateau needs"), ("two", "one optimizer, not 2"), ("none", "is refused")],
)
def test_optimizers_that_local_work_cannot_follow_are_refused_by_name(runs, form, words):
    with pytest.raises(BadConfig, match=r"Scheduled\.configure_optimizers") as caught:
        run("Scheduled", runs, "local.optimizer=module", f"model.init_args.form={form}")
    assert words in str(caught.value)


class OnlyTheBatch(Net):
    def training_step(self, batch):
        return self.body(batch).sum()


def test_a_step_may_take_the_batch_alone():
    module, recorder = OnlyTheBatch(norm=False, dropout=0.0), Recorder()
    recorder.attach(module)
    Training(FlatModule(module, torch.float32, torch.device("cpu")), recorder, None)
    assert module.training_step(torch.zeros(1, 4), 5).ndim == 0


# -- configure_gradient_clipping and the hooks before it --------------------------------------------------------------


STEPS, SIZE, LR = 5, 10, 0.05
CONFIG = {
    **PERFECT,
    "rounds": 2,
    "model": {"class_path": "tests.runtime.lightning_modules.Clipping"},
    "local": {"steps": STEPS, "batch_size": "full", "lr": LR},
}
CLIPS = {
    "norm": lambda parameters: nn.utils.clip_grad_norm_(parameters, 0.1),
    "value": lambda parameters: nn.utils.clip_grad_value_(parameters, 0.1),
}
OPTIMIZERS = {
    "module": (["local.optimizer=module"], lambda p: torch.optim.SGD(p, lr=LR, momentum=0.9)),
    "sgd": ([], lambda p: torch.optim.SGD(p, lr=LR)),
    "momentum": (["local.momentum=0.9"], lambda p: torch.optim.SGD(p, lr=LR, momentum=0.9)),
}


def worker_of(runs, *overrides):
    return Worker(checked(load_config(CONFIG, [*runs, *overrides])).setup)


def module_at(x):
    module = Net(norm=False, dropout=0.0)
    nn.utils.vector_to_parameters(x, module.parameters())
    return module


@pytest.mark.parametrize("optimizer", OPTIMIZERS)
@pytest.mark.parametrize("how", CLIPS)
def test_gradients_are_clipped_as_in_a_plain_loop(runs, how, optimizer):
    overrides, make = OPTIMIZERS[optimizer]
    worker = worker_of(runs, *overrides, f"model.init_args.how={how}")
    for client in (3, 0):
        task = Task(0, (client,), (STEPS,), (SIZE,), (float(STEPS),), LR)
        result = worker.run(task, {"x": worker.initial.x}, [None])
        module = module_at(worker.initial.x.clone())
        x, y = worker.train.batch(worker.setup.shards[client]).content
        steps, parameters, clipped = make(module.parameters()), list(module.parameters()), []
        for _ in range(STEPS):
            steps.zero_grad()
            nn.functional.cross_entropy(module.body(x), y).backward()
            CLIPS[how](parameters)
            clipped.append(float(nn.utils.get_total_norm([p.grad for p in parameters])))
            steps.step()
        update = worker.initial.x - nn.utils.parameters_to_vector(parameters).detach()
        assert torch.equal(result.uploads["update"][0], update)
        assert result.reports.logged["clipped"].tolist() == [max(clipped)]
        assert result.reports.logged["norm"] > max(clipped)  # the hook before sees unclipped gradients


def test_the_clip_norm_of_the_config_is_the_value_that_the_hook_receives(runs):
    """Lightning's `Trainer(gradient_clip_val=...)`; the local solver itself then leaves gradients alone."""
    given = ["local.clip_norm=0.1", "model.init_args={clip: null, how: null}"]
    theirs = raylfl.run(CONFIG, [*runs, *given])
    plain = {**CONFIG, "model": {**TINY["model"], "init_args": {"norm": False, "dropout": 0.0}}}
    ours = raylfl.run(plain, [*runs, "local.clip_norm=0.1", "runtime.vectorize=never"])
    torch.testing.assert_close(theirs.params, ours.params)
    assert theirs.metrics[-1]["train/clipped"] == pytest.approx(0.1, rel=1e-4)
    off = raylfl.run(CONFIG, [*runs, "model.init_args={clip: 0.0}", "local.clip_norm=null"])
    unclipped = raylfl.run(plain, [*runs, "runtime.vectorize=never"])
    assert torch.equal(off.params, unclipped.params)
    assert not torch.allclose(theirs.params, unclipped.params, atol=1e-3)


@pytest.mark.parametrize(("local", "expected"), [([], (None, None)), (["local.clip_norm=0.1"], (0.1, "norm"))])
def test_the_hook_receives_the_modules_optimizer_or_its_parameters_alone(runs, local, expected):
    task = Task(0, (0,), (1,), (SIZE,), (1.0,), LR)
    for overrides, options in ((["local.optimizer=module"], {"lr", "momentum"}), ([], set())):
        worker = worker_of(runs, *overrides, *local)
        worker.run(task, {"x": worker.initial.x}, [None])
        module = worker.flat.module
        assert isinstance(module, Clipping)
        assert module.given == expected
        (group,) = module.shown.param_groups
        assert all(a is b for a, b in zip(group["params"], module.parameters(), strict=True))
        assert options <= group.keys()
        assert options or group.keys() == {"params"}


def test_two_different_limits_are_refused_before_the_run(runs):
    with pytest.raises(
        BadConfig, match=r"local\.clip_norm=1\.0, but Clipping calls clip_gradients\(gradient_clip_val=0"
    ):
        raylfl.run(CONFIG, [*runs, "local.clip_norm=1.0"])


def test_a_module_that_clips_has_its_clients_run_one_by_one(runs):
    worker = worker_of(runs)
    assert worker.forms.one_by_one == "the model's on_after_backward is called for one client at a time"
    assert worker.loop.steps.refusal == "has on_after_backward beside it"  # no recorded step


class Hooked(Net):
    """A network whose gradients are clipped by hooks; the first steps have smaller gradients."""

    def __init__(self, kind):
        super().__init__(norm=False, dropout=0.0)
        self.kind = kind
        for p in self.parameters():
            if kind == "parameter":
                p.register_hook(clip)
            elif kind == "accumulated":
                p.register_post_accumulate_grad_hook(lambda p: setattr(p, "grad", clip(p.grad)))

    def training_step(self, batch, batch_idx):
        hidden = self.body[0](batch[0])
        if self.kind == "tensor" and hidden.requires_grad:
            hidden.register_hook(clip)
        return nn.functional.cross_entropy(self.body[1:](hidden), batch[1])


def clip(gradient):
    return gradient.clamp(-2.0, 2.0)


@pytest.mark.parametrize("vectorize", ["auto", "never"])
@pytest.mark.parametrize("kind", ["parameter", "accumulated", "tensor"])
def test_hooks_that_rarely_clip_do_so_at_a_step_that_is_not_compared(runs, kind, vectorize):
    config = {**CONFIG, "model": {"class_path": "tests.runtime.test_local_hooks.Hooked", "init_args": {"kind": kind}}}
    worker = Worker(checked(load_config(config, [*runs, f"runtime.vectorize={vectorize}"])).setup)
    clients, seen = (3, 0), 0.0
    for scale in (1.0,) * 6 + (1000.0,):
        x = scale * worker.initial.x
        result = worker.run(Task(0, clients, (1, 1), (SIZE, SIZE), (1.0, 1.0), LR), {"x": x}, [None, None])
    for client, update in zip(clients, result.uploads["update"], strict=True):
        module = Hooked(kind)
        nn.utils.vector_to_parameters(x, module.parameters())
        module.training_step(worker.train.batch(worker.setup.shards[client]).content, 0).backward()
        gradient = torch.cat([p.grad.reshape(-1) for p in module.parameters()])
        seen = max(seen, float(gradient.abs().max()))
        torch.testing.assert_close(update, LR * gradient, rtol=1e-4, atol=1e-4)  # x is 1000 times as large
    assert seen == pytest.approx(2.0) or kind == "tensor"
