"""Translated training steps: lists of functions on tensors whose last dimension is the samples of a batch."""

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import torch
from torch import Tensor

from raylfl.replay.innermost.rules import Function, Values, rule_of
from raylfl.replay.innermost.translation import IGNORED, Translation, Unfit
from raylfl.replay.recorded.calls import Call, Recording
from raylfl.replay.recorded.memory import Arena
from raylfl.replay.recorded.program import Program, compile_calls

LARGEST = 32  # samples of one client at a time; the patches of more samples do not fit in a core's caches
FEW = 8  # largest number of input channels with which a convolution is faster in this memory order


class Innermost:
    """A training step translated to tensors whose last dimension is the samples of a batch.

    text: a description of its calls, equal for equal steps.
    """

    def __init__(self, recording: Recording, parameters: Sequence[Tensor], cohort: bool, arena: Arena):
        """Translates a recording of a step; raises Unfit if it has no translation.

        cohort: whether the translated step computes several clients at once. arena: the memory in which repeated calls
        of the step keep their values; other steps may use the same arena.
        """
        translation = Translation(recording, parameters, cohort)
        self.cohort, self.shape, self.loss = cohort, translation.geometry[0].shape[1:], translation.plan.loss
        self.arena = arena
        self._fixed: dict[
            Any, Program | bool | None
        ] = {}  # by function and layout; None: called once; False: impossible
        self.calls: list[tuple[Function, list[int]]] = []  # and the numbers of the values that no later call needs
        self._forward = 0  # the number of calls in front of the cross-entropy
        for k, call in enumerate(translation.calls):
            function = rule_of(call)(translation, call)
            if translation.scores < 0:
                self._forward = k + 1
            self.calls.append((function, translation.last_used_by(k)))
        if translation.kinds.get(self.loss) != "loss" or len(translation.written) < len(parameters):
            raise Unfit("another loss, or gradients that are computed in another way")
        self.scores, self.convolutions = translation.scores, translation.convolutions
        self.text = "\n".join(_text(translation, call) for call in translation.calls)

    def pays(self, size: int) -> bool:
        """Whether the translation makes one client's steps on batches of this size faster than channels-last ones.

        So it is if all convolutions have few input channels, and batches of coloured images are computed in one piece.
        False for a step without convolutions.
        """
        one_piece_or_grey = size <= LARGEST or self.shape[0] == 1
        return bool(self.convolutions) and one_piece_or_grey and all(c.channels <= FEW for c in self.convolutions)

    def gradients(self, content: Sequence[Tensor], weights: Sequence[Tensor], out: Sequence[Tensor]) -> Tensor:
        """Writes the gradients to `out`; returns the loss of one client's batch, or the losses [C] of a cohort.

        content: (inputs [B, ...], labels [B]), or (inputs [C, B, ...], labels [C, B]) for a cohort. weights: the
        parameters, [*shape] or [C, *shape] each. out: tensors of the same shapes.
        """
        x, y = content
        pieces = -(-len(y) // LARGEST)
        if self.cohort or pieces == 1:
            return self._whole(x, y, weights, out)
        total, piece = x.new_zeros(()), [torch.empty_like(g) for g in out]
        for g in out:
            g.zero_()
        count = int((y != IGNORED).sum())
        for inputs, labels in zip(x.tensor_split(pieces), y.tensor_split(pieces), strict=True):
            share = int((labels != IGNORED).sum()) / max(count, 1)
            if share:
                total.add_(self._whole(inputs, labels, weights, piece), alpha=share)
                torch._foreach_add_(list(out), piece, alpha=share)
        return total

    def outputs(self, x: Tensor, weights: Sequence[Tensor]) -> Tensor:
        """The outputs [B, classes] of one client's network for inputs x [B, ...]; not for cohorts."""
        outputs = []
        for piece in x.split(LARGEST):
            outputs.append(self._run("outputs", partial(self._outputs, piece, weights), (piece, *weights), ()))
        return torch.cat(outputs)

    def fits(self, x: Tensor) -> bool:
        """Whether x [B, ...] holds samples, and they have the shape of the recorded samples."""
        return x.shape[1:] == self.shape and len(x) > 0

    def _whole(self, x: Tensor, y: Tensor, weights: Sequence[Tensor], out: Sequence[Tensor]) -> Tensor:
        """Loss and gradients as in `gradients`, of a batch in one piece."""
        return self._run("step", partial(self._call, x, y, weights, out), (x, y, *weights), out)

    def _run(
        self, name: str, function: Callable[[], Tensor], inputs: Sequence[Tensor], out: Sequence[Tensor]
    ) -> Tensor:
        """The result of `function`; from its second call with this layout on, by operator calls of `compile_calls`.

        name: identifies the function. inputs: the tensors that `function` reads; the layout is that of the first one,
        the inputs. out: the tensors that `function` writes.
        """
        key = name, inputs[0].shape, inputs[0].stride()
        if key not in self._fixed:
            self._fixed[key] = None
        elif self._fixed[key] is None:
            self._fixed[key] = compile_calls(function, inputs, out, self.arena) or False
        fixed = self._fixed[key]
        if isinstance(fixed, Program):
            return fixed((*inputs, *out))[0]
        with torch._C._AutoDispatchBelowAutograd():
            return function()

    def _outputs(self, x: Tensor, weights: Sequence[Tensor]) -> Tensor:
        values = self._begin(x, weights)
        for function, _ in self.calls[: self._forward]:
            function(values, ())
        scores: Tensor = values[self.scores]
        return scores.t().clone(memory_format=torch.contiguous_format)

    def _call(self, x: Tensor, y: Tensor, weights: Sequence[Tensor], out: Sequence[Tensor]) -> Tensor:
        values = self._begin(x, weights)
        values[1] = y
        for function, unneeded in self.calls:
            function(values, out)
            for k in unneeded:
                del values[k]
        loss: Tensor = values[self.loss]
        return loss

    def _begin(self, x: Tensor, weights: Sequence[Tensor]) -> Values:
        # a clone has the strides of its shape, for one sample too; `contiguous` may not, and products round differently
        x = x.movedim(1, -1) if self.cohort else x.movedim(0, -1).clone(memory_format=torch.contiguous_format)
        return {0: x} | {-1 - i: w for i, w in enumerate(weights)}


def _text(translation: Translation, call: Call) -> str:
    """A description of the call without the number of samples, so that it is equal for all batch sizes."""
    name, results = call.op.name(), call.results
    plain = translation.geometry[results[0]].shape[1:] if name == "aten::view" else call.args
    return f"{results} = {name}({call.slots}, {plain})"
