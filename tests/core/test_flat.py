"""A module's parameters as one vector: views, round trips, gradients, buffers."""

import copy

import pytest
import torch
from torch import nn

from raylfl.core.buffers import travelling
from raylfl.core.flat import FlatModule, in_channels_last
from raylfl.core.oracle import Batch, LoopOracle
from raylfl.errors import BadConfig


def small() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4), nn.Linear(4, 2))


def flat_of(module: nn.Module) -> FlatModule:
    return FlatModule(module, torch.float64, torch.device("cpu"))


def test_parameters_are_views_of_the_vector_in_their_order():
    module = small()
    expected = torch.cat([p.detach().double().reshape(-1) for p in module.parameters()])
    flat = flat_of(module)
    assert torch.equal(flat.params, expected)
    flat.params.fill_(2.0)
    assert all(bool((p == 2.0).all()) for p in flat.module.parameters())
    flat.module[0].weight.data[0, 0] = 5.0
    assert flat.params[0] == 5.0


@pytest.mark.parametrize("clients", [(), (3,)])
def test_a_parameter_may_be_a_single_number(clients):
    """Such as the temperature of a contrastive loss."""
    module = small()
    module.register_parameter("temperature", nn.Parameter(torch.tensor(0.5)))
    flat = flat_of(module)
    rows = torch.arange(float(flat.width)).expand(*clients, -1)
    assert [view.shape for view in flat.views(rows)] == [(*clients, *p.shape) for p in module.parameters()]
    flat.params[0] = 7.0  # a module's own parameters come before those of its parts
    assert module.temperature.item() == 7.0


def test_channels_last_changes_the_memory_of_convolutions_and_nothing_else():
    torch.manual_seed(0)
    module = nn.Sequential(nn.Conv2d(3, 5, 3), nn.ReLU(), nn.Flatten(), nn.Linear(5 * 16, 2)).double()
    twin = copy.deepcopy(module)
    flat, plain = FlatModule(module, torch.float64, torch.device("cpu"), channels_last=True), flat_of(twin)
    assert torch.equal(flat.params, plain.params)
    assert module[0].weight.is_contiguous(memory_format=torch.channels_last)
    x, moved = torch.randn(4, 3, 6, 6, dtype=torch.float64), torch.randn(flat.width, dtype=torch.float64)
    for vector in (flat.params.clone(), moved):
        flat.load(vector)
        plain.load(vector)
        ours = flat.backward(module(in_channels_last(x)).square().sum())
        torch.testing.assert_close(ours, plain.backward(twin(x).square().sum()), rtol=1e-12, atol=1e-12)
    flat.params.mul_(2.0)  # as a local step moves it, in place
    flat.load(flat.params)
    assert torch.equal(module[0].weight.reshape(-1), 2 * moved[: module[0].weight.numel()])


class Function(nn.Embedding):
    def forward(self, at):
        return nn.functional.embedding(at, self.weight, sparse=True)


@pytest.mark.parametrize("kind", [nn.Embedding, nn.EmbeddingBag, Function])
def test_sparse_embeddings_have_the_gradients_of_dense_ones(kind):
    torch.manual_seed(0)
    module, at = nn.Sequential(kind(7, 3, sparse=True), nn.Linear(3, 2)).double(), torch.tensor([[1, 4], [4, 6]])
    twin = copy.deepcopy(module)
    twin(at).square().sum().backward()
    expected = torch.cat([p.grad.to_dense().reshape(-1) for p in twin.parameters()])
    flat = flat_of(module)
    assert torch.equal(flat.backward(module(at).square().sum()), expected)
    oracle = LoopOracle(flat)
    module.training_step = lambda at, batch_idx: module(at).square().sum()
    for _ in range(3):  # the second would be recorded
        _, rows = oracle.gradients(flat.params[None], [Batch(at, 2)], lambda c: 0)
        assert torch.equal(rows[0], expected)


def test_a_parameter_that_a_step_freezes_is_refused_by_its_name():
    module = nn.Sequential(nn.Linear(3, 2), nn.Linear(2, 2))
    module.training_step = lambda x, batch_idx: module[1].requires_grad_(False)(module[0](x)).sum()
    oracle = LoopOracle(flat_of(module.double()))
    with pytest.raises(BadConfig, match=r"trained parameter 1.weight was frozen during the run; freeze it in __init__"):
        oracle.gradients(oracle.flat.params[None], [Batch(torch.ones(4, 3).double(), 4)], lambda c: 0)


def test_images_in_channels_last_order_are_the_same_images():
    x = torch.randn(2, 3, 4, 5)
    y = in_channels_last(x)
    assert torch.equal(x, y)
    assert y.stride() == (60, 1, 15, 3)
    one = torch.randn(2, 1, 4, 5)
    assert in_channels_last(one).data_ptr() == one.data_ptr()  # one channel: the same memory in either order
    assert in_channels_last(one).stride() == (20, 1, 5, 1)


def test_frozen_parameters_are_not_part_of_the_vector():
    module = small()
    module[0].weight.requires_grad_(False)
    assert flat_of(module).width == sum(p.numel() for p in module.parameters()) - 12
    for p in module.parameters():
        p.requires_grad_(False)
    with pytest.raises(BadConfig, match="no trainable parameters"):
        flat_of(module)


def test_buffers_that_travel_survive_a_round_trip_and_the_others_are_reset():
    flat = flat_of(small())
    flat.module(torch.randn(7, 3, dtype=torch.float64))
    before = {k: v.clone() for k, v in flat.module.named_buffers()}
    vector = flat.read_buffers()
    assert vector.shape == (8,)  # mean and variance of 4 channels; the counter of batches stays
    flat.write_buffers(torch.zeros(8, dtype=torch.float64))
    assert [float(v.sum()) for v in flat.module.buffers()] == [0, 0, 0]
    flat.write_buffers(vector)
    after = dict(flat.module.named_buffers())
    assert all(before[k].dtype == after[k].dtype for k in before)
    assert torch.equal(before.pop("1.num_batches_tracked"), torch.tensor(1))
    assert torch.equal(after.pop("1.num_batches_tracked"), torch.tensor(0))
    assert all(torch.equal(before[k], after[k]) for k in before)


class Zoo(nn.Module):
    """Buffers of every kind, and steps that treat them in every way."""

    def __init__(self):
        super().__init__()
        self.w = nn.Parameter(torch.ones(2))
        self.phase = nn.Parameter(torch.polar(torch.ones(2), torch.tensor([0.3, 0.4])), requires_grad=False)
        self.register_buffer("mean", torch.tensor([1.0, 2.0]))
        self.register_buffer("freqs", torch.polar(torch.ones(3), torch.tensor([0.7, 1.3, 2.0])))
        self.register_buffer("prime", torch.tensor([16777259, 2147483647, -3]))
        self.register_buffer("huge", torch.tensor(2**53 + 1))
        self.register_buffer("seen", torch.tensor([True, False]))
        self.register_buffer("byte", torch.tensor([255], dtype=torch.uint8))
        self.register_buffer("fine", torch.tensor([0.5], dtype=torch.float16))
        self.register_buffer("mask", torch.full((2, 2), -torch.inf).triu(1), persistent=False)
        self.register_buffer("cache", None)
        self.register_buffer("spread", torch.tensor([1, 2]).expand(3, 2))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_buffers_keep_their_dtypes_and_values(dtype):
    expected = {k: v.clone() for k, v in Zoo().named_buffers()}
    flat = FlatModule(Zoo(), dtype, torch.device("cpu"))
    assert flat.packing.names == ["mean", "fine"]
    assert (flat.read_buffers().tolist(), flat.read_buffers().dtype) == ([1.0, 2.0, 0.5], dtype)
    flat.write_buffers(torch.tensor([7.0, 8.0, 9.0], dtype=dtype))
    now = dict(flat.module.named_buffers())
    assert now.pop("mean").tolist() == [7.0, 8.0]
    assert now.pop("fine").tolist() == [9.0]
    assert now.pop("mask").dtype == dtype
    for name, value in now.items():
        assert value.dtype == expected[name].dtype, name
        assert torch.equal(value, expected[name]), name
    assert torch.equal(flat.module.phase, Zoo().phase)  # frozen and complex


def test_all_that_a_step_does_to_buffers_that_stay_is_undone():
    flat = flat_of(Zoo())
    module, first = flat.module, flat.module.prime
    module.prime.add_(1)
    module.freqs = module.freqs * 2  # assigned anew
    module.seen = None
    module.cache = torch.ones(5)
    module.register_buffer("late", torch.ones(1))
    module.mean.fill_(4.0)
    assert flat.changed_buffers() == ["freqs", "prime", "seen"]
    flat.write_buffers(flat.read_buffers())
    assert flat.changed_buffers() == []
    assert module.prime is first
    assert (module.prime.tolist(), module.seen.tolist()) == ([16777259, 2147483647, -3], [True, False])
    assert module.cache is None
    assert "late" not in dict(module.named_buffers())
    assert module.mean.tolist() == [4.0, 4.0]
    flat.write_buffers()
    assert module.mean.tolist() == [1.0, 2.0]


def test_buffers_of_every_dtype_travel_exactly_if_they_are_asked_for():
    names = travelling(Zoo(), ["mean", "freqs", "prime", "se*", "byte"])
    flat = FlatModule(Zoo(), torch.float32, torch.device("cpu"), travels=names)
    assert names == ["mean", "freqs", "prime", "seen", "byte"]
    vector, expected = flat.read_buffers(), {k: v.clone() for k, v in flat.module.named_buffers()}
    assert (len(vector), vector.dtype) == (2 + 2 * 3 + 3 + 2 + 1, torch.float64)  # two numbers for a complex one
    flat.write_buffers(torch.zeros_like(vector))
    assert not flat.module.freqs.any()
    assert not flat.module.prime.any()
    flat.write_buffers(vector)
    assert all(torch.equal(v, expected[k]) for k, v in flat.module.named_buffers())
    mean = sum(vector * (1 / 3) for _ in range(3))  # of three equal clients
    flat.write_buffers(mean)
    assert torch.equal(flat.module.prime, expected["prime"])
    torch.testing.assert_close(flat.module.freqs, expected["freqs"])


def test_what_travels_by_default_and_on_demand():
    average = nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4, momentum=None), nn.BatchNorm1d(4))
    assert travelling(average) == [f"1.{name}" for name in ("running_mean", "running_var", "num_batches_tracked")] + [
        "2.running_mean",
        "2.running_var",
    ]
    assert travelling(Zoo(), all_persistent=True) == [name for name, _ in Zoo().named_buffers() if name != "mask"]
    assert travelling(Zoo(), []) == []
    assert travelling(average, ["2"]) == ["2.running_mean", "2.running_var", "2.num_batches_tracked"]
    with pytest.raises(BadConfig, match=r"model.buffers=freq, but must be names or patterns of buffers of Zoo .*freqs"):
        travelling(Zoo(), ["freq"])


def test_an_integer_that_no_mean_keeps_is_refused_by_its_name():
    flat = FlatModule(Zoo(), torch.float32, torch.device("cpu"), travels=["huge"])
    with pytest.raises(BadConfig, match=r"buffer huge travels .* has an integer beyond 2"):
        flat.read_buffers()


def test_a_complex_parameter_is_refused_by_its_name():
    module = nn.Sequential(nn.Linear(2, 2))
    module[0].register_parameter("spectrum", nn.Parameter(torch.ones(2, dtype=torch.complex64)))
    with pytest.raises(BadConfig, match=r"parameter 0.spectrum is complex.*view_as_real"):
        flat_of(module)


def test_parts_of_one_tensor_are_parameters_of_their_own():
    left, right = torch.arange(12.0).view(3, 4).chunk(2, dim=1)
    module = nn.ParameterDict({"left": left, "right": right, "row": torch.ones(2)})
    flat = FlatModule(module, torch.float32, torch.device("cpu"))
    assert flat.params.tolist() == [0, 1, 4, 5, 8, 9, 2, 3, 6, 7, 10, 11, 1, 1]


def test_one_entry_in_common_is_refused():
    memory = torch.zeros(8)
    module = nn.ParameterDict({"first": memory[:5], "second": memory[4:]})
    with pytest.raises(BadConfig, match="trained parameter second shares memory with its parameter first"):
        FlatModule(module, torch.float32, torch.device("cpu"))
