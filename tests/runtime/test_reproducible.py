"""Equal bits in fresh processes, whatever a module seeds; on any worker: tests/algorithms/test_contract_runs.py."""

import os
import random
import subprocess
import sys
from functools import partial

import pytest
import torch

from benchmarks.differential import Case
from benchmarks.odd_modules import Odd
from raylfl.runtime.session import rows_in_process
from raylfl.testing.runs import RandomWorkers
from tests.runtime.faults import carry_out, options_of, outcome
from tests.runtime.tiny import TINY, rude
from tests.startup.forks import LEAN


@pytest.mark.parametrize("norm", [True, False], ids=["one by one", "vectorised"])
def test_a_module_that_seeds_every_generator_changes_no_other_bits(tmp_path, norm):
    """Other clients and its own later steps have the bits of a module that never seeds."""
    carry_out(rude(False, norm), tmp_path / "polite")
    before = torch.get_rng_state()
    carry_out(rude(True, norm), tmp_path / "one")
    assert torch.equal(torch.get_rng_state(), before)
    carry_out(rude(True, norm), tmp_path / "crowd", rows=partial(rows_in_process, make=RandomWorkers))
    assert outcome(tmp_path / "one") == outcome(tmp_path / "polite")
    assert outcome(tmp_path / "crowd") == outcome(tmp_path / "polite")


KINDS = ["focus", "fedaware", "sfl", "fedacs"]  # client states, a server's table and solver, a ring, its own sampling
RUNS = """
import sys
from functools import partial
from pathlib import Path
from tests.runtime.faults import carry_out, options_of
from tests.runtime.tiny import TINY

for name in sys.argv[2:]:
    carry_out({**TINY, "rounds": 2, "algorithm": options_of(name)}, Path(sys.argv[1]) / name)
"""


@pytest.mark.slow
def test_a_fresh_process_with_another_hash_seed_agrees_on_every_kind_of_algorithm(tmp_path):
    """This process, in which many other tests have run, has the same bits."""
    mine = os.environ.get("PYTHONHASHSEED", "random")
    other = os.environ | {"PYTHONHASHSEED": "271828" if mine != "271828" else "1"}
    subprocess.run(
        [sys.executable, "-c", LEAN + RUNS, str(tmp_path / "there"), *KINDS], env=other, check=True, timeout=200
    )
    for name in KINDS:
        carry_out({**TINY, "rounds": 2, "algorithm": options_of(name)}, tmp_path / "here" / name)
        assert outcome(tmp_path / "there" / name) == outcome(tmp_path / "here" / name)


# -- the comparisons of make fuzz can fail ----------------------------------------------------------------------------


SEEN = []


class Carries(Odd):
    """A number outside the module, which nothing restores."""

    def training_step(self, batch, batch_idx):
        SEEN.append(0)
        return super().training_step(batch, batch_idx) * (1 + 0.01 * len(SEEN))


def test_runs_that_differ_are_found(tmp_path):
    case = Case(random.Random(0), tmp_path)
    case.config = {**TINY, "rounds": 5, "model": {"class_path": "tests.runtime.test_reproducible.Carries"}}
    case.config["data"] = {"class_path": "benchmarks.odd_modules.Points"}
    assert case.carry_out() == "compared"
    assert case.compared == 5
    assert any(line.startswith("its config.yaml: ") for line in case.wrong)
