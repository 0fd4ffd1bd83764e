"""Every formula has the units of what it bounds: losses times f and parameters times x scale it by powers of both.

A unit is a pair (p, q): the number is multiplied by f^p x^q. A smoothness has (1, -2), a step size (-1, 2).
"""

from __future__ import annotations

import dataclasses
import inspect

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from raylfl.theory import fedacs, fedaware, fedaware_rate, focus, sfl
from raylfl.theory.quadratic import QuadraticProblem
from raylfl.theory.statements import StepBound
from tests.theory.problems import random_problem

NONE, LOSS, LENGTH, SLOPE, CURVATURE, STEP = (0, 0), (1, 0), (0, 1), (1, -1), (1, -2), (-1, 2)
SQUARE_SLOPE, SQUARE_LENGTH = (2, -2), (0, 2)
SLOPES = ("sigma", "sigma_l", "sigma_g", "zeta", "zeta_star", "delta_q", "kappa", "G", "g0", "gradient")
SYMBOLS = {
    **dict.fromkeys(("L", "mu", "prox"), CURVATURE),
    **dict.fromkeys(("eta", "eta_l", "setting"), STEP),
    **dict.fromkeys((*SLOPES, "gradients", "surrogate_gradient"), SLOPE),
    **dict.fromkeys(("gap", "A"), LOSS),
    **dict.fromkeys(("D", "step"), LENGTH),
    **dict.fromkeys(("before", "local"), SQUARE_LENGTH),
    "squares": SQUARE_SLOPE,
    "problem": NONE,  # scaled by itself
}
OTHERS = {  # symbols with another meaning in a module or function
    **{(f, "beta"): CURVATURE for f in (focus.smooth_step, focus.pl_contraction, focus.pl_noise_floor)},
    (fedacs.surrogate_step, "A"): NONE,
    (fedaware_rate.direction_step, "eta"): NONE,  # the server's learning rate, of updates
    (fedaware_rate.direction_bound, "eta"): NONE,
}
RESULTS = {
    **{getattr(focus, name): STEP for name in ("strongly_convex_step", "smooth_step", "fedavg_step")},
    **dict.fromkeys((focus.contraction, focus.pl_contraction), NONE),
    **dict.fromkeys((focus.start_distance, focus.noise_floor, focus.fedavg_limit), SQUARE_LENGTH),
    **dict.fromkeys((focus.consensus_bound, focus.focus_consensus_bound), SQUARE_LENGTH),
    **dict.fromkeys((focus.start_gap, focus.pl_noise_floor), LOSS),
    **dict.fromkeys((focus.nonconvex_bound, focus.nonconvex_noise_floor), SQUARE_SLOPE),
    **dict.fromkeys((sfl.convex_step, sfl.nonconvex_step), STEP),
    **dict.fromkeys((sfl.strongly_convex_bound, sfl.convex_bound, sfl.tuned_rate, sfl.cyclic_rate), LOSS),
    **dict.fromkeys((sfl.tuned_convex_rate,), LOSS),
    **dict.fromkeys((sfl.nonconvex_bound, sfl.tuned_nonconvex_rate), SQUARE_SLOPE),
    **dict.fromkeys((sfl.drift_bound, sfl.nonconvex_drift_bound, sfl.random_reshuffling_rate), SQUARE_LENGTH),
    **dict.fromkeys((sfl.average_weights, sfl.useful_local_steps), NONE),
    **dict.fromkeys((fedacs.gradient_bound, fedacs.surrogate_bound), SQUARE_SLOPE),
    **dict.fromkeys((fedacs.descent_error, fedacs.consistency, fedacs.contraction), NONE),
    fedacs.surrogate_step: STEP,
    fedacs.true_gradient_bound: SLOPE,
    **dict.fromkeys((fedacs.distance_bound, fedacs.limit), LENGTH),
    fedacs.local_map: STEP,
    fedacs.mean_step: (NONE, LENGTH),
    **dict.fromkeys((fedaware.diversity, fedaware.diversity_bound, fedaware.ratio_divergence), NONE),
    **dict.fromkeys((fedaware.global_variance, fedaware.surrogate_gradient_bound), SQUARE_SLOPE),
    **dict.fromkeys((fedaware.drift_bound, fedaware.unbalanced_drift_bound), SQUARE_LENGTH),
    **dict.fromkeys(
        (fedaware_rate.local_error, fedaware_rate.momentum_error, fedaware_rate.direction_bound), SQUARE_LENGTH
    ),
    fedaware_rate.direction_step: STEP,
    fedaware_rate.harmonic: NONE,
}
N = 4


def formulas():
    """The public functions of the modules of theorems."""
    for module in (focus, sfl, fedacs, fedaware, fedaware_rate):
        for name, found in vars(module).items():
            own = inspect.isfunction(found) and found.__module__ == module.__name__
            if own and not name.startswith("_"):
                yield found


def argument(name, draw):
    """A random value of a parameter: tests of units need no admissible ones."""
    if name == "setting":
        return sfl.Setting(bool(draw.integers(2)), 7, int(draw.integers(1, 8)), 3, draw.random() * 0.01)
    if name == "problem":
        return random_problem(int(draw.integers(10**6)), N, 3, 5.0, 1.0, alike=False)
    if name in ("steps", "a_norm"):
        return draw.integers(1, 6, N)
    if name in ("weights", "shares", "surrogate", "q"):
        return draw.dirichlet(np.ones(N)) if name != "q" else draw.random(N)
    if name == "squares":
        return draw.random(N)
    if name == "gradients":
        return draw.standard_normal((N, 3))
    if name in ("N", "M", "S", "K", "R", "T", "tau", "rounds"):
        return {"M": 7, "S": 5}.get(name, int(draw.integers(2, 9)))
    if name in ("case", "theorem", "method"):
        return {"case": "PL", "theorem": "", "method": draw.choice(["sfl", "pfl"])}[name]
    return draw.uniform(0.05, 0.2) if name in ("eta", "u", "prox") else draw.uniform(0.5, 2)


def scaled(value, unit, f, x):
    factor = f ** unit[0] * x ** unit[1]
    if isinstance(value, sfl.Setting):
        return dataclasses.replace(value, eta=value.eta * factor)
    if isinstance(value, QuadraticProblem):
        h, b, c = value.hessians * f / x**2, value.linear * f / x, value.constant * f
        return QuadraticProblem(h, b, c, value.weights)
    return value if unit == NONE else value * factor


def numbers(result):
    """The numbers of a result, one array for each unit."""
    if isinstance(result, StepBound):
        return [np.array([result.largest])]
    if dataclasses.is_dataclass(result):
        return [np.array(list(vars(result).values()))]
    return [np.asarray(part) for part in result] if isinstance(result, tuple) else [np.asarray(result)]


def test_every_formula_has_a_unit():
    assert {f.__qualname__ for f in formulas()} == {f.__qualname__ for f in RESULTS}


@pytest.mark.parametrize("formula", list(formulas()), ids=lambda f: f"{f.__module__.rpartition('.')[2]}.{f.__name__}")
@given(st.integers(0, 10**6), st.floats(-3, 3), st.floats(-3, 3))
def test_a_formula_scales_as_its_unit(formula, seed, f, x):
    draw, f, x = np.random.default_rng(seed), 10.0**f, 10.0**x
    names = inspect.signature(formula).parameters
    values = {name: argument(name, draw) for name in names}
    if formula is sfl.tuned_rate:
        values["method"] = draw.choice(["sfl", "pfl", "minibatch", "karimireddy", "koloskova"])
    if formula is fedacs.surrogate_bound:
        values |= {name: np.tile(values[name], (5, 1)) for name in ("shares", "a_norm")}
    if formula is fedaware.ratio_divergence:
        values["weights"] = draw.dirichlet(np.ones(N))
    units = {
        name: OTHERS.get((formula, name), CURVATURE if name == "prox" else SYMBOLS.get(name, NONE)) for name in names
    }
    before = numbers(formula(**values))
    after = numbers(formula(**{name: scaled(value, units[name], f, x) for name, value in values.items()}))
    unit = RESULTS[formula]
    each = unit if isinstance(unit[0], tuple) else [unit] * len(before)
    for one, other, power in zip(before, after, each, strict=True):
        assert other == pytest.approx(one * f ** power[0] * x ** power[1], rel=1e-6, abs=0)
