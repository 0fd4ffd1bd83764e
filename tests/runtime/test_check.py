"""The trial of a run's parts before it: one local step with its hooks, one evaluation, and nothing left over."""

from __future__ import annotations

import pytest
import torch

from raylfl.config.load import load_config
from raylfl.errors import BadConfig
from raylfl.experiment.assemble import assemble
from raylfl.runtime.check import check
from tests.runtime.tiny import TINY, Net

NOTES: list[str] = []
TRAINING = ["start", "epoch start", "batch start 0", "after backward", "batch end 0", "epoch end", "end"]


class Noting(Net):
    """A module that notes its hooks, and raises an error in one of them."""

    def __init__(self, raises: str = ""):
        super().__init__()
        self.raises = raises

    def note(self, name):
        NOTES.append(name)
        if name == self.raises:
            raise RuntimeError("broken")

    def on_train_start(self):
        self.note("start")

    def on_train_epoch_start(self):
        self.note("epoch start")

    def on_train_batch_start(self, batch, batch_idx):
        self.note(f"batch start {batch_idx}")

    def on_after_backward(self):
        assert all(p.grad is not None for p in self.parameters())
        self.note("after backward")

    def on_train_batch_end(self, outputs, batch, batch_idx):
        self.note(f"batch end {batch_idx}")

    def on_train_epoch_end(self):
        self.note("epoch end")

    def on_train_end(self):
        self.note("end")

    def test_step(self, batch, batch_idx):
        self.note("test")


def tried(raises=""):
    NOTES.clear()
    model = {"class_path": "tests.runtime.test_check.Noting", "init_args": {"raises": raises}}
    check(assemble(load_config({**TINY, "model": model})))
    return NOTES


def test_every_hook_of_one_local_step_is_tried_in_order_and_then_an_evaluation():
    assert tried() == [*TRAINING, "test"]


@pytest.mark.parametrize("raises", [*TRAINING, "test"])
def test_an_error_in_any_of_them_names_the_model_and_the_batch(raises):
    with pytest.raises(BadConfig) as caught:
        tried(raises)
    what = "evaluated" if raises == "test" else "trained"
    text = f"Noting cannot be {what} on a batch of (2, 4) float32, (2,) int64: RuntimeError: broken"
    assert text in str(caught.value)
    assert str(caught.value).endswith(", in note)")  # the line of the user's code


def test_the_threads_and_the_generators_of_the_caller_are_as_before():
    before, drawn = torch.get_num_threads(), torch.get_rng_state()
    torch.set_num_threads(before + 1)
    try:
        tried()
        assert torch.get_num_threads() == before + 1
    finally:
        torch.set_num_threads(before)
    assert torch.equal(torch.get_rng_state(), drawn)


@pytest.mark.parametrize("algorithm", ["fedacs", "optimal_sampling"])
@pytest.mark.parametrize("participation", ["full", "{name: bernoulli, p: 0.5}"])
def test_a_method_that_draws_clients_itself_is_refused_before_the_trial_without_a_size(algorithm, participation):
    NOTES.clear()
    model = {"class_path": "tests.runtime.test_check.Noting"}
    config = load_config({**TINY, "model": model}, [f"algorithm={algorithm}", f"participation={participation}"])
    with pytest.raises(BadConfig, match=rf"a size \(uniform, say\): algorithm {algorithm} draws participation.size"):
        check(assemble(config))
    assert not NOTES


@pytest.mark.parametrize("key", ["clients", "participants", "random_clients"])
def test_evaluations_on_clients_data_are_tried_with_the_transform_of_evaluations(key):
    """The samples of the digits are bytes, which only their transform makes numbers for the model."""
    overrides = [f"eval.{key}={'2' if key == 'random_clients' else 'true'}", "runtime.backend=local"]
    experiment = assemble(load_config("digits", overrides))
    check(experiment)
    assert experiment.logged["clients"] == experiment.logged["test"]
