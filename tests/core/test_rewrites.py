"""Rewritten lists of calls: the same values, and no change of calls that differ from a pattern in one part."""

from __future__ import annotations

import pytest
import torch

from raylfl.replay.proof import same_bits
from raylfl.replay.recorded.calls import Call, Geometry, Slot, map_parts
from raylfl.replay.recorded.merged import SMALLEST, merge_calls
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


# -- dropout masks -----------------------------------------------------------------------------------------------


def masked(miss="", size=SMALLEST, cohort=False):
    g = Written(torch.ones(size), torch.ones(size))
    x, other = g.leaves
    if cohort:
        made = g(aten.bernoulli.p, x, 0.5, **({"generator": None} if miss == "a generator" else {}))
    else:
        made = g(aten.empty_like.default, x, **({"dtype": torch.float64} if miss == "another dtype" else {}))
        drawn = other if miss == "other memory drawn" else made
        g(aten.bernoulli_.float, drawn, 0.5, **({"generator": None} if miss == "a generator" else {}))
    if miss == "no division":
        return g
    target = other if miss == "other memory divided" else made
    if miss == "divided by a tensor":
        g(aten.div_.Tensor, target, other)
    else:
        g(aten.div_.Scalar, target, 2 if miss == "a whole number" else 0.5)
    return g


@pytest.mark.parametrize("cohort", [False, True])
def test_the_calls_of_a_dropout_mask_are_one_with_the_same_numbers(cohort):
    g = masked(cohort=cohort)
    calls = merge_calls(g.calls, g.geometry, set())
    assert len(calls) == 1
    made = g.calls[0].result.number
    values = []
    for some in (calls, g.calls):
        torch.manual_seed(1)
        values.append(g.carried_out(some, torch.ones(SMALLEST), torch.ones(SMALLEST))[made])
    assert torch.equal(*values)
    assert set(values[0].tolist()) == {0.0, 2.0}


@pytest.mark.parametrize(
    "miss",
    [
        "a generator",
        "another dtype",
        "other memory drawn",
        "other memory divided",
        "no division",
        "divided by a tensor",
        "a whole number",
    ],
)
@pytest.mark.parametrize("cohort", [False, True])
def test_calls_that_are_no_mask_stay(miss, cohort):
    if cohort and miss in ("another dtype", "other memory drawn"):
        return  # one call makes and draws
    g = masked(miss, cohort=cohort)
    assert merge_calls(g.calls, g.geometry, set()) == g.calls


def test_a_small_mask_stays():
    g = masked(size=SMALLEST - 1)
    assert merge_calls(g.calls, g.geometry, set()) == g.calls


@pytest.mark.parametrize("further", [(), (torch.float64,)])
def test_a_softmax_is_safe_without_a_search_unless_it_changes_the_dtype(further):
    g = Written(torch.randn(2, 3))
    g(aten._safe_softmax.default, *g.leaves, -1, *further)
    (call,) = merge_calls(g.calls, g.geometry, set())
    assert (call == g.calls[0]) == bool(further)


# -- gradients of all parts of a tensor --------------------------------------------------------------------------

SIZES, DIM = [2, 3, 4], 1


def parts_added(miss="", parts=3):
    """The gradient of parts 0, 1 and 2, in another order, of a tensor [2, 3, 4]."""
    g = Written(*(torch.randn(2, 4) for _ in range(parts)))
    total = g(aten.select_backward.default, g.leaves[0], SIZES, DIM, 1)
    wanted = set()
    for k, (leaf, at) in enumerate(zip(g.leaves[1:], (2, 0), strict=False)):
        place = 1 if miss == "a part twice" and k else at
        dim = -2 if miss == "another dimension" and k == 1 else DIM
        part = g(aten.select_backward.default, leaf, SIZES, dim, place)
        pair = (part, total) if miss == "the other order" and k == 1 else (total, part)
        kwargs = {"alpha": 2} if miss == "a factor" and k == 1 else {}
        if miss == "something between" and k == 1:
            wanted.add(g(aten.neg.default, leaf).number)
        before, total = total, g(aten.add.Tensor, *pair, **kwargs)
        if miss == "a part is used" and k == 1:
            wanted.add(g(aten.neg.default, part).number)
        if miss == "a sum is used" and k == 1:
            wanted.add(g(aten.neg.default, before).number)
        if miss == "a sum is returned" and k == 1:
            wanted.add(before.number)
    g(aten.neg.default, total)  # the whole sum may have any number of users
    g(aten.neg.default, total)
    return g, wanted | {total.number}


def test_the_sum_of_all_parts_is_one_call_with_the_same_values():
    g, wanted = parts_added()
    calls = merge_calls(g.calls, g.geometry, wanted)
    assert len(calls) == 3
    leaves = [torch.randn(2, 4) for _ in g.leaves]
    ours, theirs = (g.carried_out(some, *leaves) for some in (calls, g.calls))
    assert all(torch.equal(ours[k], theirs[k]) for k in (*wanted, *g.calls[-1].results(), *g.calls[-2].results()))


@pytest.mark.parametrize(
    "miss",
    [
        "a part twice",
        "another dimension",
        "the other order",
        "a factor",
        "something between",
        "a part is used",
        "a sum is used",
        "a sum is returned",
    ],
)
def test_sums_that_are_not_of_all_parts_stay(miss):
    g, wanted = parts_added(miss)
    assert merge_calls(g.calls, g.geometry, wanted) == g.calls


@pytest.mark.parametrize("parts", [1, 2])
def test_sums_of_some_parts_stay(parts):
    g, wanted = parts_added(parts=parts)
    assert merge_calls(g.calls, g.geometry, wanted) == g.calls


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
