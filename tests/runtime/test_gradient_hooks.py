"""`configure_gradient_clipping` and the hooks before it, against a plain loop with torch.nn.utils, bit by bit."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
import torch
from torch import nn

import raylfl
from raylfl.config.load import load_config
from raylfl.errors import BadConfig
from raylfl.python.api import checked
from raylfl.runtime.workers.gradient_hooks import GradientHooks
from raylfl.runtime.workers.optimizer import ModuleOptimizer
from raylfl.runtime.workers.task import Task
from raylfl.runtime.workers.worker import Worker
from tests.runtime.lightning_modules import Clipping
from tests.runtime.tiny import TINY, Net

STEPS, SIZE, LR = 5, 10, 0.05
CONFIG = {
    **TINY,
    "rounds": 2,
    "model": {"class_path": "tests.runtime.lightning_modules.Clipping"},
    "participation": {"name": "full"},
    "link": {"name": "perfect"},
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
    assert not torch.allclose(theirs.params, raylfl.run(plain, runs).params, atol=1e-3)
    assert theirs.metrics[-1]["train/clipped"] == pytest.approx(0.1, rel=1e-4)
    off = raylfl.run(CONFIG, [*runs, "model.init_args={clip: 0.0}", "local.clip_norm=null"])
    assert torch.equal(off.params, raylfl.run(plain, [*runs, "runtime.vectorize=never"]).params)


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


@pytest.mark.parametrize(("clip_norm", "how"), [(None, None), (0.5, "norm")])
def test_the_hook_receives_the_limit_and_its_kind_and_the_others_what_they_take(clip_norm, how):
    calls, hooks, optimizer = [], object.__new__(GradientHooks), object.__new__(ModuleOptimizer)
    hooks.clip_norm, hooks.flat = clip_norm, SimpleNamespace(parameters=[], views=lambda g: [])
    optimizer.optimizer = shown = object()

    def noted(*args, **kwargs):
        calls.append((args, kwargs))

    names = "on_after_backward", "on_before_optimizer_step", "configure_gradient_clipping"
    hooks.hooks = dict.fromkeys(names, noted)
    hooks.call(None, optimizer)
    limits = {"gradient_clip_val": clip_norm, "gradient_clip_algorithm": how}
    assert calls == [((), {}), ((shown,), {}), ((shown,), limits)]


def test_two_different_limits_are_refused_before_the_run(runs):
    with pytest.raises(
        BadConfig, match=r"local\.clip_norm=1\.0, but Clipping calls clip_gradients\(gradient_clip_val=0"
    ):
        raylfl.run(CONFIG, [*runs, "local.clip_norm=1.0"])


def test_a_module_that_clips_has_its_clients_run_one_by_one(runs):
    worker = worker_of(runs)
    assert worker.one_by_one == "the model's on_after_backward is called for one client at a time"
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
    config = {
        **CONFIG,
        "model": {"class_path": "tests.runtime.test_gradient_hooks.Hooked", "init_args": {"kind": kind}},
    }
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
