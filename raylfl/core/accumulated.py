"""Gradient accumulation: a local step along the mean gradient of several batches of a client.

Local step t of client i has A = `local.accumulate` batches b of |b| samples. At the client's parameters x_i, which are
the same for all of them, the gradients g_b(x_i) of the batches give the gradient of the step:

    g_i = sum_b |b| g_b(x_i) / sum_b |b|,   and its loss in the same way

For a loss that is a mean over samples, this is the gradient of one batch with the samples of all b. Batches have the
numbers 0, 1, ... in a round, as they have without accumulation. A step does not span two passes over the client's data:
a pass has P_i = ceil(n_i/B_i) batches and ceil(P_i/A) steps, of which the last one has the batches that remain.
"""

from collections.abc import Callable, Sequence

from torch import Tensor

from raylfl.core.keyed import keyed_int
from raylfl.core.oracle import Batch, Oracle


class StepBatches(Batch):
    """The batches of one local step of a client.

    parts: the batches, of which the first one has the number `first` in the round. size: the samples of all of them.
    """

    def __init__(self, first: int, parts: Sequence[Batch]):
        super().__init__(None, sum(batch.size for batch in parts))
        self.first, self.parts = first, parts


def batch_numbers(t: int, accumulate: int, per_pass: int | None) -> range:
    """The numbers of the batches of local step t.

    accumulate: A. per_pass: P_i; None for samples that are drawn with replacement, where every step has A batches.

    >>> [list(batch_numbers(t, 2, per_pass=3)) for t in range(4)]
    [[0, 1], [2], [3, 4], [5]]
    """
    if per_pass is None:
        return range(t * accumulate, (t + 1) * accumulate)
    number, step = divmod(t, -(-per_pass // accumulate))
    first = number * per_pass + step * accumulate
    return range(first, min(first + accumulate, (number + 1) * per_pass))


Batches = Callable[[int, Sequence[int]], Sequence[Batch]]  # as the argument `batches` of `run_local`


def grouped_batches(batches: Batches, accumulate: int, per_pass: int | None) -> Batches:
    """The batches of the local steps of one client: groups of `batches`; the others as in `batch_numbers`."""

    def of_step(t: int, rows: Sequence[int]) -> Sequence[Batch]:
        numbers = batch_numbers(t, accumulate, per_pass)
        return [StepBatches(numbers.start, [batches(number, rows)[0] for number in numbers])]

    return of_step


class AccumulatedOracle(Oracle):
    """An oracle of one client whose gradients are the means over the batches of a step (`StepBatches`)."""

    def __init__(self, oracle: Oracle, after_batch: Callable[[], None] = lambda: None):
        """Means of the gradients of `oracle`. after_batch: called after the gradient of each batch of a step."""
        super().__init__()
        self.oracle, self.after_batch, self.held = oracle, after_batch, oracle.held

    @property
    def width(self) -> int:
        return self.oracle.width

    def workspace(self, count: int) -> Tensor:
        return self.oracle.workspace(count)

    def gradients(self, x: Tensor, batches: Sequence[Batch], seeds: Callable[[int], int]) -> tuple[Tensor, Tensor]:
        (step,) = batches
        if not isinstance(step, StepBatches):  # all samples of the client, for methods with full gradients
            return self.oracle.gradients(x, batches, seeds)
        loss, g, missing = x.new_zeros(1), x.new_zeros(x.shape), list[frozenset[int]]()
        for k, batch in enumerate(step.parts):
            self.oracle.t = step.first + k
            of_batch, row = self.oracle.gradients(x, [batch], lambda c, k=k: keyed_int(seeds(c), "accumulate", k))  # type: ignore[misc]
            loss = loss + of_batch * (batch.size / step.size)
            g.add_(row, alpha=batch.size / step.size)
            missing.append(self.oracle.without_gradient)
            self.after_batch()
        self.oracle.t, self.oracle.without_gradient = 0, frozenset.intersection(*missing)
        return loss, g
