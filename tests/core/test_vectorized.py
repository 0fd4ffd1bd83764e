"""The vectorised oracle against one backward pass per client, and the rule that selects between the two."""

import numpy as np
import pytest
import torch
from lightning.pytorch import LightningModule
from torch import nn
from torch.utils.data import TensorDataset

import raylfl
from raylfl.config.groups.runtime import RuntimeConfig
from raylfl.config.load import load_config
from raylfl.core.flat import FlatModule
from raylfl.core.oracle import Batch, LoopOracle
from raylfl.core.samples import BatchSource, SampleSet
from raylfl.core.vectorized import VectorizedOracle
from raylfl.experiment.assemble import assemble
from raylfl.models import MODELS
from raylfl.replay.innermost.step import Innermost
from raylfl.runtime.round.dispatch import calls
from raylfl.runtime.workers.backend import LocalBackend
from raylfl.runtime.workers.step_probes import LARGEST_SAMPLE, _count_created, large_samples, refusal
from raylfl.runtime.workers.task import Room
from tests.runtime.modules import DigitsModule
from tests.runtime.tiny import TINY

CPU = torch.device("cpu")


class Net(LightningModule):
    """A small network that logs, as users' modules do."""

    classes = 4

    def __init__(self, convolve: bool = False, dropout: float = 0.0, norm: bool = False):
        super().__init__()
        first = [nn.Conv2d(1, 3, 3), nn.Flatten(), nn.Linear(108, 7)] if convolve else [nn.Flatten(), nn.Linear(64, 7)]
        self.body = nn.Sequential(*first, nn.Tanh(), nn.Dropout(dropout), nn.Linear(7, self.classes))
        self.norm = nn.BatchNorm1d(4) if norm else None
        self.log = lambda *args, **kwargs: None

    def training_step(self, batch, batch_idx):
        x, y = batch
        loss = nn.functional.cross_entropy(self.body(x), y)
        self.log("loss", loss)
        return {"loss": loss}


class Branching(Net):
    """A network for the digits whose control flow depends on values, which vmap cannot follow."""

    classes = 10

    def training_step(self, batch, batch_idx):
        loss = super().training_step(batch, batch_idx)["loss"]
        return loss if loss > 0.1 else 2 * loss


def setting(module):
    flat = FlatModule(module, torch.float64, CPU)
    generator = torch.Generator().manual_seed(1)
    x = torch.randn(40, 1, 8, 8, generator=generator)
    y = torch.randint(0, 4, (40,), generator=generator)
    source = BatchSource(SampleSet.of(TensorDataset(x, y)), CPU, torch.float64)
    rows = flat.params + 0.1 * torch.randn(4, flat.width, generator=generator, dtype=torch.float64)
    return flat, source, rows


@pytest.mark.parametrize("convolve", [False, True])
@pytest.mark.parametrize(
    ("sizes", "of_one_source"), [([5, 5, 5, 5], True), ([3, 7, 3, 1], True), ([3, 3, 3, 3], False)]
)
def test_losses_and_gradients_are_those_of_one_pass_a_client(convolve, sizes, of_one_source):
    torch.manual_seed(0)
    flat, source, rows = setting(Net(convolve))
    batches = [source.batch(np.arange(k, k + size)) for k, size in enumerate(sizes)]
    batches = batches if of_one_source else [Batch(b.content, b.size) for b in batches]
    one, together = LoopOracle(flat), VectorizedOracle(flat)
    losses, gradients = one.gradients(rows.clone(), batches, lambda c: c)
    ours, g = together.gradients(rows.clone(), batches, lambda c: c)
    np.testing.assert_allclose(ours, losses, rtol=1e-12)
    torch.testing.assert_close(g, gradients, rtol=1e-10, atol=1e-12)


@pytest.mark.parametrize("sizes", [[5, 5, 5, 5], [3, 7, 3, 1]])
def test_parameters_that_a_step_changes_in_place_stay_changed(sizes):
    class Zeroed(Net):
        def training_step(self, batch, batch_idx):
            with torch.no_grad():
                self.body[-1].weight.zero_()
            return super().training_step(batch, batch_idx)

    flat, source, rows = setting(Zeroed())
    oracle = VectorizedOracle(flat, step="autograd")
    oracle.innermost = None
    batches = [source.batch(np.arange(10 * k, 10 * k + size)) for k, size in enumerate(sizes)]
    oracle.gradients(rows, batches, lambda k: 0)
    assert not any(flat.views(row)[2].any() for row in rows)


def dense(name, rows=4):
    """A shipped dense network, its samples (some of them with the class that is left out), and `rows` parameters."""
    torch.manual_seed(0)
    flat, source, x = setting(MODELS.get(name).cls(in_shape=(1, 8, 8), num_classes=4))
    source.tensors[1][[1, 6, 8]] = -100
    return flat, source, x[:rows]


@pytest.mark.parametrize("sizes", [[5, 5, 5, 5], [3, 7, 3, 1]])
@pytest.mark.parametrize("name", ["logistic", "mlp"])
@pytest.mark.parametrize("way", ["translated", "cohort_losses", "vmap"])
def test_batched_matrix_products_give_the_same(name, sizes, way):
    flat, source, rows = dense(name)
    batches = [source.batch(np.arange(2 * k, 2 * k + size)) for k, size in enumerate(sizes)]
    oracle = VectorizedOracle(flat, by_hand=way != "vmap")
    assert (oracle.innermost is None) == (oracle.cohort_losses is None) == (way == "vmap")
    if way == "cohort_losses":  # as on a GPU, or with dropout
        oracle.innermost = None
    losses, gradients = LoopOracle(flat).gradients(rows.clone(), batches, lambda c: c)
    ours, g = oracle.gradients(rows.clone(), batches, lambda c: c)
    np.testing.assert_allclose(ours, losses, rtol=1e-12)
    torch.testing.assert_close(g, gradients, rtol=1e-10, atol=1e-12)


def test_batches_of_unequal_sizes_are_padded_for_one_call(monkeypatch):
    flat, source, rows = dense("mlp")
    oracle, calls = VectorizedOracle(flat), []
    whole = Innermost.gradients
    monkeypatch.setattr(Innermost, "gradients", lambda step, b, *more: calls.append(b) or whole(step, b, *more))
    labels = source.tensors[1].clone()
    oracle.gradients(rows, [source.batch(np.arange(k, 3 * k + 10)) for k in range(4)], lambda c: c)
    assert [b[1].shape for b in calls] == [(4, 16)]
    assert (calls[0][1] == -100).sum(1).tolist() == [6 + 3, 4 + 3, 2 + 2, 2]  # filled up, and left out in the data
    assert torch.equal(source.tensors[1], labels)
    oracle.gradients(rows[:3], [source.batch(np.arange(n)) for n in (20, 2, 2)], lambda c: c)
    assert [b[1].shape for b in calls[1:]] == [(2, 2), (1, 20)]  # too unequal
    del calls[1:]
    mixed = [source.batch(np.arange(3)), Batch(source.batch(np.arange(4)).content, 4)]
    oracle.gradients(rows[:2], mixed, lambda c: c)
    assert [b[1].shape for b in calls[1:]] == [(1, 3), (1, 4)]


def test_a_cohorts_products_do_not_change_their_inputs():
    flat, source, rows = dense("mlp")
    before, data = rows.clone(), source.tensors[0].clone()
    whole = source.batch(np.arange(6))  # kept from step to step
    _, first = VectorizedOracle(flat).gradients(rows, [whole] * 4, lambda c: c)
    _, again = VectorizedOracle(flat).gradients(rows, [whole] * 4, lambda c: c)
    assert torch.equal(first, again)
    assert torch.equal(rows, before)
    assert torch.equal(source.tensors[0], data)


def test_dropout_differs_between_clients_and_repeats_with_the_seed():
    flat, source, rows = setting(Net(dropout=0.5))
    rows[1] = rows[0]
    batches = [source.batch(np.arange(8))] * 4
    oracle = VectorizedOracle(flat)
    first, _ = oracle.gradients(rows, batches, lambda c: 11)
    again, _ = oracle.gradients(rows, batches, lambda c: 11)
    other, _ = oracle.gradients(rows, batches, lambda c: 12)
    np.testing.assert_array_equal(first, again)
    assert first[0] != first[1]
    assert (first != other).any()


@pytest.mark.parametrize(
    ("module", "setting_", "device", "reason"),
    [
        (Net(), "auto", "cpu", None),
        (Net(), "never", "cpu", "runtime.vectorize=never"),
        (Net(convolve=True), "auto", "cpu", "convolutions"),
        (Net(convolve=True), "always", "cpu", None),
        (Net(convolve=True), "auto", "cuda", None),
        (Net(norm=True), "auto", "cpu", None),
        (Net(norm=True), "always", "cuda", "buffers"),
    ],
)
def test_the_rule_is_the_models_and_the_devices(module, setting_, device, reason):
    flat = FlatModule(module, torch.float32, CPU)
    said = refusal(flat, torch.device(device), setting_)
    assert said is None if reason is None else reason in said


def run(runs, module, *overrides):
    config = {
        "rounds": 2,
        "num_clients": 9,
        "data": {"class_path": "tests.runtime.modules.DigitsModule"},
        "model": {"class_path": f"tests.core.test_vectorized.{module}"},
        "local": {"steps": {"uniform": [1, 6]}, "batch_size": 16, "lr": 0.1},
        "dtype": "float64",
        "runtime": {"backend": "local"},
    }
    return raylfl.run(config, [*runs, *overrides])


def test_a_model_that_vmap_refuses_runs_client_by_client(runs):
    ours, theirs = (run(runs, "Branching", f"runtime.vectorize={way}") for way in ("auto", "never"))
    assert torch.equal(ours.params, theirs.params)


class SoftDigits(DigitsModule):
    """The digits with class probabilities as training targets."""

    def setup(self, stage=None):
        super().setup(stage)
        x, y = self.train_dataset.tensors
        soft = nn.functional.one_hot(y, 10).double() * 0.9 + 0.01
        self.train_dataset = TensorDataset(x, soft)


def test_targets_that_are_no_classes_run_client_by_client(runs):
    settings = [
        "data.class_path=tests.core.test_vectorized.SoftDigits",
        "model={name: logistic, init_args: {in_shape: [1, 8, 8], num_classes: 10}}",
    ]
    ours = run(runs, "Net", *settings)
    assert torch.equal(ours.params, run(runs, "Net", *settings, "runtime.vectorize=never").params)
    assert ours.metrics[-1]["train/loss"] < ours.metrics[0]["train/loss"]


@pytest.mark.parametrize(
    ("setting", "width", "most"),
    [(None, 10, 128), (None, 2_048, 128), (None, 4_096, 64), (None, 7_850, 33), (None, 10**7, 32), (5, 10, 5)],
)
def test_small_models_go_in_larger_calls_of_nearly_equal_size_unless_the_config_says_otherwise(setting, width, most):
    for count in (0, 1, 3, 4, 10, 33, 100, 1000):
        pieces = calls(count, width, RuntimeConfig(micro_cohort=setting))
        assert pieces == -(-count // most) if setting else pieces in (min(count, 4), 4 * -(-count // (4 * most)))
        assert -(-count // max(pieces, 1)) <= most


class OnGpus:
    """What `calls` reads of a backend."""

    def __init__(self, clients, side_by_side, workers=1):
        self.room, self.workers = Room(clients, side_by_side), workers


def test_a_call_on_a_gpu_holds_as_many_clients_as_the_card_and_gpus_have_equal_shares():
    runtime = RuntimeConfig()
    side_by_side, together = OnGpus(64, True), OnGpus(64, False)
    assert [calls(count, 10**6, runtime, side_by_side) for count in (10, 64, 65, 1000)] == [1, 1, 2, 16]
    assert [calls(count, 7_850, runtime, together) for count in (10, 100, 1000)] == [1, 2, 16]
    assert [calls(10, 10**6, runtime, backend) for backend in (together, None)] == [4, 4]
    assert calls(10, 61_706, RuntimeConfig(micro_cohort=5), side_by_side) == 2
    assert [calls(10, 10**6, RuntimeConfig(), OnGpus(64, True, workers)) for workers in (1, 3, 20)] == [1, 3, 10]
    assert [calls(1000, 10**6, RuntimeConfig(), OnGpus(64, True, workers)) for workers in (3, 16)] == [18, 16]


def test_steps_that_make_much_of_a_sample_go_one_by_one_on_a_cpu():
    sequences = {**TINY, "data": {"name": "synthetic_images", "init_args": {"shape": [1, 28, 28], "num_train": 60}}}
    for model, reason in (("Rows", "numbers a call of a sample"), ("Logistic", None)):
        config = {**sequences, "model": {"class_path": f"benchmarks.users.{model}"}}
        backend = LocalBackend(assemble(load_config(config)).setup)
        backend.close()
        assert (reason in backend.one_by_one) if reason else backend.one_by_one is None


L = LARGEST_SAMPLE


@pytest.mark.parametrize(
    ("one", "two", "large"),
    [
        ((0, 10), (10 * L, 10), False),
        ((0, 10), (10 * L + 1, 10), True),
        ((1, 10), (10 * L + 1, 10), False),  # what a step makes of the parameters alone is in both
        ((10 * L, 10), (20 * L + 1, 10), True),
        (None, (20 * L, 10), False),
        ((0, 10), None, False),
    ],
)
def test_samples_are_large_if_a_second_one_adds_more_numbers_a_call_than_the_limit(monkeypatch, one, two, large):
    """(numbers, calls) of a step on one sample and on two; None: the step cannot be recorded."""
    made = {"one": one, "two": two}
    monkeypatch.setattr("raylfl.runtime.workers.step_probes._count_created", lambda flat, loss, content: made[content])
    assert (large_samples(None, None, "one", "two") is not None) is large


def test_views_of_a_batch_count_as_no_numbers():
    module = Net()
    flat = FlatModule(module, torch.float64, CPU)
    x, y = torch.randn(2, 1, 8, 8, dtype=torch.float64), torch.tensor([0, 3])

    def plain(content):
        return nn.functional.cross_entropy(module.body(content[0]), content[1])

    def viewed(content):
        return plain((content[0].transpose(2, 3).transpose(2, 3), content[1]))

    def copied(content):
        return plain((content[0].clone(), content[1]))

    numbers, calls = _count_created(flat, plain, (x, y))
    assert _count_created(flat, viewed, (x, y)) == (numbers, calls)
    assert _count_created(flat, copied, (x, y)) == (numbers + x.numel(), calls + 1)
