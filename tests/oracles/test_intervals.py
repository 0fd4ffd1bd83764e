"""FedAU and FedAWE against intervals counted by hand."""

import numpy as np

from tests.oracles import History, Round, distances, simulate


def one_dimensional(taking_part: list[list[int]], clients: int) -> tuple[History, History]:
    """fedau and fedawe on f_i = (x - 1)^2/2, K = 1, from 0."""
    problem = distances(np.ones((clients, 1)))
    rounds = [
        Round(r, cohort, [1] * len(cohort), [True] * len(cohort), [1] * len(cohort), 0.1)
        for r, cohort in enumerate(taking_part)
    ]
    x = np.zeros(1)
    return simulate("fedau", problem, rounds, x, cutoff=3), simulate("fedawe", problem, rounds, x)


def test_fedau_averages_the_participation_intervals():
    """Client 0 takes part in rounds 0, 2, 3; client 1 never (cutoff 3); round 1 and 4 are empty."""
    run, _ = one_dimensional([[0], [], [0], [0], [], []], 2)
    np.testing.assert_allclose([s["W_i"][0] for s in run], [1, 1, 1.5, 4 / 3, 4 / 3, 4 / 3])
    np.testing.assert_allclose([s["W_i"][1] for s in run], [1, 1, 3, 3, 3, 3])
    np.testing.assert_allclose([s["S_i"][1] for s in run], [1, 2, 0, 1, 2, 0])
    x = 0.1 / 2  # round 0: weight 1, U = 0.1 (x - 1)
    x = x - 0.1 * (x - 1) / 2  # round 2: still 1, the interval 2 counts from the next round on
    x = x - 1.5 * 0.1 * (x - 1) / 2
    np.testing.assert_allclose(run[3]["x"], x, rtol=1e-14)


def test_fedawe_scales_by_the_rounds_missed_and_starts_from_its_own_model():
    """Client 1 first takes part in round 2: r - tau = 3, from x0, though the server has moved."""
    _, run = one_dimensional([[0], [0], [1], [], [0, 1]], 2)
    np.testing.assert_allclose(run[1]["x"], 1 - 0.9**2, rtol=1e-14)
    np.testing.assert_allclose(run[2]["x"], 0.3, rtol=1e-14)
    own_0 = (1 - 0.9**2) + 3 * 0.1 * 0.9**2  # tau_0 = 1
    own_1 = 0.3 + 2 * 0.1 * 0.7  # tau_1 = 2: round 3 was empty, but passed
    np.testing.assert_allclose(run[4]["x"], (own_0 + own_1) / 2, rtol=1e-14)
    np.testing.assert_allclose(run[4]["tau_i"], [4, 4])
