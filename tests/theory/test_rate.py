"""`local.lr: {theory: PAPER}`: a run at the largest step size that a theorem admits."""

import numpy as np
import pytest
import yaml

import raylfl
from raylfl.cli import main
from raylfl.config.load import load_config
from raylfl.errors import BadConfig
from raylfl.theory import fedacs
from raylfl.theory.summary import theory_of
from tests.theory.problems import RIDGE, experiment

BY_SFL = "local.lr={theory: sfl}"


def smoothness(experiment) -> float:
    """max_i |2 A_i^T A_i + 2 lam I|, from the data."""
    a, _ = (array.reshape(3, 7, -1) for array in experiment.setup.train.arrays)
    return max(np.linalg.eigvalsh(2 * rows.T @ rows + 0.6 * np.eye(4))[-1] for rows in a)


@pytest.mark.parametrize(
    ("algorithm", "steps", "paper", "share"),
    [
        ("sfl", 4, "sfl", 6 * 2 * 4),  # 1/(6 L S K), S = 2
        ("fedavg", 4, "sfl", 6 * 4),  # 1/(6 L K)
        ("fedavg", 4, "focus", 4 * 3),  # Thm 3: 1/(4 (tau-1) L)
        ("fedavg", 1, "focus", 3),  # 1/(3L)
    ],
)
def test_the_rate_is_the_bound_of_the_paper_about_the_method(algorithm, steps, paper, share):
    overrides = [*RIDGE, f"algorithm.name={algorithm}", f"local.steps={steps}", f"local.lr={{theory: {paper}}}"]
    e = experiment("ridge", *overrides)
    expected = 1 / (share * smoothness(e))
    for lr in (e.rule.lr, e.setup.rule.lr, e.config.local.lr, e.config.resolved["local"]["lr"]):
        assert lr == pytest.approx(expected, rel=1e-9)


@pytest.mark.parametrize(
    ("algorithm", "theorem"),
    [("{name: fedacs}", "[3] Thm 3"), ("{name: fedavg, aggregate: anonymous}", "[3] Thm 1"), ("fedavg", "")],
)
def test_the_rate_of_fedacs_takes_the_clients_own_steps_and_losses(algorithm, theorem):
    """beta^2 c(eta L A) = 1/4 with A = max_i K_i; the mean over the received has no known weights under losses."""
    system = ["local.steps=[1, 4, 9]", "link={name: bernoulli, q: [0.0, 0.5, 0.2]}"]
    overrides = [*RIDGE, *system, f"algorithm={algorithm}", "local.lr={theory: fedacs}"]
    if not theorem:
        with pytest.raises(BadConfig, match="Theorems 1 and 3 need surrogate weights that are known"):
            experiment("ridge", *overrides)
        return
    e = experiment("ridge", *overrides)
    assert e.config.local.lr_from.startswith(f"{theorem}, non-convex")
    beta = theory_of(e).constants.value("beta~")
    assert beta > 1
    assert beta**2 * fedacs.descent_error(e.rule.lr * smoothness(e) * 9) == pytest.approx(0.25)


def test_the_rate_of_fedaware_needs_all_clients_in_round_0():
    """beta/(4 L sqrt(K_h K~)) with beta = 0.5 * 2/3, K_h = 3/(1 + 1/2 + 1/2) and K~ = 5/3."""
    overrides = [*RIDGE, "local.steps=[1, 2, 2]", "algorithm={name: fedaware, warmup: all}"]
    e = experiment("ridge", *overrides, "local.lr={theory: fedaware}")
    assert e.config.local.lr_from.startswith("[4] Thm 4.1, corrected")
    assert e.rule.lr == pytest.approx(1 / 3 / (4 * smoothness(e) * np.sqrt(3 / 2 * 5 / 3)), rel=1e-9)


def test_a_run_saves_the_number_and_its_origin_and_is_that_of_the_number(tmp_path):
    overrides = [*RIDGE, "algorithm.name=sfl", f"logging.dir={tmp_path}", "logging.report=false", "rounds=4"]
    run = raylfl.run("ridge", [*overrides, BY_SFL])
    saved = yaml.safe_load((run.run_dir / "config.yaml").read_text())["local"]
    assert saved["lr_from"] == f"[2] Thm 1, strongly convex: {saved['lr']!r}"
    again = raylfl.run("ridge", [*overrides, f"local.lr={saved['lr']!r}"])
    assert (again.params == run.params).all()
    longer = raylfl.resume(run.run_dir, ["rounds=6"])
    assert len(longer.metrics) == 6
    assert longer.config.resolved["local"]["lr_from"] == saved["lr_from"]
    other = load_config(run.run_dir / "config.yaml", ["local.lr=0.5"])
    assert other.resolved["local"]["lr_from"] is None


def test_print_config_shows_the_number(capsys):
    assert main(["run", "ridge", *RIDGE, "algorithm.name=sfl", BY_SFL, "--print-config"]) == 0
    local = yaml.safe_load(capsys.readouterr().out)["local"]
    assert 0 < local["lr"] < 1
    assert local["lr_from"].startswith("[2] Thm 1")


@pytest.mark.parametrize(
    ("overrides", "reason"),
    [
        (["algorithm.name=mifa", BY_SFL], "no theorem of that paper has a step size for algorithm.name=mifa"),
        (["algorithm.name=sfl", "local.lr={theory: focus}"], "no theorem of that paper"),
        (["algorithm.name=sfl", "local.momentum=0.5", BY_SFL], "local.momentum: the theorems are about plain SGD"),
        (["local.lr={theory: scaffold}"], "PAPER being one of focus, sfl, fedacs, fedaware"),
        (["algorithm.name=fedaware", "local.lr={theory: fedaware}"], "[4] Theorem 4.1 needs normalize = false"),
        (["algorithm=focus", "local.lr={theory: fedacs}"], "no theorem of that paper"),
        (["algorithm.name=fedavg", "local.batch_size=2", "local.lr={theory: focus}"], "no theorem of that paper"),
        (["algorithm.name=focus", "algorithm.gamma=0.1", "local.lr={theory: focus}"], "the server's step size equal"),
        (["algorithm.name=fedacs", "algorithm.gamma=2.0", "local.lr={theory: fedacs}"], "[3] Theorems 1 and 3 need"),
        (["local.lr={theory: sfl, times: 2}"], "but must be a number, or"),
        (["local.lr={theory:sfl}"], "local.lr={theory:sfl}, but a blank is missing after the colon: {theory: sfl}"),
    ],
)
def test_a_rate_without_a_theorem_is_refused(overrides, reason):
    with pytest.raises(BadConfig, match="local") as caught:
        experiment("ridge", *RIDGE, *overrides)
    assert reason in str(caught.value)
    assert len(str(caught.value).splitlines()) == 1


def test_a_rate_of_estimates_is_refused():
    small = ["num_clients=4", "model.init_args={hidden: [4]}", "runtime.backend=local", "algorithm.name=sfl"]
    with pytest.raises(BadConfig, match="L is only an estimate"):
        experiment("digits", *small, BY_SFL)


def test_assumptions_that_do_not_hold_are_warnings():
    e = experiment("ridge", *RIDGE, "algorithm.name=sfl", "local.steps=[1, 2, 3]", BY_SFL)
    assert any("local steps differ" in line for line in e.warnings)
    assert e.rule.lr == pytest.approx(1 / (6 * 2 * 3 * smoothness(e)), rel=1e-9)
