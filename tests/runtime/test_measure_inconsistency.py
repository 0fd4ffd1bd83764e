"""chi2 and the predicted distance against weights enumerated over all received sets, and against a run that stalls."""

import itertools

import numpy as np
import pytest

from tests.runtime.measured import ETA, LINKS, SAMPLED, STEPS, N, Points, Q, W, walk

P = np.array([0.9, 0.7, 0.5, 0.3, 0.1])
MU = 3.0
COINS = ["participation.name=bernoulli", f"participation.p={P.tolist()}"]
ABSENT = ["participation={name: uniform, size: 3, availability: {name: bernoulli, p: 0.5}}"]


def mean_over_received_sets(p):
    """E[1{i in R} / |R|] for independent clients received with probabilities p [N], by all 2^N outcomes."""
    total = np.zeros(N)
    for outcome in itertools.product([0, 1], repeat=N):
        here = np.array(outcome)
        if here.any():
            total += np.prod(np.where(here, p, 1 - p)) * here / here.sum()
    return total


@pytest.mark.parametrize(
    ("overrides", "omega"),
    [
        ([*SAMPLED, "weights=uniform"], STEPS),  # FedNova's objective inconsistency
        (["weights=uniform", "local.steps=2"], np.ones(N)),
        (["algorithm.aggregate=weighted"], W * STEPS),
        ([*LINKS, "algorithm.aggregate=full"], W * (1 - Q) * STEPS),
        ([*SAMPLED, *LINKS, "algorithm.aggregate=anonymous"], (1 - Q) * STEPS),
        ([*COINS, *LINKS], mean_over_received_sets(P * (1 - Q)) * STEPS),
        ([*COINS, "algorithm.aggregate=anonymous_uniform"], W * mean_over_received_sets(P) * STEPS),
        ([*SAMPLED, *LINKS, "algorithm.name=fedacs"], W),
        ([*SAMPLED, *LINKS, "algorithm.name=cafedavg"], STEPS),  # corrects links, but neither unequal steps nor p != w
        (
            [*COINS, *LINKS, "algorithm.name=cafedavg"],
            mean_over_received_sets(P) * STEPS,
        ),  # draws count 1 / M, and M is random
        (
            ["weights=uniform", "algorithm.name=fedprox", f"algorithm.mu={MU}"],
            (1 - (1 - ETA * MU) ** STEPS) / (ETA * MU),
        ),
        (["weights=uniform", "local.momentum=0.5"], 2 * STEPS - 2 + 0.5 ** (STEPS - 1)),  # sum_j (1 - rho^j)/(1 - rho)
    ],
    ids=lambda value: " ".join(value)[-60:] if isinstance(value, list) else "",
)
def test_chi2_is_that_of_the_surrogate_weights(overrides, omega):
    w = np.full(N, 1 / N) if "weights=uniform" in overrides else W
    omega = omega / omega.sum()
    expected = np.sum((w - omega) ** 2 / omega)
    bias = np.linalg.norm((omega - w) @ Points().centres) / np.linalg.norm(w @ Points().centres)  # [3] eq. (4)
    for _, metrics, _, _ in walk([*overrides, "rounds=2"])[1]:
        assert metrics["inconsistency/chi2"] == pytest.approx(expected, rel=1e-10, abs=1e-14)
        assert metrics["inconsistency/predicted_distance"] == pytest.approx(bias, rel=1e-10, abs=1e-14)


def test_chi2_of_a_sampler_that_learns_is_that_of_the_probabilities_it_drew_with():
    """FedACS estimates work and failures; a round's p, which its row has for the cohort, is of the rounds before it."""
    rows = walk([*SAMPLED, *LINKS, "algorithm.name=fedacs", "algorithm.estimate=ema", "rounds=5"])[1]
    q, a, sampled, received = np.zeros(N), np.zeros(N), np.zeros(N), np.zeros(N)
    for _, metrics, row, _ in rows:
        mean = a[received > 0].mean() if received.any() else 1.0
        p = W / ((1 - np.minimum(q, 0.95)) * np.where(received > 0, a, mean))
        p /= p.sum()
        assert row["p"] == pytest.approx(p[row["cohort"]].tolist(), rel=1e-12)
        omega = p * (1 - Q) * STEPS
        omega /= omega.sum()
        assert metrics["inconsistency/chi2"] == pytest.approx(np.sum((W - omega) ** 2 / omega), rel=1e-10)
        for i, got in zip(row["cohort"], row["received"], strict=True):
            sampled[i] += 1
            q[i] += max(0.05, 1 / (sampled[i] + 1)) * (1 - got - q[i])
            if got:
                received[i] += 1
                a[i] += max(0.05, 1 / received[i]) * (STEPS[i] - a[i])
    assert np.ptp(p * W[0] / W) > 0.05  # its estimates have an effect


def test_a_run_stalls_at_the_predicted_distance():
    """Full participation, unequal K and a small step: exactly there but for O(eta K)."""
    small = ["weights=uniform", "local.lr=1e-4", "algorithm.gamma=2000", "rounds=20"]
    *_, (_, metrics, _, _) = walk(small)[1]
    assert metrics["inconsistency/predicted_distance"] > 0.01
    assert metrics["global/distance"] == pytest.approx(metrics["inconsistency/predicted_distance"], rel=0.01)


@pytest.mark.parametrize("option", ["data.class_path=tests.runtime.measured.OneOptimum", "local.weight_decay=0.1"])
def test_no_distance_is_predicted_if_the_data_have_one_optimum_only_or_another_objective_is_minimised(option):
    rows = walk([option, "rounds=2"])[1]
    for _, metrics, _, _ in rows:
        assert "global/distance" in metrics
        assert "inconsistency/chi2" in metrics
        assert "inconsistency/predicted_distance" not in metrics


@pytest.mark.parametrize(
    "overrides",
    [
        ["algorithm.name=sfl"],
        ["algorithm.name=focus"],  # no fixed combination of updates
        [*SAMPLED, *LINKS],  # 1/|R| and unequal probabilities: no closed form
        ["eval.inconsistency=false"],
        *(["local.momentum=0.5", f"local.optimizer_state={kept}"] for kept in ("kept", "averaged")),  # not a_i's work
        ["local.optimizer=adamw"],
        ["local.clip_norm=1"],
        *([*ABSENT, f"algorithm={method}"] for method in ("fedacs", "{name: optimal_sampling, norms: stale}")),
    ],
)
def test_chi2_is_left_out_if_unknown_or_switched_off(overrides):
    assert not any("inconsistency/chi2" in metrics for _, metrics, _, _ in walk([*overrides, "rounds=2"])[1])
