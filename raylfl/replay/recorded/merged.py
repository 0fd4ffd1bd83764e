"""Replaces some recorded operator calls by faster functions with bit-identical results.

The replaced calls are those of dropout masks, of the safe softmax, and of gradients of attention.
"""

import math
from collections import Counter
from collections.abc import Callable, Mapping, Sequence, Set
from dataclasses import replace
from functools import cache
from types import SimpleNamespace

import torch
from torch import Tensor

from raylfl.replay.recorded.calls import Call, Geometry, Slot

DIGITS = 53  # a Bernoulli number of probability p compares the lower 53 of 64 random bits with p 2^53
SMALLEST = 2**13  # entries of a dropout mask from which one function is faster than the three calls


class Function:
    """A function that replaces recorded operator calls; it has the attributes of torch's operators that programs use.

    draws: whether the function draws random numbers.
    """

    namespace = "raylfl"

    def __init__(self, name: str, function: Callable[..., Tensor], draws: bool = False):
        self.function = function
        self._schema = SimpleNamespace(
            name=f"raylfl::{name}", overload_name="", arguments=[], returns=[], is_mutable=False
        )
        self.tags = {torch.Tag.nondeterministic_seeded} if draws else set()


def merge_calls(calls: Sequence[Call], geometry: Mapping[int, Geometry], returned: Set[int]) -> list[Call]:
    """The calls of a step on a CPU, with some groups of calls replaced by one faster function each.

    geometry: the memory layout of each value, by number. returned: the numbers of the values that the step returns.
    """
    out: list[Call] = []
    used = Counter(value for call in calls for value in call.slots())
    once = {value for value in used if used[value] == 1} - returned
    k = 0
    while k < len(calls):
        call, count = _mask(calls[k : k + 3], geometry) or _match_sum_of_parts(calls[k:], once) or (calls[k], 1)
        if _has_name(call, "_safe_softmax") and len(call.args) == 2 and not call.kwargs:
            call = replace(call, op=SAFE_SOFTMAX)
        out.append(call)
        k += count
    return out


def _has_name(call: Call, name: str) -> bool:
    return str(call.op._schema.name) == f"aten::{name}"


def _mask(calls: Sequence[Call], geometry: Mapping[int, Geometry]) -> tuple[Call, int] | None:
    """(one call that replaces dropout's calls at the start of `calls`, the number of replaced calls), or None.

    Dropout calls empty_like, bernoulli_ and div_, or under vmap bernoulli and div_. Returns None if `calls` start
    otherwise, and for small masks.
    """
    names = ("empty_like", "bernoulli_", "div_") if _has_name(calls[0], "empty_like") else ("bernoulli", "div_")
    group = calls[: len(names)]
    if len(group) < len(names) or not all(map(_has_name, group, names)):
        return None
    made, draw, divided = group[0], *group[-2:]
    if not isinstance(made.result, Slot) or made.kwargs.keys() - {"memory_format", "pin_memory"}:
        return None
    if math.prod(geometry[made.result.number].shape) < SMALLEST:
        return None
    if draw.result != made.result or divided.args[:1] != (made.result,):
        return None
    numbers = [*draw.args[1:], *divided.args[1:]]
    if len(numbers) != 2 or not all(isinstance(n, float) for n in numbers) or draw.kwargs or divided.kwargs:
        return None
    return Call(_dropout(*numbers), made.args[:1], {}, made.result), len(names)


def _match_sum_of_parts(calls: Sequence[Call], once: Set[int]) -> tuple[Call, int] | None:
    """(one call of `stack_parts` that replaces the first of these calls, the number of replaced calls), or None.

    The replaced calls add up the gradients of a tensor's parts: select_backward, then select_backward and add for each
    further part. Returns None if `calls` start otherwise. once: the numbers of the values that a single call uses and
    the step does not return.
    """
    if not _has_name(calls[0], "select_backward"):
        return None
    part, count = calls[0], 1
    total, (sizes, dim) = part.result, part.args[1:3]
    parts = {part.args[3]: part.args[0]}
    for part, addition in zip(calls[1::2], calls[2::2], strict=False):
        if not _has_name(part, "select_backward") or part.args[1:3] != (sizes, dim) or part.args[3] in parts:
            break
        if addition.op is not torch.ops.aten.add.Tensor or addition.args != (total, part.result) or addition.kwargs:
            break
        if not once >= {total.number, part.result.number}:
            break
        parts[part.args[3]], total, count = part.args[0], addition.result, count + 2
    if count == 1 or parts.keys() != set(range(sizes[dim])):
        return None
    return Call(JOINED, ([parts[k] for k in range(sizes[dim])], dim), {}, total), count


@cache
def _dropout(p: float, q: float) -> Function:
    return Function("dropout_mask", Mask(p, q), draws=True)


class Mask:
    """The function `torch.empty_like(x).bernoulli_(p).div_(q)` of x, with the same random numbers in less time.

    torch draws 64 random bits for a Bernoulli number and compares them with p before it draws the next ones. This class
    draws the bits of all numbers first and compares them afterwards, in 0.7 of the time.
    """

    def __init__(self, p: float, q: float):
        self.p, self.q = p, q
        self.limit = math.ceil(p * 2**DIGITS)
        self.scale = {dtype: float(torch.ones(8, dtype=dtype).div_(q)[0]) for dtype in (torch.float32, torch.float64)}

    def __call__(self, x: Tensor) -> Tensor:
        exact = x.dtype in self.scale and same_draws(self.p, self.q, x.dtype)
        return self.quickly(x) if exact else self.plainly(x)

    def quickly(self, x: Tensor) -> Tensor:
        """The mask from bits that are all drawn at once."""
        bits = torch.empty_like(x, dtype=torch.int64).random_().bitwise_and_(2**DIGITS - 1)
        return torch.lt(bits, self.limit, out=torch.empty_like(x)).mul_(self.scale[x.dtype])

    def plainly(self, x: Tensor) -> Tensor:
        """The mask as torch's three calls compute it."""
        return torch.empty_like(x).bernoulli_(self.p).div_(self.q)


@cache
def same_draws(p: float, q: float, dtype: torch.dtype) -> bool:
    """Whether `Mask(p, q).quickly` has the bits of torch's three calls in this dtype, with this build of torch."""
    mask, x, state = Mask(p, q), torch.empty(100, dtype=dtype), torch.get_rng_state()
    try:
        expected, next_draws = mask.plainly(x), torch.rand(2)
        torch.set_rng_state(state)
        return torch.equal(mask.quickly(x), expected) and torch.equal(torch.rand(2), next_draws)
    finally:
        torch.set_rng_state(state)


def safe_softmax(x: Tensor, dim: int) -> Tensor:
    """torch's safe softmax along `dim`, in which rows of -inf (from an attention mask) become 0 instead of nan.

    torch searches for such rows first, at three times the cost of the softmax. Here a nan in the result shows that
    there are some.
    """
    plain = torch.softmax(x, dim)
    return torch.ops.aten._safe_softmax(x, dim) if plain.sum().isnan() else plain


SAFE_SOFTMAX = Function("safe_softmax", safe_softmax)


def stack_parts(parts: list[Tensor], dim: int) -> Tensor:
    """The parts stacked along `dim`, with every -0 replaced by 0.

    These are the bits of the recorded sum of parts padded with zeros, in which -0 + 0 is 0.
    """
    return torch.stack(parts, dim).add_(0)


JOINED = Function("joined", stack_parts)
