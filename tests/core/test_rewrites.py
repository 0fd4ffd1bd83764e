"""Rewritten lists of calls: the same values, and no change of calls that differ from a pattern in one part."""

from __future__ import annotations

import pytest
import torch

from raylfl.replay.proof import same_bits
from raylfl.replay.recorded.calls import Call, Geometry, Slot, map_parts
from raylfl.replay.recorded.pools import pools_first
from raylfl.replay.recorded.products import reverse_products

aten = torch.ops.aten


class Written:
    """A list of calls written by hand: each call is carried out and noted."""

    def __init__(self, *leaves):
        self.values, self.calls, self.geometry = {}, [], {}
        self.leaves = [self.number(leaf) for leaf in leaves]

    def number(self, tensor, base=None):
        k = len(self.values)
        self.values[k] = tensor
        self.geometry[k] = Geometry.of(tensor, k if base is None else base)
        return Slot(k)

    def __call__(self, op, *args, **kwargs):
        """The slot of the result; that of the first argument where the operator works in place."""
        result = op(*map_parts(list(args), Slot, lambda s: self.values[s.number]), **kwargs)
        call = Call(op, args, kwargs, None)
        if call.written():
            call.result = args[0]
        elif isinstance(result, tuple):
            call.result = tuple(self.number(part) for part in result)
        else:
            call.result = self.number(result, self.geometry[args[0].number].base if call.views else None)
        self.calls.append(call)
        return call.result

    def carried_out(self, calls, *leaves):
        """All values after these calls on these leaves."""
        values = {slot.number: leaf.clone() for slot, leaf in zip(self.leaves, leaves, strict=True)}
        for call in calls:
            function = getattr(call.op, "function", call.op)
            result = function(*map_parts(list(call.args), Slot, lambda s: values[s.number]), **call.kwargs)
            results = [result] if isinstance(call.result, Slot) else result
            values.update(zip(call.results(), results, strict=True))
        return values


# -- a ReLU and the max-pool behind it ---------------------------------------------------------------------------


def pooled(miss="", inplace=False):
    """The calls of relu, max-pool and their backward passes, and the wanted values; miss: what is different."""
    torch.manual_seed(0)
    g = Written(torch.randn(2, 3, 6, 6), torch.randn(2, 3, 3, 3))
    x, up = g.leaves
    relu = g(aten.relu_.default if inplace else aten.relu.default, x)
    window = [2, 2], [2, 2], [0, 0], [1, 1], False
    small, places = g(aten.max_pool2d_with_indices.default, relu, *window)
    down = g(aten.max_pool2d_with_indices_backward.default, up, relu, *window, places)
    wanted = [small]
    if miss == "the pool's gradient is used twice":
        wanted.append(g(aten.neg.default, down))
    if miss == "the indices are used":
        wanted.append(g(aten.neg.default, places))
    if miss == "the activation is used":
        wanted.append(g(aten.neg.default, relu))
    if miss == "the activation is viewed":
        g(aten.view.default, x if inplace else relu, [-1])
    if miss == "the activation is returned":
        wanted.append(relu)
    gate = g(aten.neg.default, relu) if miss == "another gate" else relu
    limit = 0.5 if miss == "another limit" else 0
    wanted.append(g(aten.threshold_backward.default, down, gate, limit))
    return g, {slot.number for slot in wanted}


@pytest.mark.parametrize("inplace", [False, True])
def test_a_pool_before_its_activation_gives_the_same_values(inplace):
    g, wanted = pooled(inplace=inplace)
    calls, _ = pools_first(g.calls, g.geometry, wanted)
    assert [call.op for call in calls[:2]] == [aten.max_pool2d_with_indices.default, aten.relu_.default]
    leaves = torch.randn(2, 3, 6, 6), torch.randn(2, 3, 3, 3)
    ours, theirs = (g.carried_out(some, *leaves) for some in (calls, g.calls))
    assert all(same_bits(ours[k], theirs[k]) for k in wanted)


@pytest.mark.parametrize(
    "miss",
    [
        "the pool's gradient is used twice",
        "the indices are used",
        "the activation is used",
        "the activation is viewed",
        "the activation is returned",
        "another gate",
        "another limit",
    ],
)
@pytest.mark.parametrize("inplace", [False, True])
def test_a_pool_stays_behind_its_activation_where_anything_else_depends_on_it(miss, inplace):
    g, wanted = pooled(miss, inplace)
    assert pools_first(g.calls, g.geometry, wanted) == (g.calls, g.geometry)


# -- gradients that are transposed products ----------------------------------------------------------------------


def turned(miss=""):
    """(A B)^T as a gradient: the calls, the gradients and the wanted values."""
    torch.manual_seed(0)
    g = Written(torch.randn(2, 3, 4), torch.randn(2, 4, 5))
    a, b = g.leaves
    product = g(aten.mul.Tensor, a, a) if miss == "another product" else g(aten.bmm.default, a, b)
    gradient = g(aten.transpose.int, product, *((0, 1) if miss == "other dimensions" else (1, 2)))
    wanted = {gradient.number}
    if miss == "the gradient is used":
        g(aten.neg.default, gradient)
    if miss == "the product is used":
        g(aten.neg.default, product)
    if miss == "the product is returned":
        wanted.add(product.number)
    gradients = [None, gradient.number, *([gradient.number] if miss == "two parameters" else [])]
    return g, gradients, wanted


def test_a_transposed_product_is_made_in_the_order_of_its_memory():
    g, gradients, wanted = turned()
    calls, geometry = reverse_products(g.calls, g.geometry, gradients, wanted)
    assert [call.op for call in calls] == [aten.transpose.int, aten.transpose.int, aten.bmm.default]
    leaves = torch.randn(2, 3, 4), torch.randn(2, 4, 5)
    ours, theirs = (g.carried_out(some, *leaves)[gradients[1]] for some in (calls, g.calls))
    torch.testing.assert_close(ours, theirs)
    assert ours.is_contiguous()
    for call in calls:
        (k,) = call.results()
        made = g.carried_out(calls, *leaves)[k]
        assert (geometry[k].shape, geometry[k].stride) == (tuple(made.shape), made.stride())
        assert geometry[k].base == (k if call.op is aten.bmm.default else call.slots()[0])


@pytest.mark.parametrize(
    "miss",
    [
        "another product",
        "other dimensions",
        "the gradient is used",
        "the product is used",
        "the product is returned",
        "two parameters",
    ],
)
def test_products_that_are_needed_as_they_are_stay(miss):
    g, gradients, wanted = turned(miss)
    assert reverse_products(g.calls, g.geometry, gradients, wanted) == (g.calls, g.geometry)


def test_a_gradient_that_no_call_makes_stays():
    g, _, wanted = turned()
    assert reverse_products(g.calls, g.geometry, [None, g.leaves[1].number], wanted)[0] == g.calls
