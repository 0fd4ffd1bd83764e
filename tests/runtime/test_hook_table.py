"""Hooks of Lightning are called, refused or named at the start, and tried before a run; a new one fails here."""

import importlib

import pytest
import torch
from lightning.pytorch import LightningDataModule, LightningModule
from lightning.pytorch.core import hooks

import raylfl
from raylfl.config.load import load_config
from raylfl.config.objects import object_layer
from raylfl.errors import BadConfig
from raylfl.experiment.assemble import assemble
from raylfl.experiment.data_source import IGNORED, REFUSED, load_data
from raylfl.runtime.check import check
from raylfl.runtime.workers.hooks import HOOKS
from tests.runtime.loader_modules import Loaders
from tests.runtime.tiny import TINY, Net, Points
from tests.shares import also, one_in

STEPS = {"forward", "training_step", "validation_step", "test_step", "predict_step", "configure_optimizers"}
FOR_USERS = {  # called by a program or a module, not by the Trainer
    *("all_gather", "freeze", "load_from_checkpoint", "log", "log_dict", "lr_schedulers", "manual_backward"),
    *("optimizers", "print", "to_onnx", "to_tensorrt", "to_torchscript", "toggle_optimizer", "toggled_optimizer"),
    *("unfreeze", "untoggle_optimizer", "from_datasets"),
}
MADE = {"prepare_data", "setup", "train_dataloader", "val_dataloader", "test_dataloader"}  # of data
HOOKED = {**TINY, "rounds": 1, "local": {"steps": 4, "batch_size": 4, "lr": 0.05}}


def public(*classes):
    """Names of methods; properties are read, not called."""
    found = ((name, value) for cls in classes for name, value in vars(cls).items())
    return {name for name, value in found if name[0] != "_" and (callable(value) or hasattr(value, "__func__"))}


def hooked(cls, names, calls):
    """A subclass in which these hooks record their calls."""

    def recording(name):
        def hook(self, *args, **options):
            calls.append(name)
            return getattr(super(kind, self), name)(*args, **options)

        return hook

    kind = type("Recording", (cls,), {name: recording(name) for name in names})
    return kind


def test_every_method_of_a_lightning_module_is_a_hook_of_the_table_a_step_or_for_users():
    own = public(LightningModule, hooks.ModelHooks, hooks.DataHooks, hooks.CheckpointHooks)
    assert own - FOR_USERS - STEPS == set().union(*HOOKS.values())


def test_every_method_of_a_data_module_is_used_refused_or_ignored():
    own = public(LightningDataModule, hooks.DataHooks)
    assert own - FOR_USERS == MADE | REFUSED.keys() | IGNORED.keys()


def test_the_hooks_that_count_as_called_are_called(runs):
    """One round with a validation and a test set, so that both evaluations take place."""
    calls, named = [], HOOKS["called"].keys()

    class Both(Net):
        validation_step = test_step = Net.training_step

    class Data(Points):
        val_dataset = Points.test_dataset

    raylfl.run(HOOKED, runs, model=hooked(Both, named, calls), data=Data)
    assert set(calls) == named


@pytest.mark.parametrize("verdict", ["refused", "ignored"])
def test_all_other_hooks_of_a_module_are_named_before_the_run_and_never_called(runs, verdict):
    calls, named = [], HOOKS[verdict]
    model = hooked(Net, named, calls)
    if verdict == "refused":
        with pytest.raises(BadConfig) as caught:
            raylfl.run(HOOKED, runs, model=model)
        said = str(caught.value)
    else:
        said = (raylfl.run(HOOKED, runs, model=model).run_dir / "log.txt").read_text()
    assert calls == []
    for name in named:
        assert f"{name}{', which' * (verdict == 'refused')} is not called" in said, name


def test_hooks_of_a_data_module_that_a_run_does_not_call_are_named():
    config, calls = load_config(TINY), []
    config.data.target = hooked(Loaders, IGNORED, calls)()
    said = load_data(config).warnings
    assert [line.split(": ")[1] for line in said] == [f"{name} is not called" for name in IGNORED]
    config.data.target = hooked(Loaders, REFUSED, calls)()
    with pytest.raises(BadConfig) as caught:
        load_data(config)
    assert calls == []
    for name, remedy in REFUSED.items():
        assert f"data class Recording: {name} is not called: {remedy}" in str(caught.value)


@pytest.mark.parametrize("package", ["lightning.pytorch", "pytorch_lightning"])
def test_data_modules_made_of_data_sets_work(package):
    cls, data, config = importlib.import_module(package).LightningDataModule, Points(), load_config(TINY)
    config.data.target = cls.from_datasets(data.train_dataset(), test_dataset=data.test_dataset())
    source = load_data(config)
    assert (len(source.train), len(source.test), source.val) == (60, 20, None)


# -- the check of a run's parts before it -----------------------------------------------------------------------------


TRAINING = ["on_train_start", "on_train_epoch_start", "on_train_batch_start", "on_after_backward", "on_train_batch_end"]
TRAINING += ["on_train_epoch_end", "on_train_end"]


class Broken(Net):
    """A module that raises an error in one of its hooks, and finds gradients in another."""

    def on_after_backward(self):
        assert all(p.grad is not None for p in self.parameters())

    test_step = Net.training_step


def fail(self, *given):
    raise RuntimeError("broken")


def tried(raises=""):
    """The hooks that the check before a run calls, in order; one of them may raise an error."""
    calls, base = [], type("Broken", (Broken,), {raises: fail} if raises else {})
    check(assemble(load_config(TINY, [], object_layer({"model": hooked(base, [*TRAINING, "test_step"], calls)}))))
    return calls


def test_every_hook_of_one_local_step_is_tried_in_order_and_then_an_evaluation():
    assert tried() == [*TRAINING, "test_step"]


@pytest.mark.parametrize("raises", one_in(3, ["test_step", *TRAINING]))
def test_an_error_in_any_of_them_names_the_model_and_the_batch(raises):
    with pytest.raises(BadConfig) as caught:
        tried(raises)
    what = "evaluated" if raises == "test_step" else "trained"
    text = f"Recording cannot be {what} on a batch of (2, 4) float32, (2,) int64: RuntimeError: broken"
    assert text in str(caught.value)
    assert str(caught.value).endswith(", in fail)")  # the line of the user's code


def test_the_threads_and_the_generators_of_the_caller_are_as_before():
    before, drawn = torch.get_num_threads(), torch.get_rng_state()
    torch.set_num_threads(before + 1)
    try:
        tried()
        assert torch.get_num_threads() == before + 1
    finally:
        torch.set_num_threads(before)
    assert torch.equal(torch.get_rng_state(), drawn)


@pytest.mark.parametrize("key", ["clients", also("participants"), also("random_clients")])
def test_evaluations_on_clients_data_are_tried_with_the_transform_of_evaluations(key):
    """The samples of the digits are bytes, which only their transform makes numbers for the model."""
    overrides = [f"eval.{key}={'2' if key == 'random_clients' else 'true'}", "runtime.backend=local"]
    experiment = assemble(load_config("digits", overrides))
    check(experiment)
    assert experiment.logged["clients"] == experiment.logged["test"]
