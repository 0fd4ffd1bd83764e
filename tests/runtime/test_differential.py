"""The comparisons of `make fuzz`: they find a run that depends on its worker, and accept one that does not."""

from __future__ import annotations

import random

import pytest

from benchmarks.differential import Case
from benchmarks.odd_modules import Odd
from tests.runtime.tiny import TINY

SEEN = []


class Carries(Odd):
    """A number outside the module, which nothing restores."""

    def training_step(self, batch, batch_idx):
        SEEN.append(0)
        return super().training_step(batch, batch_idx) * (1 + 0.01 * len(SEEN))


@pytest.mark.parametrize(
    ("module", "wrong"),
    [("benchmarks.odd_modules.BatchNorm", False), ("tests.runtime.test_differential.Carries", True)],
)
def test_runs_that_differ_are_found(tmp_path, module, wrong):
    case = Case(random.Random(0), tmp_path)
    case.config = {**TINY, "rounds": 5, "model": {"class_path": module}}
    case.config["data"] = {"class_path": "benchmarks.odd_modules.Points"}
    assert case.carry_out() == "compared"
    assert case.compared == 5
    assert any(line.startswith("its config.yaml: ") for line in case.wrong) == wrong
    assert wrong or case.wrong == []
