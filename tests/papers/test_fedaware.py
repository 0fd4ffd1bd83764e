"""FedAWARE's comparisons with other methods: a near tie decides nothing."""

from pathlib import Path

import numpy as np
import pytest

from papers.fedaware import most_diverse, steady
from raylfl.report.derived import Stat
from raylfl.report.runs import Group, RunRecord


@pytest.mark.parametrize(
    ("rival", "verdict"), [(Stat(2.95, 0.6, 9, 9), None), (Stat(1.0, 0.1, 9, 9), True), (Stat(5.0, 0.1, 9, 9), False)]
)
def test_the_highest_diversity_is_decided_only_outside_the_spread_of_the_seeds(rival, verdict):
    values = {"FedAWARE": Stat(2.94, 0.45, 9, 9), "FedAvg": rival, "FedNova": Stat(0.5, 0.1, 9, 9)}
    assert most_diverse(values, "FedAWARE", 3).holds is verdict
    assert most_diverse(values, "FedAWARE", 1).holds is None


@pytest.mark.parametrize(("sizes", "verdict"), [((1.0, 1.02), None), ((1.0, 9.0), True), ((9.0, 1.0), False)])
def test_the_steadiest_accuracy_is_decided_by_pairs_of_seeds(sizes, verdict):
    rng = np.random.default_rng(0)
    lines = {name: wave(size, rng) for name, size in zip(("FedAWARE", "FedAvg"), sizes, strict=True)}
    assert steady(lines, "FedAWARE", 50).holds is verdict


def wave(size, rng):
    """Three runs whose accuracy moves by about this size between evaluations."""
    rounds = np.arange(100)
    runs = [
        RunRecord(Path(), {"seed": s}, rounds, {"test/accuracy": 0.5 + 0.01 * size * rng.normal(size=100)}, {})
        for s in range(3)
    ]
    return Group("", {}, runs)
