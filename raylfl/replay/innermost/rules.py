"""Translates single operator calls to tensors whose last dimension is the samples: one rule for each operator.

A rule checks a recorded call, raises Unfit if it has no translation, and returns a function (values, out) that runs
the call on translated values. values: number of a value in the recording -> tensor; parameter i has the number
-1 - i. out: tensors that receive the gradients of the parameters.
"""

from collections.abc import Callable, Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from raylfl.replay.innermost.patches import Convolution, Pool
from raylfl.replay.innermost.translation import IGNORED, Translation, Unfit
from raylfl.replay.recorded.calls import Call, Slot

_aten = torch.ops.aten
PATCHES = 10**6  # patches are stored in `values` under the number of the convolution's result plus PATCHES
POINTWISE = {  # elementwise operators
    *(f"aten::{name}" for name in ("relu", "gelu", "tanh", "sigmoid", "silu", "neg")),
    *(f"aten::{name}_backward" for name in ("threshold", "gelu", "tanh", "sigmoid", "silu")),
    *("aten::add.Tensor", "aten::sub.Tensor", "aten::mul.Tensor"),
}
Values = dict[int, Any]
Function = Callable[[Values, Sequence[Tensor]], object]
Rule = Callable[[Translation, Call], Function]


def _into(out: int, compute: Callable[[Values], Any]) -> Function:
    """The function that stores the result of `compute` in the values, under the number `out`."""

    def function(values: Values, _: Any) -> None:
        values[out] = compute(values)

    return function


def _pointwise(state: Translation, call: Call) -> Function:
    """The rule for elementwise operators; raises Unfit for all operators that are not in POINTWISE.

    It also raises Unfit if an argument is a number, which may change between steps. The only exception is the 0 of
    `threshold_backward`.
    """
    name, numbers = call.op.name(), [a for a in call.args if not isinstance(a, Slot)]
    if name not in POINTWISE or numbers != ([0] if name == "aten::threshold_backward" else []):
        raise Unfit(name)
    arguments = [state.argument(a) for a in call.args if isinstance(a, Slot)]
    out, op = state.made(call.result), call.op._op
    if len({state.geometry[k].shape for k in (*arguments, out)}) > 1:
        raise Unfit("arguments of different shapes")
    if name == "aten::relu" and state.only_here(arguments[0]):
        op = torch.relu_
    return _into(out, lambda v: op(*(v[a.number] if isinstance(a, Slot) else a for a in call.args)))


def _relu_in_place(state: Translation, call: Call) -> Any:
    x = state.argument(call.args[0])
    if x < 2 or state.made(call.result) != x or state.is_aliased(x, call):
        raise Unfit("a batch or a view that is overwritten")
    return lambda v, _: v[x].relu_()


def _view(state: Translation, call: Call) -> Any:
    x, out = state.argument(call.args[0]), state.made(call.result)
    shape = state.geometry[out].shape[1:]
    lead = int(state.cohort)
    return _into(out, lambda v: v[x].reshape(*v[x].shape[:lead], *shape, v[x].shape[-1]))


def _transpose(state: Translation, call: Call) -> Any:
    x, out = state.argument(call.args[0]), state.made(call.result, "turned")
    return _into(out, lambda v: v[x])


def _linear(state: Translation, call: Call) -> Any:
    b, x, w = state.weight(call.args[0]), state.argument(call.args[1]), state.weight(call.args[2], turned=True)
    out = state.made(call.result)
    product = torch.baddbmm if state.cohort else torch.addmm
    return _into(out, lambda v: product(v[b].unsqueeze(-1), v[w], v[x]))


def _product(state: Translation, call: Call) -> Any:
    """The rule for the two matrix products in the backward pass of a linear layer: gradients of weight and input."""
    left = call.args[0]
    if state.kinds.get(left.number) == "turned":
        g, x, i = left.number, state.argument(call.args[1]), state.gradient(call.result)
        if state.cohort:
            return lambda v, out: out[i].copy_(torch.bmm(v[g], v[x].transpose(1, 2)))
        return lambda v, out: torch.mm(v[g], v[x].t(), out=out[i])
    g, w, result = state.argument(left), state.weight(call.args[1]), state.made(call.result)
    product = torch.bmm if state.cohort else torch.mm
    return _into(result, lambda v: product(v[w].transpose(-2, -1), v[g]))


def _sum(state: Translation, call: Call) -> Any:
    g, i = state.argument(call.args[0]), state.gradient(call.result)
    if list(call.args[1]) != [0] or len(state.geometry[g].shape) != 2:
        raise Unfit("a sum over features")
    return lambda v, out: torch.sum(v[g], -1, out=out[i])


def _convolution(state: Translation, call: Call) -> Any:
    x, weight, bias, stride, padding, dilation, transposed, _, groups = call.args
    plain = not state.cohort and [list(stride), list(dilation), transposed, groups] == [[1, 1], [1, 1], False, 1]
    x, w, b, out = state.argument(x), state.weight(weight), state.weight(bias), state.made(call.result)
    shape = state.parameters[-1 - w].shape
    if not plain or len(shape) != 4 or len(state.geometry[x].shape) != 4:
        raise Unfit("a convolution with strides, dilation, groups or for a cohort")
    state.convolutions.append(layer := Convolution(shape[1], (shape[2], shape[3]), tuple(padding)))
    patches = PATCHES + out

    def function(v: Values, _: Any) -> None:
        v[out], v[patches] = layer.forward(v[x], v[w], v[b])

    return function


def _convolution_backward(state: Translation, call: Call) -> Any:
    g, x, weight, _, stride, padding, *_rest, mask = call.args
    made, w = call.result, state.weight(weight)
    g, x, shape = state.argument(g), state.argument(x), state.parameters[-1 - w].shape
    rows, needs_input = (state.gradient(made[1]), state.gradient(made[2])), bool(mask[0])
    forward = next(
        c for c in state.calls if c.op.name() == "aten::convolution" and c.args[:2] == (call.args[1], weight)
    )
    layer, patches = Convolution(shape[1], (shape[2], shape[3]), tuple(padding)), PATCHES + forward.result.number
    if list(forward.args[3:5]) != [stride, padding]:
        raise Unfit("the backward pass of another convolution")
    out = state.made(made[0]) if needs_input else None

    def function(v: Values, gradients: Sequence[Tensor]) -> None:
        args = v[g], v.pop(patches), v[x].shape, v[w], [gradients[i] for i in rows]
        back = layer.backward(*args, needs_input)
        if out is not None:
            v[out] = back

    return function


def _max_pool(state: Translation, call: Call) -> Any:
    x, pool = state.argument(call.args[0]), _pool(state, list(call.args[1:]))
    if len(state.geometry[x].shape) != 4:
        raise Unfit("a pool over other than images")
    out, indices = state.made(call.result[0]), state.made(call.result[1], "indices")

    def function(v: Values, _: Any) -> None:
        v[out], v[indices] = pool.forward(v[x])

    return function


def _pool_backward(state: Translation, call: Call) -> Any:
    g, x, pool = state.argument(call.args[0]), state.argument(call.args[1]), _pool(state, list(call.args[2:-1]))
    indices, out = state.argument(call.args[-1], "indices"), state.made(call.result)
    return _into(out, lambda v: pool.backward(v[g], v[x], v[indices]))


def _pool(state: Translation, options: list[Any]) -> Pool:
    """The pool with these options: size, and up to four of stride, padding, dilation and ceil_mode."""
    size, stride, padding, dilation, ceil = options + [[], [0, 0], [1, 1], False][len(options) - 1 :]
    if state.cohort or [list(padding), list(dilation), ceil] != [[0, 0], [1, 1], False]:
        raise Unfit("a pool with padding, dilation or for a cohort")
    return Pool(tuple(size), tuple(stride) or tuple(size))


def _log_softmax(state: Translation, call: Call) -> Any:
    x = state.argument(call.args[0])
    if list(call.args[1:]) not in ([1, False], [-1, False]) or len(state.geometry[x].shape) != 2:
        raise Unfit("another softmax")
    out, cohort = state.made(call.result, "log p"), state.cohort
    state.scores = x
    # a cohort's scores as images of one row: torch has cross-entropy kernels for images
    return _into(out, lambda v: F.log_softmax(v[x].unsqueeze(2) if cohort else v[x].t().contiguous(), 1))


def _log_softmax_backward(state: Translation, call: Call) -> Any:
    g, log_p = state.argument(call.args[0], "of log p"), state.argument(call.args[1], "log p")
    out, cohort = state.made(call.result), state.cohort

    def compute(v: Values) -> Tensor:
        back: Tensor = _aten._log_softmax_backward_data(v[g], v[log_p], 1, v[log_p].dtype)
        return back.squeeze(2) if cohort else back.t().contiguous()

    return _into(out, compute)


def _cross_entropy(state: Translation, call: Call) -> Any:
    log_p, y = state.argument(call.args[0], "log p"), state.argument(call.args[1], "labels")
    out, total, cohort = state.made(call.result[0], "loss"), state.made(call.result[1], "total"), state.cohort
    if list(call.args[2:]) != [None, 1, IGNORED]:
        raise Unfit("another mean cross-entropy")

    def function(v: Values, _: Any) -> None:
        if not cohort:
            v[out], v[total] = _aten.nll_loss_forward(v[log_p], v[y], None, 1, IGNORED)
            return
        labels = v[y].unsqueeze(1)
        each, total_weight = _aten.nll_loss2d_forward(v[log_p], labels, None, 0, IGNORED)
        count = (labels != IGNORED).sum(2, keepdim=True).to(each.dtype)
        v[out], v[total] = (each.sum(2, keepdim=True) / count).flatten(), (each, total_weight, count)

    return function


def _cross_entropy_backward(state: Translation, call: Call) -> Any:
    one, log_p, y, *options, total = call.args
    scale = state.plan.constants.get(one.number)
    if options != [None, 1, IGNORED] or scale is None or scale.numel() != 1 or float(scale) != 1:
        raise Unfit("another gradient of the loss")
    log_p, y, total = state.argument(log_p, "log p"), state.argument(y, "labels"), state.argument(total, "total")
    out, cohort = state.made(call.result, "of log p"), state.cohort

    def compute(v: Values) -> Any:
        if not cohort:
            one = v[log_p].new_ones(())
            return _aten.nll_loss_backward(one, v[log_p], v[y], None, 1, IGNORED, v[total])
        each, total_weight, count = v[total]
        g = (1 / count).expand_as(each)
        return _aten.nll_loss2d_backward(g, v[log_p], v[y].unsqueeze(1), None, 0, IGNORED, total_weight)

    return _into(out, compute)


RULES: dict[str, Rule] = {
    "aten::view": _view,
    "aten::t": _transpose,
    "aten::addmm": _linear,
    "aten::mm": _product,
    "aten::sum.dim_IntList": _sum,
    "aten::relu_": _relu_in_place,
    "aten::convolution": _convolution,
    "aten::convolution_backward": _convolution_backward,
    "aten::max_pool2d_with_indices": _max_pool,
    "aten::max_pool2d_with_indices_backward": _pool_backward,
    "aten::_log_softmax": _log_softmax,
    "aten::_log_softmax_backward_data": _log_softmax_backward,
    "aten::nll_loss_forward": _cross_entropy,
    "aten::nll_loss_backward": _cross_entropy_backward,
}


def rule_of(call: Call) -> Rule:
    """The rule that translates this call. Raises Unfit for a call with keyword arguments or without results."""
    if call.kwargs or not call.results:
        raise Unfit(call.op.name())
    return RULES.get(call.op.name(), _pointwise)
