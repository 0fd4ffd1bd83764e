"""The state of a translation: the kinds of values in a recording, and the uses of each value."""

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from torch import Tensor

from raylfl.replay.innermost.patches import Convolution
from raylfl.replay.recorded.calls import Call, Geometry, Recording, Slot
from raylfl.replay.recorded.plan import reduce_calls
from raylfl.replay.recorded.pools import pools_first

IGNORED = -100  # the class label of samples that cross-entropy leaves out (torch's ignore_index)

LAYERS = ("aten::addmm", "aten::convolution")


class Unfit(Exception):
    """The reason why a recording has no translation."""


class Translation:
    """The translation of a recorded step to tensors whose last dimension is the samples of a batch.

    It holds the calls of the step and the kinds of its values.
    A value is a tensor of the recording, given by its number. Kinds are rows (one row per sample), turned (rows
    transposed), labels, loss and others. A rule of `rules.py` checks the kinds of a call's arguments and sets the kinds
    of its results.
    """

    def __init__(self, recording: Recording, parameters: Sequence[Tensor], cohort: bool):
        """A translation of this recording, for one client or for several clients at once (`cohort`).

        Raises Unfit if a parameter has no gradient, the step logs values or sets modes, or the batch is not (inputs,
        labels).
        """
        self.cohort, self.parameters = cohort, parameters
        plan = reduce_calls(recording)
        if None in plan.gradients:
            raise Unfit("parameters without a gradient")
        makers = [_maker(k, plan.geometry) for k in plan.gradients if k is not None]
        plan = replace(plan, calls=_alive(plan.calls, {plan.loss, *makers}), gradients=list(makers))
        self.plan = pools_first(plan)
        self.calls, self.geometry = self.plan.calls, self.plan.geometry
        self.size = self.geometry[0].shape[0]
        self.kinds: dict[int, str] = {0: "rows", 1: "labels"}
        self.users = Counter(k for call in self.calls for k in set(call.slots))
        self.parameter_of = {k: i for i, k in enumerate(makers)}
        self.convolutions: list[Convolution] = []
        self.written: set[int] = set()  # parameters whose gradients are written
        self.scores = -1  # the value with the network's outputs, the input of the cross-entropy
        if len(self.parameter_of) < len(parameters):
            raise Unfit("parameters without a gradient of their own")
        if self.plan.logged or self.plan.leaves != 2 or recording.modes:
            raise Unfit("logged values, a step that sets modes, or batches that are not (inputs, labels)")

    def last_used_by(self, position: int) -> list[int]:
        """The numbers of the values whose last use is call number `position`, except batch, loss and weights."""
        later = {k for call in self.calls[position + 1 :] for k in (*call.slots, *call.results)}
        used = {*self.calls[position].slots, *self.calls[position].results} & self.kinds.keys()
        return sorted(used - later - {0, 1, self.plan.loss})

    def only_here(self, k: int) -> bool:
        """Whether value k is a linear layer's or convolution's result and used by one call, which may overwrite it."""
        maker = next((call for call in self.calls if k in call.results), None)
        return maker is not None and maker.op.name() in LAYERS and self.users[k] == 1

    def is_aliased(self, k: int, call: Call) -> bool:
        """Whether calls after `call` use another value in the memory of value k, which `call` overwrites."""
        later = self.calls[next(number for number, one in enumerate(self.calls) if one is call) + 1 :]
        others = {n for one in later for n in one.slots} & self.kinds.keys() - {k}
        return any(self.geometry[n].base == self.geometry[k].base for n in others)

    def argument(self, value: Any, kind: str = "rows") -> int:
        """The number that identifies `value`, an argument of a call; raises Unfit for a value of another kind."""
        if not isinstance(value, Slot) or self.kinds.get(value.number) != kind:
            raise Unfit(f"an argument that is not {kind}")
        return value.number

    def made(self, result: Any, kind: str = "rows") -> int:
        """Sets the kind of a call's result and returns the result's number.

        Raises Unfit if the call has several results, or if a result of kind `rows` does not have one row per sample.
        """
        if not isinstance(result, Slot):
            raise Unfit("several results")
        if kind == "rows" and self.geometry[result.number].shape[:1] != (self.size,):
            raise Unfit("a result without a row for each sample")
        self.kinds[result.number] = kind
        return result.number

    def weight(self, value: Any, turned: bool = False) -> int:
        """The number -1 - i if the argument `value` is parameter i; raises Unfit if it is no parameter.

        turned: whether it must be the parameter's transposed view.
        """
        constant = self.plan.constants.get(value.number) if isinstance(value, Slot) else None
        for i, p in enumerate(self.parameters):
            if constant is not None and _same_memory(constant, p.t() if turned and p.ndim == 2 else p):
                return -1 - i
        raise Unfit("an argument that is no parameter")

    def gradient(self, result: Any) -> int:
        """Marks this result of a call as a parameter's gradient, and returns the parameter's position.

        Raises Unfit if the result is not the gradient of a parameter, if another call uses the result, or if this
        gradient is already marked.
        """
        i = self.parameter_of.get(result.number) if isinstance(result, Slot) else None
        if i is None or self.users[result.number] or i in self.written:
            raise Unfit("a sum over samples that is no gradient")
        self.written.add(i)
        return i


def _same_memory(a: Tensor, b: Tensor) -> bool:
    return (a.data_ptr(), a.shape, a.stride()) == (b.data_ptr(), b.shape, b.stride())


def _alive(calls: Sequence[Call], needed: set[int]) -> list[Call]:
    """The calls on which the values `needed` depend, and those that change an argument or may draw, in order."""
    alive = []
    for call in reversed(calls):
        if call.op._schema.is_mutable or call.draws or not needed.isdisjoint(call.results):
            alive.append(call)
            needed = needed.union(call.slots)
    return alive[::-1]


def _maker(k: int, geometry: Mapping[int, Geometry]) -> int:
    """The value that first used the memory of value k, if both have the same entries in the same order; else k."""
    layout, base = geometry[k], geometry[geometry[k].base]
    same = layout.contiguous and base.contiguous and math.prod(layout.shape) == math.prod(base.shape)
    return layout.base if same else k
