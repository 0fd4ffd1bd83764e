"""Classes for the statements of theorems about a run: step sizes, numbers, and curves over rounds for reports."""

from collections.abc import Callable
from dataclasses import dataclass

from raylfl.core.arrays import Floats


@dataclass(frozen=True)
class StepBound:
    """A theorem's upper bound on the local step size eta.

    theorem: paper and number. case: the assumption on F, such as `strongly convex`. largest: the bound. formula: the
    bound as text.
    """

    theorem: str
    case: str
    largest: float
    formula: str

    def admits(self, eta: float) -> bool:
        """Whether the local step size eta satisfies the bound."""
        return eta <= self.largest


def over(numerator: float, denominator: float) -> float:
    """The quotient, or inf if the denominator is 0, for bounds such as 1/(3L(tau-1)) with tau = 1."""
    return numerator / denominator if denominator else float("inf")


class Terms(dict[str, float]):
    """A bound as a sum: name of a term -> its value."""

    @property
    def total(self) -> float:
        """The sum of all terms."""
        return sum(self.values())


@dataclass(frozen=True)
class Line:
    """A theorem's bound or limit as a curve over rounds, which a report draws beside the curve of a metric.

    metric: the metric's name in metrics.jsonl. what: the label of the curve. of: the function of the curve; it
    maps P numbers of finished rounds [P] to values [P], or to one value for all rounds.
    """

    metric: str
    what: str
    of: Callable[[Floats], Floats | float]


@dataclass(frozen=True)
class Promise:
    """A number that a theorem gives for a run, such as a rate, a bound or a limit.

    theorem: paper and number. what: the meaning of `value`; a bound that is proved for the run has "at most" or "at
    least" in it (`bound`). lines: the same statement as curves over rounds, if it is about a metric.
    """

    theorem: str
    what: str
    value: float
    lines: tuple[Line, ...] = ()


def bound(
    theorem: str, what: str, value: float, lines: tuple[Line, ...] = (), *, proved: bool, sense: str = "at most"
) -> Promise:
    """A bound as a promise; without the words "at most" and without lines if it is not proved for the run.

    sense: the words that make a bound of it. The other arguments are as in `Promise`.
    """
    return Promise(theorem, f"{what}, {sense}", value, lines) if proved else Promise(theorem, what, value)


def distances(what: str, scale: float, of: Callable[[Floats], Floats | float]) -> tuple[Line, ...]:
    """A bound or limit of the distance |x - x*| from the minimiser, as curves of the relative and absolute distance.

    what: the label. scale: |x*|, the unit of the relative distance. of: the bound or limit of |x - x*|, as in `Line`.
    """
    return (Line("global/distance", what, lambda r: of(r) / scale), Line("global/distance_abs", what, of))
