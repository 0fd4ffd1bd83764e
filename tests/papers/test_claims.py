"""The papers' claims on problems with known optima, as the full reproductions check them but with fewer rounds."""

from dataclasses import replace
from typing import ClassVar

import numpy as np
import pytest

from papers import audit, fedacs, focus, sfl_quadratics
from papers.grid import Point
from papers.run_cache import RunCache, set_keys
from raylfl.data.synthetic import Quadratics
from raylfl.report.derived import Stat, to_target
from tests.papers.caches import setting, toy
from tests.shares import also


@pytest.fixture(scope="module")
def cache(tmp_path_factory):
    return RunCache(tmp_path_factory.mktemp("cache"), jobs=1)


@pytest.mark.parametrize(("panel", "rounds"), [("full", (105, 160)), also("uniform", (330, 330))])
def test_focus_is_exact_and_linear_where_fedavg_stalls(cache, panel, rounds):
    figure, short = focus.Fig4(), []
    for name, count in zip(("FOCUS", "FedAvg"), rounds, strict=True):
        own = figure.setting(Point(participation=panel, method=name), "smoke")
        short.append(replace(own, config=set_keys(own.config, {"rounds": count})))
    own, other = cache.groups(short)
    distance = own.runs[0].column("global/distance")
    assert to_target(own.runs[0], "global/distance", 1e-12) <= figure.within[panel]
    assert focus.straightness(distance) > 0.98
    assert not focus.is_stalled(distance)
    stuck = other.runs[0].column("global/distance")
    assert focus.is_stalled(stuck)
    assert 1e-5 < focus.level(stuck) < 1e-2  # client drift at eta tau = 1e-3


def test_stalling_is_distinguished_from_converging_and_diverging():
    rounds = np.arange(400.0)
    assert focus.is_stalled(1e-3 + 10.0 ** (-rounds / 20))
    assert not focus.is_stalled(10.0 ** (-rounds / 40))
    assert not focus.is_stalled(10.0 ** np.minimum(rounds, 300))
    assert focus.straightness(10.0 ** (-rounds / 20)) == pytest.approx(1.0)
    assert focus.straightness(1.0 / (1.0 + rounds)) < 0.9  # sublinear


@pytest.mark.parametrize("delta", [0.0, also(1 / 3), 1.0])
def test_pfl_ends_where_the_surrogate_at_a_finite_step_has_its_minimum(cache, delta):
    clients = sfl_quadratics.pairs(delta, 10.0)
    own = toy(f"pfl {delta}", **{"data.init_args.pairs": clients, "local.lr": 0.06, "rounds": 60})
    run = cache.groups([own])[0].runs[0]
    expected = sfl_quadratics.predicted_limit(clients, 0.06)
    assert run.column("global/distance_abs")[-1] == pytest.approx(expected, abs=1e-9)
    assert (expected > 0.5) == (delta > 0)  # with equal Hessians the drifts cancel


def test_sfl_is_faster_than_pfl_and_noisier_where_only_gradients_differ(cache):
    options = {"local.lr": 0.03, "rounds": 25}
    settings = [
        toy(f"{name}, {zeta}", **options, **{"algorithm.name": name, "data.init_args.pairs": pairs})
        for zeta in (0.0, 1.0)
        for pairs in [sfl_quadratics.pairs(0.0, zeta)]
        for name in sfl_quadratics.METHODS.values()
    ]
    pfl, sfl, pfl_apart, sfl_apart = (g.runs[0].column("global/distance_abs") for g in cache.groups(settings))
    np.testing.assert_allclose(sfl[:12], pfl[1:25:2], rtol=1e-9)  # two clients in turn: two rounds in one
    np.testing.assert_allclose(pfl_apart, pfl, atol=1e-12)
    assert sfl_apart[-10:].mean() > 1e-3


@pytest.mark.exhaustive
def test_fedacs_and_fedavg_end_where_eq_39_says(cache):
    bases, options = ["preset/fedacs_fig4_middle"], {"rounds": 120, "local.lr": 0.006}
    groups = cache.groups(
        [
            setting(name, ["reproduce/fedacs_fig4", *bases], options | fedacs.Fig4.axes["method"][name])
            for name in ("FedAvg, SGD", "FedACS")
        ]
    )
    measures = fedacs.limit_measures(90)
    q, steps, eta = np.linspace(0.01, 0.3, 30), np.arange(1, 31), 0.006
    covered = 1 - (1 - eta) ** steps  # of the distance to a client's minimiser: eq. 33 with the Hessian I
    centres = Quadratics(30).centres.numpy()
    biases = []
    for group, coefficients in zip(groups, ((1 - q) * covered, covered / steps), strict=True):
        run = group.runs[0]
        predicted = fedacs.predicted_limit(run.config, 90)
        np.testing.assert_allclose(predicted, coefficients / coefficients.sum() @ centres, rtol=1e-9, atol=1e-12)
        mean = np.array([measures[f"x{j}"](run) for j in range(10)])
        error, bias = np.linalg.norm(mean - predicted), np.linalg.norm(mean - centres.mean(axis=0))
        assert error < 3 * measures["noise"](run)
        biases.append((bias, error))
    assert biases[0][0] > 2 * biases[1][0]
    assert biases[0][1] < 0.5 * biases[0][0]


def test_a_diverged_run_of_an_audit_counts_as_an_accuracy_of_0():
    class Toy(audit.NetworkAudit):
        axes: ClassVar = {}
        gaps: ClassVar = {
            "worse": ("worse", "plain", -1, -0.1),
            "diverged": ("diverged", "plain", -1, -0.1),
            "reversed": ("plain", "diverged", -1, -0.1),
            "missing": ("missing", "plain", -1, -0.1),
        }

    means = {"plain": 0.9, "worse": 0.75, "diverged": np.inf}
    claims = Toy().claims({"": {name: {"accuracy": Stat(mean, 0.0, 1, 1)} for name, mean in means.items()}})
    assert {claim.text: claim.holds for claim in claims} == {"worse": True, "diverged": True, "reversed": False}
    assert claims[1].evidence == "diverged: diverged; plain: 90.0 %"


def test_distances_of_the_scaffold_audit_are_judged_by_that_of_the_initial_model(cache):
    still = {"local.lr": 1e-9, "rounds": 1}
    (group,) = cache.groups([setting("still", ["reproduce/audit_scaffold"], still)])
    start = audit.start_distance(group.runs[0].config)
    assert audit.ScaffoldAudit.measures["distance after 100"](group.runs[0]) == pytest.approx(start, rel=1e-6)
    values = {name: {"early": 0.1, "late": 0.1, "start": start} for name in (*audit.DEPARTURES, audit.LONG)}
    holds = {}
    for end in (0.9 * start, 1.1 * start):
        values[audit.PAIR]["late"] = end
        claims = audit.ScaffoldAudit().claims({"": values})
        holds[end > start] = next(claim.holds for claim in claims if "both variate" in claim.text)
    assert holds == {False: False, True: True}
