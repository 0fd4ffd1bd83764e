"""The quantities of a run that theorems take are those of the cohorts that the run draws."""

import numpy as np
import pytest

from raylfl.config.load import load_config
from raylfl.experiment.assemble import assemble
from raylfl.python.api import checked
from raylfl.runtime.round.plan import Planner
from raylfl.theory.facts import facts_of
from raylfl.theory.promises import left_out
from raylfl.theory.summary import resolve_rate, theory_of
from tests.shares import also

N, ROUNDS = 6, 1200
RIDGE = [
    f"num_clients={N}",
    f"data.init_args={{num_clients: {N}, rows_per_client: 7, dim: 4, lam: 0.3}}",
    f"rounds={ROUNDS}",
    *("runtime.backend=local", "runtime.step=autograd", "runtime.vectorize=never"),
]
UNIFORM = f"participation={{name: uniform, size: {N}, replace: true}}"
LOSSY = "link={name: bernoulli, q: [0.0, 0.5, 0.2, 0.0, 0.9, 0.4]}"
ONCE_OR_MORE = 1 - (1 - 1 / N) ** N  # a client is in the cohort of N uniform draws with replacement


def experiment(*overrides):
    return checked(load_config("ridge", [*RIDGE, *overrides]))


@pytest.mark.parametrize(
    "overrides",
    [
        ["algorithm.name=focus", UNIFORM],
        also(["algorithm.name=focus", UNIFORM, LOSSY]),
        also(["algorithm.name=focus", "participation={name: uniform, size: 2}", LOSSY]),
        ["algorithm.name=focus", "participation={name: bernoulli, p: {linspace: [0.2, 1]}, on_empty: resample}", LOSSY],
        [
            "algorithm.name=fedaware",
            "participation={name: weighted, size: 9, replace: true, weights: [1, 2, 3, 4, 8, 0]}",
        ],
        ["algorithm.name=fedacs", "participation={name: uniform, size: 12, replace: true}", LOSSY],
    ],
)
def test_a_client_takes_part_as_often_as_its_probability_says(overrides):
    """Frequencies of received uploads over all rounds; five standard errors, or one upload for frequencies 0 and 1."""
    e = experiment(*overrides)
    planner, server, received = Planner(e), {}, np.zeros(N)
    for r in range(ROUNDS):
        planned = planner.plan(r, server)
        received[planned.cohort[planned.received]] += 1
    p = facts_of(e).takes_part
    assert (abs(received / ROUNDS - p) <= 5 * np.sqrt(p * (1 - p) / ROUNDS) + 1e-9).all()


def test_focus_takes_the_probability_of_draws_with_replacement_as_q_min():
    """[1], Assumption 1, Case 3; with many local steps the bound of Theorem 1 is q/(8 L (tau - 1))."""
    config = load_config(
        "ridge", [*RIDGE, "algorithm.name=focus", UNIFORM, "local.steps=3000", "local.lr={theory: focus}"]
    )
    resolve_rate(config)
    e = assemble(config)
    L = theory_of(e).constants.value("L")
    assert e.rule.lr == pytest.approx(ONCE_OR_MORE / (8 * L * 2999), rel=1e-9)


def test_draws_with_replacement_do_not_reach_all_clients_in_round_0():
    """FedAWARE's Theorem 4.1 needs them; N draws of N clients are not full participation."""
    fedaware = [UNIFORM, "algorithm={name: fedaware, normalize: false}"]
    e = experiment(*fedaware)
    assert any("all clients in round 0" in line for line in left_out(e, facts_of(e)))
    e = experiment(*fedaware, "algorithm.warmup=all")
    assert not any("all clients in round 0" in line for line in left_out(e, facts_of(e)))


@pytest.mark.parametrize(
    "varying",
    [
        "local.steps={phases: [{until: 0.5, value: 2}, {value: 4}]}",
        "local.batch_size={phases: [{until: 0.5, value: 2}, {value: 4}]}",
        "link={name: bernoulli, q: {phases: [{until: 0.5, value: 0.1}, {value: 0.6}]}}",
    ],
)
def test_a_system_that_changes_over_phases_is_reported(varying):
    note = "the system changes over the rounds: round 0 is used"
    assert note in theory_of(experiment("algorithm.name=focus", varying)).notes
    assert note not in theory_of(experiment("algorithm.name=focus")).notes


@pytest.mark.parametrize(
    ("participation", "bounds"),
    [
        ("{name: bernoulli, p: 0.5}", True),
        ("{name: uniform, size: 2}", True),
        ("{name: sinusoid, p: 0.5}", False),  # the chances change
        ("{name: bernoulli, p: {phases: [{until: 0.5, value: 0.9}, {value: 0.1}]}}", False),
        ("{name: markov, p_on: 0.2, p_off: 0.3}", False),  # a cohort depends on the previous one
    ],
)
def test_a_bound_is_promised_only_if_cohorts_are_independent_and_alike(participation, bounds):
    e = experiment("algorithm.name=focus", "local.lr=1e-9", f"participation={participation}", "rounds=50")
    theory = theory_of(e)
    assert any("at most" in p.what for p in theory.promises) == bounds
    assert any(p.lines for p in theory.promises) == bounds
    assert bool(theory.notes) != bounds


def test_fedaware_has_no_theorem_for_local_steps_that_change_over_phases():
    method = ["participation=full", "algorithm={name: fedaware, warmup: all}"]
    assert theory_of(experiment(*method)).steps
    assert not theory_of(experiment(*method, "local.steps={phases: [{until: 0.5, value: 2}, {value: 4}]}")).steps


@pytest.mark.parametrize(
    ("participation", "promised"),
    [
        (UNIFORM, False),
        ("participation={name: bernoulli, p: 0.5}", False),
        ("participation=full", True),
        (f"participation={{name: uniform, size: {N // 2}}}", True),
    ],
)
@pytest.mark.parametrize("algorithm", ["fedavg", "sfl"])
def test_the_bounds_of_sfl_are_about_fixed_numbers_of_clients_without_repeats(algorithm, participation, promised):
    """[2], sec. 3.3: other cohorts have a larger variance, and it is not 0 for S = M."""
    e = experiment(f"algorithm.name={algorithm}", participation, "local.lr=1e-8")
    assert any(p.theorem.startswith("[2]") for p in theory_of(e).promises) == promised


@pytest.mark.parametrize(
    ("local", "noisy"),
    [
        ("batch_size: full", False),
        ("batch_size: full, sampling: with_replacement", True),  # seven draws from seven samples
        ("batch_size: 2, accumulate: 4", False),
        ("batch_size: 2, accumulate: 3", True),
    ],
)
def test_steps_are_without_noise_if_they_have_every_sample_once(local, noisy):
    e = experiment(f"local={{steps: 1, {local}}}")
    sigma = next(c.value for c in theory_of(e).constants if c.symbol == "sigma")
    assert (sigma > 0) == noisy


def test_fedsgd_takes_one_step_whatever_the_config_says():
    """With f_i of unequal curvature, five steps would end elsewhere (eq. 39); one step of all clients ends at x*."""
    pairs = "data.init_args={pairs: [[0.05, -0.1], [0.2, 0.1]]}"
    problem = ["num_clients=2", pairs, "model.name=quadratic", "partition.name=natural", "dtype=float64"]
    method = ["algorithm.name=fedsgd", "local.batch_size=full", "local.steps=[5, 3]", "local.lr=0.5"]
    e = checked(load_config("data/coefficients", [*problem, *method]))
    assert facts_of(e).steps.tolist() == [1, 1]
    [limit] = [p.value for p in theory_of(e).promises if p.theorem == "[3] eq. 39"]
    assert limit == pytest.approx(0, abs=1e-12)
