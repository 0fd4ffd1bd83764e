"""The necessary calls of a recording, of lists written by hand."""

from __future__ import annotations

import torch

from raylfl.replay.recorded.calls import Recording
from raylfl.replay.recorded.plan import reduce_calls
from tests.core.test_rewrites import Written

aten = torch.ops.aten


def plan_of(g, loss, inputs=(), buffers=()):
    """The names of the operators in the plan of a list of calls."""
    known = {slot.number: g.values[slot.number] for slot in inputs}
    numbers = {slot.number for slot in buffers}
    plan = reduce_calls(Recording(g.calls, g.geometry, len(g.leaves) - len(known), known, {}, loss.number, [], numbers))
    return [call.op._schema.name.removeprefix("aten::") for call in plan.calls]


def test_a_call_on_a_buffer_is_kept_and_other_calls_for_nothing_are_not():
    """Kernels of batch norm overwrite running means, though their schema does not say so."""
    torch.manual_seed(0)
    g = Written(torch.randn(4, 3), torch.zeros(3), torch.ones(3))
    x, mean, var = g.leaves
    g(aten.relu.default, x)
    g(aten.native_batch_norm.default, x, None, None, mean, var, True, 0.1, 1e-5)
    g(aten.t.default, x)
    loss = g(aten.sum.default, x)
    assert plan_of(g, loss, inputs=[mean, var], buffers=[mean, var]) == ["native_batch_norm", "sum"]
    assert plan_of(g, loss, inputs=[mean, var]) == ["sum"]


def test_draws_and_writes_for_nothing_are_kept():
    g = Written(torch.ones(4, 3), torch.ones(3))
    x, parameter = g.leaves
    g(aten.bernoulli.default, x)
    y = g(aten.neg.default, x)
    g(aten.add_.Tensor, y, x)
    assert plan_of(g, g(aten.sum.default, x), inputs=[parameter]) == ["bernoulli", "neg", "add_", "sum"]
