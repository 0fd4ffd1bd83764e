"""Gradients of linear layers under vmap, computed in the memory order of the weights, without a transposed copy."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from itertools import chain

import torch

from raylfl.replay.recorded.calls import Call, Geometry, Recording, Slot

_aten = torch.ops.aten


def reverse_products(plan: Recording, gradients: Sequence[int | None]) -> Recording:
    """The plan with (A B)^T replaced by B^T A^T in the calls that compute these gradients.

    Under vmap, the gradient of a linear layer is a transposed product A B. The copy of (A B)^T to the memory order of
    the weight costs more than the product. BLAS libraries usually give (A B)^T and B^T A^T the same bits, but do not
    guarantee it: the caller must compare the bits. gradients: the numbers of the values that are these gradients.
    """
    calls, geometry = plan.calls, plan.geometry
    makers = {k: position for position, call in enumerate(calls) for k in call.results}
    used = Counter(k for call in calls for k in call.slots)
    out, layouts = [[call] for call in calls], dict(geometry)
    for k in filter(None, gradients):
        if k not in makers or used[k] or gradients.count(k) > 1:
            continue
        turned = calls[position := makers[k]]
        if turned.op is not _aten.transpose.int or sorted(turned.args[1:]) != [1, 2]:
            continue
        (product,) = turned.slots
        made = makers.get(product)
        if made is None or used[product] != 1 or product in plan.results or calls[made].op is not _aten.bmm.default:
            continue
        pair = [_transpose(factor.number, layouts) for factor in reversed(calls[made].args)]
        out[made] = [*pair, Call(_aten.bmm.default, tuple(call.result for call in pair), {}, Slot(k))]
        out[position] = []
        shape = geometry[k].shape
        layouts[k] = Geometry(k, shape, (shape[1] * shape[2], shape[2], 1), 0, geometry[k].dtype)
    return replace(plan, calls=list(chain.from_iterable(out)), geometry=layouts)


def _transpose(k: int, geometry: dict[int, Geometry]) -> Call:
    """A call that makes a transposed view of value k; adds the view to `geometry` under a new number."""
    number, old = max(geometry) + 1, geometry[k]
    shape, stride = ((sizes[0], sizes[2], sizes[1]) for sizes in (old.shape, old.stride))
    geometry[number] = old._replace(shape=shape, stride=stride)
    return Call(_aten.transpose.int, (Slot(k), 1, 2), {}, Slot(number))
