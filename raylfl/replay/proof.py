"""Proof by results: the comparison of a step's results with those of the reference step (`core/reference.py`).

A faster form of a step (recorded, vectorised, batch-last layout) is used where its results have been equal to the
reference's. Equal means: equal bits for recorded steps, and for the other forms half of the digits of the dtype,

    |a - r| <= sqrt(eps) max(|a|, |r|) + 64 eps max|all of r|      for the loss and the gradient of each parameter,

where |.| is the largest absolute entry. A difference above this bound counts unless the reference or the form itself
moves by as much when the parameters change by rounding: an entry, as where a ReLU or a maximum is about to
switch, or a whole tensor, as the gradient of a bias before batch normalisation, which is 0 but for rounding errors.
Such a move can be missed: a difference also does not count if it is gone at parameters `NEARBY` eps away. A form that
is wrong is wrong there, too; a switch that lies between the rounding errors of two right forms does not.
"""

from __future__ import annotations

import itertools
import math
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from raylfl.errors import BadConfig

NOISE = 64  # in units of eps times the largest entry of all gradients: smaller gradients are rounding errors
TRIES = 8  # steps at parameters changed in their last bits, which show how far the reference itself moves
MARGIN = 4  # how many of these moves the form may be away from the reference
NEARBY = 16  # in units of eps: the rounding errors of sums of hundreds of terms
INTEGERS = {1: torch.uint8, 2: torch.int16, 4: torch.int32}  # by size in bytes, for comparisons of bits
POINTS = 4  # parameters so far away, at which a form shows that it is right


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


class ProofSchedule:
    """The schedule of comparisons of a form of the step with the reference.

    A step is compared if it is the first of its kind and number, if it is use number 1, 2, 4, ... of its kind, or after
    evaluation number 1, 2, 4, ..., whose user code may change what a step reads. A comparison that an error prevents
    remains due.
    """

    def __init__(self) -> None:
        self.uses, self.evaluations, self.comparisons = Counter[object](), 0, 0
        self._compared: set[tuple[object, int]] = set()
        self._waiting = False  # for a comparison, whatever the step

    def doubt(self) -> None:
        """Called before an evaluation."""
        self.evaluations += 1
        self._waiting |= power_of_two(self.evaluations)

    def due(self, kind: object, t: int) -> bool:
        """Whether this use is to be compared. kind: of the batches; t: the number of the local step."""
        self.uses[kind] += 1
        self._waiting |= (kind, t) not in self._compared or power_of_two(self.uses[kind])
        self.comparisons += self._waiting
        return self._waiting

    def proved(self, kind: object, t: int) -> None:
        """Called after a comparison without a difference; arguments as in `due`."""
        self._compared.add((kind, t))
        self._waiting = False


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


def difference(reference: Outcome, other: Outcome, pieces: Mapping[str, int], eps: float | None = None) -> str | None:
    """What differs between a step and its reference, and by how much, as text; None if nothing differs.

    pieces: the number of entries of each parameter, by name, in the order of `row`. eps: as in `is_within`; None: all
    bits must be equal.
    """
    names = [[name for name, _ in outcome.logged] for outcome in (reference, other)]
    if names[0] != names[1]:
        expected, actual = (", ".join(dict.fromkeys(part)) or "nothing" for part in names)
        return f"logs {actual} instead of {expected}"
    largest = float(reference.row.abs().amax()) if eps is not None and reference.row.numel() else 0.0
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
        if eps is None or not is_within(r, a, eps, scale):
            return f"{name} differs by {describe(far(r, a))}"
    return None


def far(reference: Tensor, other: Tensor) -> float:
    """The largest difference of two tensors, relative to their largest entry; inf for other shapes or non-finite."""
    if reference.shape != other.shape:
        return math.inf
    r, a = _wide(reference), _wide(other)
    same = (r == a) | (r.isnan() & a.isnan())
    if bool(same.all()):
        return 0.0
    apart, size = (r - a)[~same].abs().amax(), torch.stack([r.abs().amax(), a.abs().amax()]).amax()
    return float(apart / size) if bool(apart.isfinite()) and bool(size.isfinite()) else math.inf


def _wide(tensor: Tensor) -> Tensor:
    return tensor.to(torch.complex128 if tensor.is_complex() else torch.float64)


def describe(apart: float) -> str:
    """A relative difference as text: `3.1e-02 of its largest entry`."""
    if apart == 0.0:
        return "the sign of a zero or the kind of a nan"
    return "its shape or entries that are not finite" if math.isinf(apart) else f"{apart:.1e} of its largest entry"


def is_within(reference: Tensor, other: Tensor, eps: float, scale: float) -> bool:
    """Whether a difference is within the bound where equal bits are not promised.

    eps: of the dtype in which the step computes. scale: the largest entry of all gradients, or 0.
    """
    if reference.shape != other.shape:
        return False
    r, a = _wide(reference), _wide(other)
    if r.numel() and not math.isfinite((r - a).abs().amax()):
        both = r.isfinite() & a.isfinite()
        if not bool((both | (r == a) | (r.isnan() & a.isnan())).all()):
            return False
        r, a = r[both], a[both]
    if not r.numel():
        return True
    size = max(float(r.abs().amax()), float(a.abs().amax()))
    return float((r - a).abs().amax()) <= math.sqrt(eps) * size + NOISE * eps * scale


def steady(
    step: Callable[[Tensor], Outcome],
    x: Tensor,
    reference: Outcome,
    other: Outcome,
    pieces: Mapping[str, int],
    eps: float,
    form: Callable[[Tensor], Outcome] | None = None,
) -> Outcome:
    """`other` without differences that are moves of the reference or the form as parameters change by rounding.

    Entries of `other` become equal to the reference's if they are not further from them than `MARGIN` times the move of
    the entry, or of any entry of the same tensor that does not jump, by sqrt(eps) of the largest entry or more. step:
    the reference step at given parameters [d]. x: the parameters. pieces: as in `difference`. form: the other step,
    whose moves count, too.
    """
    changed = _around(x, eps, TRIES)
    moves = [(reference, step(point)) for point in (x, *changed)]
    if form is not None:
        moves += [(other, form(point)) for point in changed]

    def settle(r: Tensor, a: Tensor, pairs: Sequence[tuple[Tensor, Tensor]], scale: float | None = None) -> Tensor:
        if r.shape != a.shape or not r.numel() or any(start.shape != end.shape for start, end in pairs):
            return a
        moved = torch.stack([(_wide(end) - _wide(start)).abs() for start, end in pairs]).amax(0)
        largest = float(_wide(r).abs().amax()) if scale is None else scale
        smooth = torch.where(moved < math.sqrt(eps) * largest, moved, 0.0).amax()
        return torch.where((_wide(a) - _wide(r)).abs() <= MARGIN * torch.maximum(moved, smooth), r, a)

    def of_piece(part: slice) -> Tensor:
        pairs = [(start.row[..., part], end.row[..., part]) for start, end in moves]
        return settle(reference.row[..., part], other.row[..., part], pairs, largest)

    largest = float(reference.row.double().abs().amax())
    ends = list(itertools.accumulate(pieces.values()))
    logs = [(dict(start.logged), dict(end.logged)) for start, end in moves]
    base = dict(reference.logged)
    logged = [
        (name, settle(base[name], value, [(start[name], end[name]) for start, end in logs]))
        if all(name in part for part in (base, *itertools.chain(*logs)))
        else (name, value)
        for name, value in other.logged
    ]
    return Outcome(
        settle(reference.loss, other.loss, [(start.loss, end.loss) for start, end in moves]),
        torch.cat([of_piece(slice(start, end)) for start, end in zip([0, *ends], ends, strict=False)], -1),
        logged,
        {
            name: settle(reference.changed[name], value, [(s.changed[name], e.changed[name]) for s, e in moves])
            for name, value in other.changed.items()
        },
    )


def compare(
    step: Callable[[Tensor], Outcome],
    x: Tensor,
    other: Outcome,
    pieces: Mapping[str, int],
    eps: float,
    form: Callable[[Tensor], Outcome] | None = None,
) -> str | None:
    """What differs by more than the bound between a form's outcome and the reference at x [d], as text; None: nothing.

    other: the form's outcome. The other arguments are those of `steady`; a form that does not give the same bits again
    at x is judged by `other` alone.
    """
    if difference(step(x), other, pieces, eps) is None:
        return None
    repeated = form(x) if form is not None else None
    steady_form = repeated is not None and same_bits(repeated.row, other.row) and same_bits(repeated.loss, other.loss)
    again = form if steady_form else None

    def differs_at(point: Tensor, other: Outcome) -> str | None:
        reference = step(point)
        text = difference(reference, other, pieces, eps)
        return text and difference(reference, steady(step, point, reference, other, pieces, eps, again), pieces, eps)

    text = differs_at(x, other)
    if text and again is not None and any(differs_at(p, again(p)) is None for p in _around(x, NEARBY * eps, POINTS)):
        return None
    return text


def _around(x: Tensor, eps: float, count: int) -> list[Tensor]:
    """Parameters whose entries differ from those of x [d] by up to 2 eps, relatively; the same ones each time."""
    generator = torch.Generator().manual_seed(0)
    return [x * (1 + eps * torch.randint(-2, 3, x.shape, generator=generator).to(x)) for _ in range(count)]


def same_bits(a: Tensor, b: Tensor) -> bool:
    """Whether two tensors have equal shapes, dtypes and bytes; a nan equals a nan with the same bytes."""
    if a.shape != b.shape or a.dtype != b.dtype:
        return False
    # as_strided: a single entry may have any stride
    flat = (t.detach().reshape(-1).contiguous().as_strided((t.numel(),), (1,)) for t in (a, b))
    first, second = (t.view(INTEGERS.get(t.itemsize, torch.int64)) for t in flat)  # faster than bytes
    return torch.equal(first, second)
