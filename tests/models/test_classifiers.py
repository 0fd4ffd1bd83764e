"""Networks against hand-made parameter counts, plain formulas, and their own gradients client by client."""

from functools import partial

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import nn

from raylfl.core.flat import FlatModule
from raylfl.core.oracle import Batch, LoopOracle
from raylfl.core.vectorized import VectorizedOracle
from raylfl.data.digits import SyntheticImages
from raylfl.errors import BadValue
from raylfl.models import MODELS
from raylfl.models.base import Classifier, fitted_args
from raylfl.models.networks import BasicBlock
from raylfl.models.stack import Stack
from tests.shares import also

CLASSIFIERS = [entry.name for entry in MODELS if issubclass(entry.cls, Classifier)]
by_vmap = partial(VectorizedOracle, by_hand=False)
NARROW = {"vgg9": {"width": 4}, "resnet18": {"width": 4}}


def conv(before, after, kernel, bias=True):
    return after * (before * kernel**2 + bias)


def fc(before, after):
    return after * (before + 1)


def resnet_weights(width):
    """Stem, then four stages: first block (strided, projected but in stage 1), second block."""
    total, before = conv(3, width, 3, bias=False), width
    for stage in range(4):
        after = width * 2**stage
        total += conv(before, after, 3, False) + 3 * conv(after, after, 3, False)
        total += conv(before, after, 1, False) if stage else 0
        before = after
    return total + fc(before, 10)


COUNTS = [
    ("logistic", {}, 784 * 10 + 10),
    ("mlp", {}, fc(784, 64) + fc(64, 10)),
    ("mlp", {"hidden": [200, 200]}, fc(784, 200) + fc(200, 200) + fc(200, 10)),
    ("mlp", {"hidden": []}, fc(784, 10)),
    ("lenet5", {}, conv(1, 6, 5) + conv(6, 16, 5) + fc(16 * 4 * 4, 120) + fc(120, 84) + fc(84, 10)),
    ("lenet5", {"padding": 2}, conv(1, 6, 5) + conv(6, 16, 5) + fc(400, 120) + fc(120, 84) + fc(84, 10)),
    ("cnn_focus", {}, conv(3, 16, 3) + conv(16, 32, 3) + conv(32, 64, 3) + fc(64 * 16, 500) + fc(500, 10)),
    ("cnn_sfl", {}, conv(1, 32, 5) + conv(32, 32, 5) + fc(32 * 49, 128) + fc(128, 10)),
    ("cnn_fedaware", {}, conv(3, 32, 3) + conv(32, 64, 3) + conv(64, 64, 3) + fc(64 * 16, 64) + fc(64, 10)),
    ("cnn_fedacs_mnist", {}, conv(1, 10, 3) + conv(10, 20, 3) + fc(20 * 784, 50) + fc(50, 10)),
    ("cnn_fedacs_cifar", {}, conv(3, 32, 3) + conv(32, 32, 3) + fc(32 * 64, 256) + fc(256, 64) + fc(64, 10)),
    ("cnn_fedacs_cinic", {}, conv(3, 32, 3) + conv(32, 32, 3) + fc(2048, 512) + fc(512, 256) + fc(256, 10)),
    (
        "vgg9",
        {},
        sum(conv(a, b, 3) for a, b in [(3, 32), (32, 64), (64, 128), (128, 128), (128, 256)])
        + 3 * conv(256, 256, 3)
        + fc(256, 10),
    ),
    ("resnet18", {}, resnet_weights(64)),
    ("resnet18", {"norm": "group"}, resnet_weights(64) + 2 * (5 * 64 + 5 * 128 + 5 * 256 + 5 * 512)),
    ("resnet18", {"norm": "batch"}, resnet_weights(64) + 2 * (5 * 64 + 5 * 128 + 5 * 256 + 5 * 512)),
]


def build(name, **init_args):
    torch.manual_seed(0)
    return MODELS.get(name).cls(**init_args)


@pytest.mark.parametrize(("name", "init_args", "expected"), COUNTS)
def test_parameters_are_those_counted_by_hand(name, init_args, expected):
    """Also those of the docstrings."""
    assert sum(p.numel() for p in build(name, **init_args).parameters()) == expected
    assert init_args.get("hidden") == [] or f"{expected:,}" in MODELS.get(name).cls.__doc__


def test_every_classifier_has_been_counted():
    assert {name for name, _, _ in COUNTS} == set(CLASSIFIERS)


@pytest.mark.parametrize("name", CLASSIFIERS)
@pytest.mark.parametrize("in_shape", [(1, 28, 28), (3, 32, 32), (1, 8, 8), (2, 33, 47), (60,)])
def test_each_model_fits_every_shape_or_refuses_it_by_name(name, in_shape):
    smallest = {"lenet5": 16, "cnn_fedaware": 18, "cnn_focus": 8, "vgg9": 32}.get(name, 1)
    fits = min(in_shape[1:]) >= smallest if len(in_shape) == 3 else name in ("logistic", "mlp")
    if fits:
        model = build(name, in_shape=in_shape, num_classes=7, **NARROW.get(name, {}))
        assert model(torch.zeros(2, *in_shape)).shape == (2, 7)
    else:
        with pytest.raises(BadValue, match=r"^in_shape="):
            build(name, in_shape=in_shape, **NARROW.get(name, {}))


@pytest.mark.parametrize(
    ("name", "init_args", "key"),
    [
        ("mlp", {"hidden": [0]}, "hidden"),
        ("mlp", {"dropout": 1.0}, "dropout"),
        ("mlp", {"in_shape": []}, "in_shape"),
        ("vgg9", {"width": 0}, "width"),
        ("resnet18", {"width": 0}, "width"),
        ("resnet18", {"norm": "layer"}, "norm"),
        ("resnet18", {"norm": "group", "groups": 3}, "groups"),
    ],
)
def test_impossible_options_are_refused_by_name(name, init_args, key):
    with pytest.raises(BadValue, match=f"^{key}="):
        build(name, **init_args)


SAME_LAYERS = ("cnn_fedacs_cifar", "cnn_fedacs_cinic")  # as cnn_focus


@pytest.mark.parametrize(
    "name", [(also if n in SAME_LAYERS else pytest.param)(n) for n in (*CLASSIFIERS, "resnet18-group")]
)
def test_many_clients_in_one_call_get_the_gradients_of_a_loop(name):
    """vmap over parameters [C, d] in float64: the same to rounding."""
    name, _, norm = name.partition("-")
    options = {"norm": norm} if norm else {}
    options |= {"dropout": 0.0} if "dropout" in MODELS.get(name).cls.__init__.__annotations__ else {}
    model = build(name, in_shape=(1, 32, 32), num_classes=3, **NARROW.get(name, {}), **options)
    flat = FlatModule(model, torch.float64, torch.device("cpu"))
    batches = [Batch((torch.randn(2, 1, 32, 32).double(), torch.tensor([c, 1])), 2) for c in range(3)]
    x = flat.params * (1 + 0.1 * torch.arange(3.0).double()[:, None])
    together, alone = (oracle(flat).gradients(x, batches, lambda c: 0) for oracle in (by_vmap, LoopOracle))
    torch.testing.assert_close(together, alone, rtol=1e-9, atol=1e-12)


def test_cnn_fedacs_mnist_is_affine_without_its_dropout():
    model = build("cnn_fedacs_mnist", dropout=0.0).double()
    x, y = torch.randn(2, 3, 1, 28, 28, dtype=torch.float64)
    torch.testing.assert_close(model((x + y) / 2), (model(x) + model(y)) / 2, rtol=1e-10, atol=1e-12)


def test_validation_and_test_steps_log_loss_and_accuracy(monkeypatch):
    model = build("mlp", in_shape=(5,), hidden=[4], num_classes=3)
    x, y = torch.randn(8, 5), torch.tensor([0, 1, 2, 0, 1, 2, 0, 1])
    logits = model(x).detach().numpy().astype(np.float64)
    log_likelihood = logits - np.log(np.exp(logits).sum(axis=1, keepdims=True))
    expected = {
        "loss": -log_likelihood[np.arange(8), y.numpy()].mean(),
        "accuracy": (logits.argmax(axis=1) == y.numpy()).mean(),
    }
    for step in (model.validation_step, model.test_step):
        logged, sizes = {}, set()

        def log(name, value, batch_size, logged=logged, sizes=sizes):
            logged[name] = value.item()
            sizes.add(batch_size)

        monkeypatch.setattr(model, "log", log)
        assert step((x, y), 0) is None
        assert logged == pytest.approx(expected, rel=1e-5)
        assert sizes == {8}
        assert model.training_step((x, y), 0).item() == pytest.approx(expected["loss"], rel=1e-5)


@pytest.mark.filterwarnings("ignore")  # Lightning's advice on workers and accelerators
def test_a_lightning_trainer_trains_and_measures_a_shipped_model(tmp_path):
    from lightning.pytorch import Trainer
    from torch.utils.data import DataLoader

    data = SyntheticImages(num_train=64, num_test=32)
    model = build("mlp", **fitted_args(MODELS.get("mlp").cls, {"lr": 0.5}, data))
    trainer = Trainer(
        max_epochs=3,
        accelerator="cpu",
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        default_root_dir=tmp_path,
    )
    loader = DataLoader(data.test_dataset, batch_size=32)
    (before,) = trainer.validate(model, loader, verbose=False)
    trainer.fit(model, DataLoader(data.train_dataset, batch_size=16))
    (after,) = trainer.validate(model, loader, verbose=False)
    assert after["loss"] < before["loss"]
    assert after["accuracy"] > before["accuracy"]


def test_a_residual_block_without_norm_is_its_formula():
    torch.manual_seed(0)
    block = BasicBlock(4, 8, stride=2, norm="none", groups=1)
    x = torch.randn(2, 4, 7, 7)
    inner = F.conv2d(x, block.conv1.weight, stride=2, padding=1).clamp(min=0)
    shortcut = F.conv2d(x, block.shortcut[0].weight, stride=2)
    expected = (F.conv2d(inner, block.conv2.weight, padding=1) + shortcut).clamp(min=0)
    torch.testing.assert_close(block(x), expected)
    same = BasicBlock(4, 4, stride=1, norm="none", groups=1)
    inner = F.conv2d(x, same.conv1.weight, padding=1).clamp(min=0)
    torch.testing.assert_close(same(x), (F.conv2d(inner, same.conv2.weight, padding=1) + x).clamp(min=0))


@pytest.mark.parametrize(
    ("name", "layer", "deviation"),
    [
        ("vgg9", "conv3", (2 / (128 * 9)) ** 0.5),  # fan_out
        ("cnn_fedaware", "conv1", (2 / (32 * 9)) ** 0.5),
        ("cnn_fedaware", "fc1", 0.01),
        ("cnn_sfl", "conv1", (2 / 25) ** 0.5),  # fan_in
        ("cnn_sfl", "fc1", (2 / 1568) ** 0.5),
        ("cnn_sfl", "fc2", (1 / 3 / 128) ** 0.5),  # torch's own: uniform on +-1/sqrt(fan_in)
    ],
)
def test_initial_weights_have_the_deviation_of_their_rule(name, layer, deviation):
    weights = getattr(build(name).layers, layer).weight.detach()
    assert float(weights.std()) == pytest.approx(deviation, rel=0.1)  # 864 weights or more: 3 sigma is 7 %


def test_initial_weights_come_from_torchs_global_generator():
    one, again = build("lenet5"), build("lenet5")
    torch.manual_seed(1)
    other = MODELS.get("lenet5").cls()
    assert all(torch.equal(p, q) for p, q in zip(one.parameters(), again.parameters(), strict=True))
    assert not torch.equal(next(one.parameters()), next(other.parameters()))


@pytest.mark.parametrize("name", CLASSIFIERS)
def test_hparams_rebuild_the_model(name):
    model = build(name, num_classes=5, lr=0.123, **NARROW.get(name, {}))
    twin = build(name, **model.hparams)
    assert model.hparams["lr"] == 0.123
    for p, q in zip(model.parameters(), twin.parameters(), strict=True):
        assert torch.equal(p, q)


def test_arguments_left_out_are_taken_from_the_data():
    cls = MODELS.get("mlp").cls
    data = SyntheticImages(shape=(3, 4, 4), num_classes=6, num_train=6, num_test=6)
    assert fitted_args(cls, {"hidden": [3]}, data) == {"in_shape": (3, 4, 4), "num_classes": 6, "hidden": [3]}
    assert fitted_args(cls, {"num_classes": 9}, data) == {"in_shape": (3, 4, 4), "num_classes": 9}
    assert fitted_args(cls, {}, object()) == {}
    assert fitted_args(nn.Linear, {"bias": False}, data) == {"bias": False}


def test_a_pool_after_a_relu_is_moved_before_it_with_the_same_bits():
    torch.manual_seed(0)
    stack = Stack((3, 9, 8)).conv(4, 3).relu().pool()
    assert list(stack.layers) == ["conv1", "pool1", "relu1"]
    assert stack.shape == (4, 3, 3)
    conv = stack.layers["conv1"]
    x = torch.randn(5, 3, 9, 8)
    ours = nn.Sequential(stack.layers)(x)
    theirs = F.max_pool2d(F.relu(conv(x)), 2)
    assert torch.equal(ours, theirs)
    weight = torch.randn_like(ours)
    for mine, other in zip(
        torch.autograd.grad((ours * weight).sum(), list(conv.parameters())),
        torch.autograd.grad((theirs * weight).sum(), list(conv.parameters())),
        strict=True,
    ):
        assert torch.equal(mine, other)
