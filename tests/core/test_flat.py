"""A module's parameters as one vector: views, round trips, gradients, buffers."""

import copy

import pytest
import torch
from torch import nn

from raylfl.core.flat import FlatModule, in_channels_last
from raylfl.core.oracle import Batch, LoopOracle
from raylfl.errors import BadConfig


def small() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4), nn.Linear(4, 2))


def flat_of(module: nn.Module) -> FlatModule:
    return FlatModule(module, torch.float64, torch.device("cpu"))


def test_parameters_are_views_of_the_vector():
    flat = flat_of(small())
    flat.params.fill_(2.0)
    assert all(bool((p == 2.0).all()) for p in flat.module.parameters())
    flat.module[0].weight.data[0, 0] = 5.0
    assert flat.params[0] == 5.0


def test_the_vector_is_the_parameters_in_their_order():
    module = small()
    expected = torch.cat([p.detach().double().reshape(-1) for p in module.parameters()])
    assert torch.equal(flat_of(module).params, expected)


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
        ours = flat.gradient(module(in_channels_last(x)).square().sum())
        torch.testing.assert_close(ours, plain.gradient(twin(x).square().sum()), rtol=1e-12, atol=1e-12)
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
    assert torch.equal(flat.gradient(module(at).square().sum()), expected)
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


def test_the_gradient_is_that_of_backward():
    flat = flat_of(small())
    x = torch.randn(5, 3, dtype=torch.float64)
    gradient = flat.gradient(flat.module(x).square().sum())
    flat.module(x).square().sum().backward()
    expected = torch.cat([p.grad.reshape(-1) for p in flat.module.parameters()])
    torch.testing.assert_close(gradient, expected, rtol=0, atol=0)


def test_a_parameter_that_the_loss_does_not_reach_has_gradient_zero():
    module = nn.ModuleDict({"used": nn.Linear(2, 1), "unused": nn.Linear(2, 1)})
    flat = flat_of(module)
    gradient = flat.gradient(module["used"](torch.ones(1, 2, dtype=torch.float64)).sum())
    assert gradient.shape == (6,)
    assert bool((gradient[3:] == 0).all())
    assert bool((gradient[:3] != 0).any())


def test_frozen_parameters_are_not_part_of_the_vector():
    module = small()
    module[0].weight.requires_grad_(False)
    assert flat_of(module).width == sum(p.numel() for p in module.parameters()) - 12
    for p in module.parameters():
        p.requires_grad_(False)
    with pytest.raises(BadConfig, match="no trainable parameters"):
        flat_of(module)


def test_buffers_survive_a_round_trip_and_integers_stay_integers():
    flat = flat_of(small())
    flat.module(torch.randn(7, 3, dtype=torch.float64))
    before = {k: v.clone() for k, v in flat.module.named_buffers()}
    vector = flat.read_buffers()
    assert vector.shape == (9,)
    flat.write_buffers(torch.zeros(9, dtype=torch.float64))
    flat.write_buffers(vector)
    after = dict(flat.module.named_buffers())
    assert all(torch.equal(before[k], after[k]) and before[k].dtype == after[k].dtype for k in before)
