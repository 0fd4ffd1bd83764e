"""Theorems' promises beside the curves of a report."""

import numpy as np
import pytest

import raylfl
from raylfl.report.figures import convergence
from raylfl.report.page import content_of
from raylfl.report.promised import promises_of
from raylfl.report.runs import group_runs, read_runs
from raylfl.report.style import LineStyle

SMALL = [
    "num_clients=3",
    "data.init_args={num_clients: 3, rows_per_client: 7, dim: 4, lam: 2.0}",
    "participation={name: full}",
    "eval.every=5",
    "logging.report=false",
]
CASES = {  # long enough for a limit, or short because no line is drawn
    "sfl": ["rounds=75", "algorithm.name=sfl", "local.lr={theory: sfl}", "eval.average=1.0", "eval.every=2"],
    "focus": ["rounds=30", "local.lr={theory: focus}"],
    "fedavg": ["rounds=70", "algorithm.name=fedavg", "local.steps=[1, 4, 9]", "local.lr=0.009"],
    "fedacs": [
        "rounds=130",
        "algorithm.name=fedacs",
        "participation={name: uniform, size: 2}",
        "link={name: bernoulli, q: [0.0, 0.5, 0.2]}",
        "local.steps=[1, 4, 9]",
        "local.lr={theory: fedacs}",
        "eval.every=1",
    ],
    "fedaware": [
        "rounds=30",
        "algorithm={name: fedaware, warmup: all}",
        "participation={name: uniform, size: 2}",
        "local.lr={theory: fedaware}",
        "eval.drift=true",
    ],
    "mifa": ["rounds=1", "algorithm.name=mifa", "local.lr=0.003"],
    "fast": ["rounds=1", "local.lr=0.004"],
    "decay": ["rounds=1", "algorithm.name=sfl", "local.lr=0.0005", "local.weight_decay=1.0", "eval.average=1.0"],
    "heavy": ["rounds=1", "algorithm.name=fedavg", "local.momentum=0.5", "local.lr=0.001"],
}


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    """A run of each case, by name."""
    folder = tmp_path_factory.mktemp("promised")
    place = f"logging.dir={folder}"
    return {
        name: raylfl.run("ridge", [*SMALL, *own, place, f"logging.id={name}"]).run_dir for name, own in CASES.items()
    }


def lines(run, metric):
    """legend -> values of the promises about a metric, and the measured values at the same rounds."""
    groups = group_runs(read_runs([run])[0])
    found = promises_of(groups, list(groups[0].runs[0].metrics))
    drawn = found.drawn(groups[0], metric, LineStyle())
    return {text: curve for text, curve, _ in drawn}, groups[0].runs[0], found.refused


def test_sfl_stays_below_the_drawn_bound(runs):
    drawn, run, _ = lines(runs["sfl"], "average/gap")
    [curve] = [curve for text, curve in drawn.items() if text == "[2] Thm 1: bound"]
    measured, holds = run.column("average/gap"), np.isfinite(curve.mean)  # from round 1/(mu e) on
    at = np.isfinite(measured) & (run.rounds + 1 >= curve.x[holds][0])
    assert 20 < at.sum() < np.isfinite(measured).sum()
    assert (measured[at] <= np.interp(run.rounds[at] + 1, curve.x[holds], curve.mean[holds])).all()
    assert (np.diff(curve.mean[holds]) < 0).all()


def test_focus_falls_at_least_as_fast_as_its_rate(runs):
    drawn, run, _ = lines(runs["focus"], "global/distance")
    bound = np.interp(run.rounds + 1, drawn["[1] Thm 1: bound"].x, drawn["[1] Thm 1: bound"].mean)
    assert (run.column("global/distance") <= bound * (1 + 1e-9)).all()
    assert np.diff(np.log(drawn["[1] Thm 1: bound"].mean)) == pytest.approx(np.log(bound[1] / bound[0]), rel=1e-6)


def test_fedacs_stays_below_the_drawn_bound_on_the_mean(runs):
    drawn, run, _ = lines(runs["fedacs"], "global/grad_norm")
    curve = drawn["[3] Thm 3: bound on the mean"]
    mean = np.sqrt(np.cumsum(np.square(run.column("global/grad_norm"))) / (run.rounds + 1))
    bound = np.interp(run.rounds + 1, curve.x, curve.mean)
    assert (mean <= bound).all()
    assert mean[-1] < mean[0] / 2
    assert list(drawn) == ["[3] Thm 3: bound on the mean"]  # the limit itself is 0, as chi2 is: no line
    assert np.isfinite(bound).all()


def test_the_steps_of_fedaware_stay_below_the_drawn_bound(runs):
    drawn, run, _ = lines(runs["fedaware"], "update/step")
    curve = drawn["[4] Thm 4.1, corrected: bound on the mean"]
    mean = np.sqrt(np.cumsum(np.square(run.column("update/step"))) / (run.rounds + 1))
    assert (mean <= np.interp(run.rounds + 1, curve.x, curve.mean)).all()


def test_fedavg_ends_on_its_limit_at_this_eta(runs):
    drawn, run, _ = lines(runs["fedavg"], "global/distance")
    assert run.column("global/distance")[-1] == pytest.approx(drawn["[3] eq. 39: limit at this eta"].mean[-1], rel=1e-6)
    assert drawn["[3] eq. 4: limit as eta -> 0"].mean[-1] != pytest.approx(run.column("global/distance")[-1], rel=1e-3)
    bound, run, _ = lines(runs["fedavg"], "global/grad_norm")
    measured = run.column("global/grad_norm")
    assert measured[np.isfinite(measured)][-1] <= bound["[3] Thm 2: bound on the limit as eta -> 0"].mean[-1]


@pytest.mark.parametrize(
    ("case", "reason"),
    [
        ("mifa", "no theorem of the four papers is about mifa"),
        ("fast", "local.lr=0.004 is above what [1] Thm 1"),
        ("heavy", "local.momentum: the theorems are about plain SGD"),
        ("decay", "its theorems are about F with the term of local.weight_decay"),
    ],
)
def test_what_has_no_line_is_said(runs, case, reason):
    drawn, _, refused = lines(runs[case], "global/distance")
    assert not drawn
    assert any(reason in line for line in refused), refused


@pytest.mark.parametrize(("steps", "text"), [("{uniform: [1, 30]}", " (seed 0)"), ("[1, 4, 9]", "")])
def test_lines_name_their_seed_if_seeds_have_systems_of_their_own(tmp_path, steps, text):
    own = ["algorithm.name=fedavg", "rounds=1", f"local.steps={steps}", "local.lr=0.0005"]
    for seed in range(2):
        raylfl.run("ridge", [*SMALL, *own, f"logging.dir={tmp_path}", f"seed={seed}"])
    groups = group_runs(read_runs([tmp_path])[0])
    drawn = promises_of(groups, ["global/distance"]).drawn(groups[0], "global/distance", LineStyle())
    assert f"[3] eq. 4{text}: limit as eta -> 0" in [name for name, *_ in drawn]


def test_a_report_shows_the_lines_first_and_says_which_settings_have_none(runs):
    content = content_of([runs["sfl"], runs["fedavg"], runs["fast"]], theory=True)
    legend = [text for part in content.parts for text, _ in convergence(part, content.look).legend]
    for line in ("[2] Thm 1: bound", "[3] eq. 39: limit at this eta"):
        assert any(line in text for text in legend)
    assert any("No theorem's line for" in text for text in content.look.promises.refused)
    assert content_of([runs["sfl"]]).look.promises is None
