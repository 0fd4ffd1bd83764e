"""FOCUS reaches the optimum under partial participation; FedAvg does not."""

from __future__ import annotations

import numpy as np

from tests.oracles import random_quadratics, random_rounds, simulate
from tests.oracles.cases import D, N, start


def test_focus_is_exact_under_partial_participation_and_fedavg_is_not():
    problem = random_quadratics(5, N, D)
    rounds = random_rounds(5, 1500, N, lr=0.02, lr_decay=1.0, include_empty=False)
    ends = {name: simulate(name, problem, rounds, start(5))[-1]["x"] for name in ("focus", "fedavg")}
    assert np.linalg.norm(ends["focus"] - problem.optimum()) < 1e-9
    assert np.linalg.norm(ends["fedavg"] - problem.optimum()) > 1e-3
