"""Constants measured through a user's module, and `raylfl theory`."""

import json
from functools import cache
from itertools import islice

import numpy as np
import pytest

from raylfl.cli import main
from raylfl.config.load import load_config
from raylfl.errors import BadConfig
from raylfl.experiment.assemble import assemble
from raylfl.theory.objectives import Objectives
from raylfl.theory.summary import theory_of
from tests.oracles.focus_moments import focus_moments
from tests.theory.problems import RIDGE, experiment


@cache
def plain_theory(*overrides):
    """The theory of ridge regression, computed once for all tests that compare with it."""
    return theory_of(experiment("ridge", *RIDGE, *overrides))


def test_a_single_client_that_owns_all_data_has_no_theory():
    with pytest.raises(BadConfig, match=r"algorithm\.name=centralized, but must be a method of several clients"):
        theory_of(experiment("ridge", *RIDGE, "algorithm.name=centralized"))


def test_a_quadratic_problem_is_found_through_its_training_step():
    """Ridge regression: H_i = 2 A_i^T A_i + 2 lam I, b_i = 2 A_i^T y_i, from the data themselves."""
    e = experiment("ridge", *RIDGE, "local.weight_decay=0.1")
    problem = Objectives(e).quadratic()
    a, y = (array.reshape(3, 7, -1) for array in e.setup.train.arrays)
    assert problem.hessians == pytest.approx(2 * a.transpose(0, 2, 1) @ a + 0.7 * np.eye(4), rel=1e-9, abs=1e-9)
    assert problem.linear == pytest.approx(2 * (a.transpose(0, 2, 1) @ y)[..., 0], rel=1e-9, abs=1e-9)
    assert problem.constant == pytest.approx(np.square(y).sum(axis=(1, 2)))


@pytest.mark.parametrize("dim", [1, 4])
def test_the_smoothness_of_a_concave_function_is_positive(dim):
    pairs = {"name": "coefficients", "init_args": {"pairs": [[2.0, 1.0], [-3.0, -1.0], [2.0, 0.5]], "dim": dim}}
    config = {"data": pairs, "model": {"name": "quadratic"}, "partition": {"name": "natural"}, "num_clients": 3}
    objectives = Objectives(assemble(load_config({"name": "concave", "dtype": "float64", **config})))
    assert [objectives.smoothness(i, np.ones(dim)) for i in range(3)] == pytest.approx([4, 6, 4], rel=1e-2)


def test_the_optimum_is_that_of_the_data_and_curvature_agrees_with_lanczos():
    e = experiment("ridge", *RIDGE)
    objectives = Objectives(e)
    problem = objectives.quadratic()
    assert problem.optimum == pytest.approx(e.optimum.x, rel=1e-8)
    for i in range(3):
        assert objectives.smoothness(i, objectives.start) == pytest.approx(problem.smoothness[i], rel=0.02)


def test_variance_of_a_mini_batch_is_that_of_its_samples():
    e = experiment("ridge", *RIDGE, "local.batch_size=2", "local.sampling=with_replacement")
    x = e.optimum.x
    a, y = (array.reshape(3, 7, -1) for array in e.setup.train.arrays)
    rows = 7 * 2 * a * (a @ x - y[..., 0])[..., None]  # gradient of each sample
    variances = np.square(rows - rows.mean(axis=1, keepdims=True)).sum(axis=2).mean(axis=1)
    assert theory_of(e).constants.value("sigma") == pytest.approx(np.sqrt(variances.max() / 2), rel=1e-9)


@pytest.mark.parametrize(("clients", "how"), [(32, "at x*"), (33, "at x*, 32 clients")])
def test_sigma_is_labelled_with_the_clients_on_which_it_was_measured(clients, how):
    data = f"data.init_args={{num_clients: {clients}, rows_per_client: 5, dim: 3, lam: 0.3}}"
    e = experiment("ridge", f"num_clients={clients}", data, "participation.size=2", "local.batch_size=2")
    found = {c["symbol"]: c["how"] for c in theory_of(e).as_dict()["constants"]}
    assert found["sigma"] == how
    assert found["L"] == "exact"


def test_focus_on_its_own_figure_runs_outside_its_theorem():
    """The paper's fig. 4 has eta = 2e-4; 3 mu/(27 N L^2) is 4.8e-10."""
    theory = theory_of(experiment("ridge"))
    assert theory.constants.value("L") == pytest.approx(535.5, abs=0.1)
    assert {s.theorem for s in theory.steps} == {"[1] Thm 1"}
    assert not any(s.admits(theory.eta) for s in theory.steps)
    assert not theory.promises


@pytest.mark.parametrize(
    ("algorithm", "theorems"),
    [
        ("focus", {"[1] Thm 1"}),
        ("fedavg", {"[1] Thm 3", "[2] Thm 2", "[3] Thm 1", "[3] Thm 2", "[3] eq. 39"}),
        ("sfl", {"[2] Thm 1"}),
        ("fedacs", {"[3] Thm 3", "[3] Thm 2", "[3] eq. 39"}),
    ],
)
def test_each_method_meets_its_theorems(algorithm, theorems):
    e = experiment("ridge", *RIDGE, f"algorithm.name={algorithm}", "local.lr=1e-8")
    theory = theory_of(e)
    assert theorems <= {p.theorem for p in theory.promises} | {s.theorem for s in theory.steps}
    assert all(s.admits(theory.eta) for s in theory.steps)
    assert all(np.isfinite(p.value) for p in theory.promises)


@pytest.mark.parametrize("uneven", ["local.steps=[1, 2, 3]", "link={name: bernoulli, q: 0.3}"])
def test_bounds_of_sfl_are_left_out_where_clients_differ(uneven):
    """Such runs end at a biased point, above the bounds of [2] on F(xbar) - F*."""
    overrides = ["algorithm={name: fedavg, aggregate: anonymous}", "local.lr=1e-8"]
    assert any(p.theorem == "[2] Thm 2" for p in plain_theory(*overrides).promises)
    theory = plain_theory(*overrides, uneven)
    assert not any(p.theorem == "[2] Thm 2" for p in theory.promises)
    assert any(note.startswith("the bounds of [2] need gamma = 1, equal weights") for note in theory.notes)


def promised(theory, theorem):
    """Words and values of the promises of a theorem, "at most" included."""
    return {p.what: p.value for p in theory.promises if p.theorem == theorem}


@pytest.mark.parametrize("x0", [0.0, 1.0])
@pytest.mark.parametrize("q", [0.2, 1.0])
def test_the_promises_of_focus_count_the_start_from_stored_gradients_of_zero(x0, q):
    """At x0 = x* = 0 FOCUS leaves the minimiser, until all clients have taken part; printed bounds are 0 there."""
    a, b, steps, R = np.array([1.0, 2.0, 1.5]), np.array([3.0, -2.0, -1.0]), 3, 40
    overrides = [
        *["model.name=quadratic", "partition.name=natural", "dtype=float64", f"model.init_args.x0={x0}"],
        *["algorithm.name=focus", "local.batch_size=full", f"local.steps={steps}", "local.epochs=null"],
        f"data.init_args.pairs={[[h / 2, -g] for h, g in zip(a.tolist(), b.tolist(), strict=True)]}",
        f"participation={{name: bernoulli, p: {q}}}",
        f"rounds={R}",
        "local.lr={theory: focus}",
    ]
    theory = theory_of(experiment("data/coefficients", *overrides))
    assert theory.eta == pytest.approx(q * min(1 / (16 * 3 * 4), 1 / (8 * 2 * 2)))
    moments = np.array(list(islice(focus_moments(a, b, np.full(3, q), steps, theory.eta, 0.0, x0), R + 1)))
    squares, mean = moments[:, 1], a.mean()
    found = promised(theory, "[1] Thm 1")
    assert 0 < squares[-1] <= found[f"|x - x*|^2 after {R} rounds, at most"]
    assert mean / 2 * squares[-1] <= found[f"F(x) - F* after {R} rounds (PL), at most"]
    most = promised(theory, "[1] Thm 1, eq. 25")[f"mean of |grad F|^2 over {R} rounds, at most"]
    assert mean**2 * squares[:R].mean() <= most
    line = next(line for p in theory.promises for line in p.lines if line.metric == "global/distance_abs")
    assert (np.sqrt(squares) <= line.of(np.arange(R + 1.0)) * (1 + 1e-9) + 1e-15).all()


@pytest.mark.parametrize(
    ("algorithm", "overrides", "word"),
    [
        *((name, ["local.batch_size=2"], "local.sampling") for name in ("focus", "fedavg", "sfl")),  # reshuffled
        *((name, ["local.momentum=0.5"], "local.momentum") for name in ("fedavg", "sfl")),
        ("focus", ["local.steps={uniform: [1, 4]}", "local.dynamic=true"], "the system changes"),
        ("sfl", ["local.batch_size=2", "local.sampling=with_replacement"], ""),  # sigma is measured at x*
    ],
)
def test_a_number_is_no_bound_if_an_assumption_of_its_proof_is_violated(algorithm, overrides, word):
    e = experiment("ridge", *RIDGE, f"algorithm.name={algorithm}", "local.lr=1e-9", "local.epochs=null", *overrides)
    theory = theory_of(e)
    assert theory.promises
    assert not any("at most" in p.what for p in theory.promises)
    assert any(note.startswith(word) for note in theory.notes) or not word
    assert any("at most" in p.what for p in plain_theory(f"algorithm.name={algorithm}", "local.lr=1e-9").promises)


@pytest.mark.parametrize(
    ("algorithm", "theorems"),
    [
        ("{name: fedavg, gamma: 0.5}", ("[2]", "[1]")),  # the server moves half way
        ("{name: sfl, gamma: 0.5}", ("[2]",)),
        ("{name: fedavg, aggregate: full}", ("[2]", "[1]")),  # weights of a cohort sum to S/N
        ("{name: focus, gamma: 0.1}", ("[1]",)),
    ],
)
def test_a_server_step_other_than_the_theorems_has_no_theorem(algorithm, theorems):
    theory = theory_of(experiment("ridge", *RIDGE, f"algorithm={algorithm}", "local.lr=1e-9"))
    assert not any(p.theorem.startswith(theorems) for p in [*theory.promises, *theory.steps])
    assert theory.notes


def test_stochastic_gradients_have_no_theorem_3():
    """[1] Theorem 3 is about full gradients; the limit as eta -> 0 has the noise of [3] eq. 12."""
    noisy = ["local.batch_size=2", "local.sampling=with_replacement", "local.lr=1e-9", "algorithm.name=fedavg"]
    theory = theory_of(experiment("ridge", *RIDGE, *noisy, "local.steps=3", "local.epochs=null"))
    assert not promised(theory, "[1] Thm 3")
    sigma, kappa = (theory.constants.value(name) for name in ("sigma", "kappa"))
    found = promised(theory, "[3] Thm 2")
    bound = found["chi2(w || Omega)"] * kappa**2 + sigma**2
    assert found["limit of |grad F|^2 as eta -> 0"] == pytest.approx(bound)


def test_constants_at_the_start_and_of_the_hessians_are_printed():
    e = experiment("ridge", *RIDGE)
    problem, found = Objectives(e).quadratic(), theory_of(e).constants
    gradients = problem.hessians @ found.start - problem.linear
    mean = gradients.mean(axis=0)
    assert found.value("g0") ** 2 == pytest.approx(np.square(gradients).sum(axis=1).mean())
    assert found.value("sigma_g") ** 2 == pytest.approx(np.square(gradients - mean).sum(axis=1).mean())
    assert found.value("D(x)") == pytest.approx(found.value("g0") / np.linalg.norm(mean))
    apart = [np.abs(np.linalg.eigvalsh(h)).max() for h in problem.hessians - problem.hessians.mean(axis=0)]
    assert found.value("delta") == pytest.approx(max(apart))


def test_corollary_2_2_is_about_regular_participation_and_fedacs_prefers_few_local_steps():
    """p_i ~ 1/((1 - q_i) K_i) for uniform w: no regular participation, and 9 times the chance with 1 step as with 9."""
    system = [*RIDGE, "local.steps=[1, 4, 9]", "local.lr=1e-8"]
    fedavg = theory_of(experiment("ridge", *system, "algorithm={name: fedavg, aggregate: anonymous}"))
    work = np.array([1, 4, 9])
    deviation = promised(fedavg, "[3] Cor. 2.2")["deviation from the consistency condition"]
    assert deviation == pytest.approx(abs(work / work.mean() - 1).max())
    unequal = "participation={name: weighted, size: 2, replace: true, weights: [1, 2, 3]}"
    assert not promised(theory_of(experiment("ridge", *system, "algorithm.name=fedavg", unequal)), "[3] Cor. 2.2")
    fedacs = theory_of(experiment("ridge", *system, "algorithm.name=fedacs"))
    assert not promised(fedacs, "[3] Cor. 2.2")
    chances = promised(fedacs, "[3] sec. 6")
    assert chances["chance to be sampled, fewest over most local steps"] == pytest.approx(9)


def test_surrogate_weights_that_change_have_no_theorem_of_fedacs():
    """FedAvg's surrogate changes with the local steps, that of FedACS stays F."""
    changing = [*RIDGE, "local.steps={uniform: [1, 9]}", "local.dynamic=true", "local.lr=1e-8"]
    found = {
        name: {s.theorem for s in theory_of(experiment("ridge", *changing, f"algorithm.name={name}")).steps}
        for name in ("fedavg", "fedacs")
    }
    assert found == {"fedavg": {"[2] Thm 2", "[1] Thm 3"}, "fedacs": {"[3] Thm 3"}}


def test_the_strongly_convex_bound_of_sfl_is_used_only_where_its_theorem_holds():
    """Below 1/(mu R) the effective step is too small for it: its value would be mu D^2 9/2, far below F(x0) - F*."""
    tiny, large = (
        theory_of(experiment("ridge", *RIDGE, "algorithm.name=sfl", f"local.lr={lr}", f"rounds={rounds}"))
        for lr, rounds in (("1e-9", 20), ("{theory: sfl}", 4000))
    )
    bounds = [next(p for p in theory.promises if p.what.startswith("F(xbar)")) for theory in (tiny, large)]
    assert "(convex)" in bounds[0].what
    assert bounds[0].value > tiny.constants.value("A")
    assert "(strongly convex)" in bounds[1].what
    line = bounds[1].lines[0].of(np.array([1.0, 4000.0]))
    assert np.isnan(line[0])
    assert line[1] == pytest.approx(bounds[1].value)


@pytest.mark.parametrize(
    "option", ["local.clip_norm=0.05", "local.lr_schedule={name: step_exponential, decay: 0.5}", "local.momentum=0.5"]
)
def test_no_limit_is_predicted_for_local_steps_other_than_those_of_sgd(option):
    config = ["algorithm.name=fedavg", "local.lr=0.01"]
    assert promised(plain_theory(*config), "[3] eq. 39")
    assert not promised(plain_theory(*config, option), "[3] eq. 39")


@pytest.mark.parametrize(
    ("option", "drawn"),
    [
        ("participation={name: bernoulli, p: 0.5}", True),
        ("participation={name: markov, p_on: 0.1, p_off: 0.1}", False),
        ("local.batch_size=2", False),  # reshuffled: the steps of an epoch depend on each other
        ("local={batch_size: 2, sampling: with_replacement}", True),
    ],
)
def test_the_limit_at_finite_steps_is_a_line_if_cohorts_and_batches_are_independent(option, drawn):
    theory = theory_of(experiment("ridge", *RIDGE[:2], "algorithm.name=fedavg", "participation={name: full}", option))
    [limit] = [p for p in theory.promises if p.theorem == "[3] eq. 39"]
    assert bool(limit.lines) == drawn


def test_the_predicted_limit_of_a_calibrated_method_is_that_of_its_own_step_size():
    """c-a-FedAvg: eta sum w (1-q) K / sum w K (FedACS, eq. 113); the fixed point of the mean step in one dimension."""
    a, b, q, steps = (np.array(v) for v in ([0.05, 0.2, 0.4], [-0.1, 0.1, 0.7], [0.1, 0.3, 0.5], [2, 5, 3]))
    pairs = f"data.init_args={{pairs: {np.column_stack([a, b]).tolist()}}}"
    problem = ["num_clients=3", pairs, "model.name=quadratic", "partition.name=natural", "dtype=float64"]
    system = [f"link={{name: bernoulli, q: {q.tolist()}}}", f"local.steps={steps.tolist()}", "local.batch_size=full"]
    method = ["algorithm={name: cafedavg, calibrate: true}", "local.lr=0.2"]
    [found] = promised(theory_of(experiment("data/coefficients", *problem, *system, *method)), "[3] eq. 39").values()
    eta = 0.2 * ((1 - q) @ steps) / steps.sum()
    moved = 1 - (1 - 2 * eta * a) ** steps  # towards -b/(2a)
    optimum = -b.sum() / (2 * a.sum())
    assert found == pytest.approx(abs(moved @ (-b / (2 * a)) / moved.sum() - optimum) / abs(optimum), rel=1e-9)


def test_networks_get_estimates():
    small = ["num_clients=4", "model.init_args={hidden: [4]}", "runtime.backend=local", "algorithm.name=sfl"]
    theory = theory_of(experiment("digits", *small))
    assert {c.symbol for c in theory.constants} >= {"L", "L_i min", "zeta", "D_m", "G", "D(x)", "sigma"}
    assert not theory.promises
    assert all("estimate" in c.how for c in theory.constants)
    assert theory.constants.value("D(x)") >= 1


def test_command(capsys):
    assert main(["theory", "ridge", *RIDGE]) == 0
    out = capsys.readouterr().out
    assert "Constants" in out
    assert "OUTSIDE" in out
    assert main(["theory", "ridge", *RIDGE, "--json"]) == 0
    printed = json.loads(capsys.readouterr().out)
    assert printed["eta"] == 2e-4
    assert printed["steps"][0]["inside"] is False
    of_clients = printed["clients"]["L_i"]
    assert len(of_clients) == 3
    assert {c["symbol"]: c["value"] for c in printed["constants"]}["L"] == pytest.approx(max(of_clients))


def test_infinite_constants_are_null_in_json(capsys):
    """The gradient diversity at x0 = x* is infinite."""
    problem = ["num_clients=2", "data.init_args={pairs: [[0.5, 1], [0.5, -1]]}", "model.name=quadratic"]
    rest = ["partition.name=natural", "dtype=float64", "algorithm.name=fedavg", "local.batch_size=full"]
    assert main(["theory", "data/coefficients", *problem, *rest, "--json"]) == 0
    printed = json.loads(capsys.readouterr().out, parse_constant=pytest.fail)
    assert {c["symbol"]: c["value"] for c in printed["constants"]}["D(x)"] is None
