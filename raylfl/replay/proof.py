"""Proof by results: the comparison of a step's results with those of the reference step (`core/reference.py`).

A faster form of a step (recorded, vectorised, samples innermost) is used where its results have been equal to the
reference's. Equal means: equal bits for recorded steps, and for the other forms half of the digits of the dtype,

    |a - r| <= sqrt(eps) max(|a|, |r|) + 64 eps max|all of r|      for the loss and the gradient of each parameter,

where |.| is the largest absolute entry. A difference above this bound counts unless the reference itself moves by as
much, entry by entry, when its parameters change in their last bits, as where a ReLU or a maximum is about to switch.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from raylfl.errors import BadConfig

NOISE = 64  # in units of eps times the largest entry of all gradients: smaller gradients are rounding errors
TRIES = 8  # steps at parameters changed in their last bits, which show how far the reference itself moves
MARGIN = 4  # how much further than the reference a form may move there


class Diverged(BadConfig):
    """The error for a form of the step that has been used, and whose results differ from the reference's.

    text: what differs, and by how much. remedy: the option under which another form is used.
    """

    def __init__(self, text: str, remedy: str, where: str = ""):
        self.text, self.remedy = text, remedy
        super().__init__(f"{where}{text} (set {remedy})")

    def __reduce__(self) -> tuple[Any, ...]:  # pickle passes the message only
        return Diverged, (self.text, self.remedy, str(self).partition(self.text)[0])

    def at(self, where: str) -> Diverged:
        """A copy of this error that begins with the round and the clients."""
        return Diverged(self.text, self.remedy, where)


class Schedule:
    """The schedule of comparisons of a form of the step with the reference.

    A step is compared if it is the first of its kind and number, if it is use number 1, 2, 4, ... of its kind, or after
    evaluation number 1, 2, 4, ..., whose user code may change what a step reads.
    """

    def __init__(self) -> None:
        self.uses, self.evaluations, self.comparisons = Counter[object](), 0, 0
        self._compared: set[tuple[object, int]] = set()
        self._doubted = False

    def doubt(self) -> None:
        """Called before an evaluation."""
        self.evaluations += 1
        self._doubted |= power_of_two(self.evaluations)

    def due(self, kind: object, t: int) -> bool:
        """Whether this use is to be compared. kind: of the batches; t: the number of the local step."""
        self.uses[kind] += 1
        due = self._doubted or (kind, t) not in self._compared or power_of_two(self.uses[kind])
        self._compared.add((kind, t))
        self._doubted = False
        self.comparisons += due
        return due


def power_of_two(number: int) -> bool:
    """Whether a positive number is 1, 2, 4, ..."""
    return number & (number - 1) == 0


class Outcome(NamedTuple):
    """What a step computes and changes.

    loss: [] or [C]. row: the gradient, [d] or [C, d]. logged: name -> value, of each call of `self.log`. changed: name
    -> tensor after the step, of all tensors that a step may change.
    """

    loss: Tensor
    row: Tensor
    logged: Sequence[tuple[str, Tensor]] = ()
    changed: Mapping[str, Tensor] = {}


def difference(reference: Outcome, other: Outcome, pieces: Mapping[str, int], bound: Bound | None = None) -> str | None:
    """What differs between a step and its reference, and by how much, as text; None if nothing differs.

    pieces: the number of entries of each parameter, by name, in the order of `row`. bound: None: all bits must be
    equal.
    """
    names = [[name for name, _ in outcome.logged] for outcome in (reference, other)]
    if names[0] != names[1]:
        expected, actual = (", ".join(dict.fromkeys(part)) or "nothing" for part in names)
        return f"logs {actual} instead of {expected}"
    largest = float(reference.row.abs().amax()) if reference.row.numel() else 0.0
    parts = [("loss", reference.loss, other.loss, abs(float(reference.loss.abs().amax())))]
    sizes = list(pieces.values())
    rows = zip(pieces, reference.row.split(sizes, -1), other.row.split(sizes, -1), strict=True)
    parts += [(f"gradient of `{name}`", r, a, largest) for name, r, a in rows]
    logged = zip(reference.logged, other.logged, strict=True)
    parts += [(f"logged value `{name}`", r, a, 0.0) for (name, r), (_, a) in logged]
    parts += [(f"tensor `{name}`", r, other.changed[name], 0.0) for name, r in reference.changed.items()]
    for name, r, a, scale in parts:
        if same_bits(r, a):
            continue
        apart = far(r, a)
        if bound is None or not bound.allows(r, a, scale):
            return f"{name} differs by {describe(apart)}"
    return None


def far(reference: Tensor, other: Tensor) -> float:
    """The largest difference of two tensors, relative to their largest entry; inf for other shapes or non-finite."""
    if reference.shape != other.shape:
        return math.inf
    r, a = reference.double(), other.double()
    same = (r == a) | (r.isnan() & a.isnan())
    if bool(same.all()):
        return 0.0
    apart, size = (r - a)[~same].abs().amax(), torch.stack([r.abs().amax(), a.abs().amax()]).amax()
    return float(apart / size) if bool(apart.isfinite()) and bool(size.isfinite()) else math.inf


def describe(apart: float) -> str:
    """A relative difference as text: `3.1e-02 of its largest entry`."""
    if apart == 0.0:
        return "the sign of a zero or the kind of a nan"
    return "its shape or entries that are not finite" if math.isinf(apart) else f"{apart:.1e} of its largest entry"


class Bound(NamedTuple):
    """The bound on differences where equal bits are not promised. eps: of the dtype in which the step computes."""

    eps: float

    @property
    def relative(self) -> float:
        return math.sqrt(self.eps)

    def allows(self, reference: Tensor, other: Tensor, scale: float) -> bool:
        """Whether a difference is within the bound. scale: the largest entry of all gradients, or 0."""
        if reference.shape != other.shape:
            return False
        r, a = reference.double(), other.double()
        both = r.isfinite() & a.isfinite()
        if not bool((both | (r == a) | (r.isnan() & a.isnan())).all()):
            return False
        if not bool(both.any()):
            return True
        r, a = r[both], a[both]
        size = max(float(r.abs().amax()), float(a.abs().amax()))
        return float((r - a).abs().amax()) <= self.relative * size + NOISE * self.eps * scale


def steady(step: Callable[[Tensor], Outcome], x: Tensor, reference: Outcome, other: Outcome, eps: float) -> Outcome:
    """`other` without differences that the reference shows if its own parameters change in their last bits.

    Entries of `other` that are not further from the reference's than `MARGIN` times its own move become equal to them.
    step: the reference step at given parameters [d]. x: the parameters.
    """
    near, generator = [step(x)], torch.Generator().manual_seed(0)
    for _ in range(TRIES):
        signs = torch.randint(-2, 3, x.shape, generator=generator).to(x)
        near.append(step(x * (1 + eps * signs)))

    def settle(r: Tensor, a: Tensor, others: Sequence[Tensor]) -> Tensor:
        if r.shape != a.shape:
            return a
        moved = torch.stack([(n.double() - r.double()).abs() for n in others]).amax(0)
        return torch.where((a.double() - r.double()).abs() <= MARGIN * moved, r, a)

    def logs_of(outcome: Outcome) -> dict[str, Tensor]:
        return dict(outcome.logged)

    values, base = [logs_of(n) for n in near], logs_of(reference)
    return Outcome(
        settle(reference.loss, other.loss, [n.loss for n in near]),
        settle(reference.row, other.row, [n.row for n in near]),
        [
            (
                k,
                settle(base[k], v, [n[k] for n in values]) if all(k in n for n in [base, *values]) else v,
            )
            for k, v in other.logged
        ],
        {k: settle(reference.changed[k], v, [n.changed[k] for n in near]) for k, v in other.changed.items()},
    )


def same_bits(a: Tensor, b: Tensor) -> bool:
    """Whether two tensors have equal shapes, dtypes and bytes; a nan equals a nan with the same bytes."""
    if a.shape != b.shape or a.dtype != b.dtype:
        return False
    # as_strided: a single entry may have any stride
    flat = (t.detach().reshape(-1).contiguous().as_strided((t.numel(),), (1,)) for t in (a, b))
    first, second = (t.view(torch.uint8) for t in flat)
    return torch.equal(first, second)
