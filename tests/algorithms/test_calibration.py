"""Calibrated step lengths: the published formulas, with which all methods move equally far."""

from __future__ import annotations

import numpy as np
import pytest

from raylfl.algorithms.cafedavg import CAFedAvg
from raylfl.algorithms.fedacs import FedACS
from raylfl.algorithms.fedavg import FedAvg
from raylfl.algorithms.fednova import FedNova
from raylfl.algorithms.mifa import FedVARP
from raylfl.algorithms.optimal_sampling import OptimalSampling
from raylfl.core.algorithm import Algorithm
from raylfl.errors import BadValue
from tests import oracles
from tests.algorithms.replay import beforehand

RULE = "anonymous"
CALIBRATED: dict[str, Algorithm] = {
    "fedavg": FedAvg(aggregate=RULE, calibrate=True),
    "fedacs": FedACS(calibrate=True),
    "cafedavg": CAFedAvg(calibrate=True),
    "fedvarp": FedVARP(lost="reuse", calibrate=True),
    "fednova": FedNova(normalise="sent", calibrate=True),
    "optimal_sampling": OptimalSampling(calibrate=True),
}


def system(seed: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    rng = np.random.default_rng(seed)
    return rng.dirichlet(np.ones(8)), rng.uniform(0, 0.9, 8), rng.integers(1, 40, 8).astype(float)


@pytest.mark.parametrize("name", CALIBRATED)
@pytest.mark.parametrize("seed", range(3))
def test_eta_is_that_of_the_published_formulas(name, seed):
    w, q, a = system(seed)
    ours = CALIBRATED[name].step_length(beforehand(w, q, a))
    assert ours == pytest.approx(oracles.calibrated_lr(name, 0.1, w, q, a), rel=1e-13)


@pytest.mark.parametrize("seed", range(3))
def test_all_move_equally_far_along_the_mean_gradient(seed):
    """The expected step eta sum_i E[c_i 1{i in R}] |a_i|_1, from the sampling and rule of each (M = 1)."""
    w, q, a = system(seed)
    c = beforehand(w, q, a, size=1)
    length = 0.1 * np.sum(w * (1 - q) * a)
    p = FedACS().probabilities({}, c)
    assert CALIBRATED["fedacs"].step_length(c) * np.sum(p * (1 - q) * a) == pytest.approx(length)
    assert CALIBRATED["cafedavg"].step_length(c) * np.sum(w * a) == pytest.approx(length)
    assert CALIBRATED["fedvarp"].step_length(c) * np.sum(w * a) == pytest.approx(length)  # memory = update
    tau = np.sum(w * (1 - q) * a) / np.sum(w * (1 - q))
    assert CALIBRATED["fednova"].step_length(c) * tau * np.sum(w * (1 - q)) == pytest.approx(length)


@pytest.mark.parametrize("name", ["fedacs", "cafedavg", "fedvarp"])
def test_without_calibrate_eta_stays(name):
    w, q, a = system(0)
    plain = {"fedacs": FedACS(), "cafedavg": CAFedAvg(), "fedvarp": FedVARP()}[name]
    assert plain.step_length(beforehand(w, q, a)) == 0.1


@pytest.mark.parametrize("name", ["fedacs", "cafedavg"])
def test_absent_clients_and_dead_links_keep_the_step_equally_long(name):
    w, q, a = system(5)
    q[3], a[4] = 1.0, 0.0
    available = np.arange(8) != 1
    c = beforehand(w, q, a, available)
    there = np.where(available, w, 0) / w[available].sum()
    p = FedACS().probabilities({}, c)
    step = p * (1 - q) * a if name == "fedacs" else np.where(q < 1, there * a, 0)
    reached = CALIBRATED[name].step_length(c) * step.sum()
    assert reached == pytest.approx(0.1 * np.sum(there * (1 - q) * a))


@pytest.mark.parametrize("name", ["fedacs", "cafedavg"])
def test_if_no_client_can_be_reached_eta_stays(name):
    assert CALIBRATED[name].step_length(beforehand(np.full(2, 0.5), np.ones(2), np.ones(2))) == 0.1


def test_calibrating_needs_known_links_and_an_unbiased_reference():
    w, q, a = np.full(2, 0.5), np.array([0.5, np.nan]), np.ones(2)
    for unknown in (q, np.full(2, np.nan)):
        with pytest.raises(BadValue, match="not known"):
            FedACS(calibrate=True).step_length(beforehand(w, unknown, a))
    assert np.isfinite(FedACS(calibrate=True).step_length(beforehand(w, q, a, np.array([True, False]))))
    with pytest.raises(BadValue, match="calibrate"):
        FedAvg(aggregate="mean", calibrate=True)
    with pytest.raises(BadValue, match=r"eq\. \(116\)"):
        FedNova(calibrate=True)
