"""A vectorised call of several clients, and the comparison of one of its clients with the reference step."""

from collections.abc import Callable, Sequence
from typing import NamedTuple

from torch import Tensor

from raylfl.core.oracle import seed_everything
from raylfl.core.reference import ReferenceStep
from raylfl.replay.proof import Outcome, compare
from raylfl.replay.step_log import StepLog


class CohortCall(NamedTuple):
    """A call of C clients, to be compared.

    x: parameters [C, d]. content: batches [C, B, ...]. buffers_before, buffers_after: [C, *shape]. losses: [C]. g:
    gradients [C, d]. logged: values [C] by name. sizes: of filled-up batches. translated: whether by a translation of
    the step.
    """

    x: Tensor
    content: tuple[Tensor, ...]
    buffers_before: Sequence[Tensor]
    seed: int
    losses: Tensor
    g: Tensor
    buffers_after: Sequence[Tensor]
    logged: dict[str, Tensor]
    sizes: Sequence[int] = ()
    translated: bool = False

    def outcome(self, k: int, names: Sequence[str]) -> Outcome:
        """What the call has computed for client k. names: of the buffers."""
        changed = dict(zip(names, [b[k] for b in self.buffers_after], strict=True))
        return Outcome(self.losses[k], self.g[k], sorted((n, v[k]) for n, v in self.logged.items()), changed)


def compare_client(
    call: CohortCall,
    k: int,
    reference: ReferenceStep,
    log: StepLog,
    t: int,
    again: Callable[[CohortCall, Tensor], CohortCall],
) -> str | None:
    """What differs between client k of a call and the reference step, and by how much; None if nothing differs.

    log: receives what the reference logs. t: the number of the local step. again: gives the call at other parameters
    [C, d].
    """
    flat = reference.flat
    size = call.sizes[k] if len(call.sizes) else call.content[0].shape[1]
    content, names = tuple(part[k][:size] for part in call.content), flat.buffer_names

    def alone(x: Tensor) -> Outcome:
        for b, value in zip(flat.buffers, call.buffers_before, strict=True):
            b.copy_(value[k])
        seed_everything(call.seed)
        return reference.outcome(x, content, t, log)

    def together(x: Tensor) -> Outcome:
        rows = call.x.clone()
        rows[k] = x
        return again(call, rows).outcome(k, names)

    pieces = dict(zip(flat.names, flat.sizes, strict=True))
    return compare(alone, call.x[k], call.outcome(k, names), pieces, reference.eps, together)
