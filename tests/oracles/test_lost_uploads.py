"""Every oracle: a lost client counts as not sampled, and an empty round changes only round counters."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np

from tests.oracles import ALGORITHMS, History, Local, Round, random_quadratics, random_rounds, simulate
from tests.oracles.cases import D, N, close, start

REQUIRED: dict[str, dict[str, Any]] = {
    "fedprox": {"mu": 0.3},
    "fedavgm": {"beta": 0.8},
    "feddyn": {"alpha": 0.4},
}
COUNTS_SENT = {"fedacs", "cafedavg", "optimal_sampling"}  # 1/M: a lost upload is missed


def all_runs(rounds: list[Round], local: Local) -> dict[str, History]:
    problem, x = random_quadratics(12, N, D), start(12)
    names = sorted(ALGORITHMS)
    return {name: simulate(name, problem, rounds, x, local, **REQUIRED.get(name, {})) for name in names}


def test_a_lost_client_counts_as_not_sampled():
    def forget(r: Round) -> Round:
        keep = [k for k, here in enumerate(r.received) if here]
        cohort, draws, steps = ([rows[k] for k in keep] for rows in (r.cohort, r.draws, r.steps))
        return replace(r, cohort=cohort, draws=draws, steps=steps, received=[True] * len(keep))

    rounds = random_rounds(21, 12, N, unequal_steps=False)
    local = Local(momentum=0.5, weight_decay=0.01, clip_norm=2.0)
    asked, unasked = all_runs(rounds, local), all_runs([forget(r) for r in rounds], local)
    assert any(r.lost and r.arrived for r in rounds)
    for name in sorted(ALGORITHMS.keys() - COUNTS_SENT):
        close(asked[name], unasked[name])
    assert not np.allclose(asked["fedacs"][-1]["x"], unasked["fedacs"][-1]["x"])


def test_an_empty_round_changes_only_round_counters():
    rounds = random_rounds(22, 9, N)
    empty = next(r.index for r in rounds if not r.arrived)
    clocks = {"S_i", "W_i", "intervals_i", "p", "lambda_i"}
    assert empty > 0
    for name, run in all_runs(rounds, Local()).items():
        for key in run[empty].keys() - clocks:
            np.testing.assert_array_equal(run[empty][key], run[empty - 1][key], err_msg=f"{name} {key}")
    fedau = all_runs(rounds, Local())["fedau"]
    np.testing.assert_array_equal(fedau[empty]["S_i"], fedau[empty - 1]["S_i"] + 1)


def test_nothing_moves_the_start_or_a_state_handed_out_earlier():
    x, rounds = start(12), random_rounds(23, 8, N)
    problem = random_quadratics(12, N, D)
    for name in ALGORITHMS:
        options = REQUIRED.get(name, {})
        short, long = (simulate(name, problem, rounds[:k], x, **options) for k in (4, 8))
        close(short, long[:4], tol=0)
        np.testing.assert_array_equal(x, start(12))
