"""The contract in whole runs: each check can fail, and `pytest --raylfl-contract` tests classes of a user's folder."""

import itertools
import os
import re
import subprocess
import sys
import tomllib
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

from raylfl.algorithms import ALGORITHMS
from raylfl.algorithms.fedavg import FedAvg
from raylfl.core.population import Population
from raylfl.pytest_plugin import contract_items
from raylfl.testing import ContractBroken
from raylfl.testing.runs import RUN_CHECKS, carry_out, configured, uses_its_checkpoints
from tests.shares import also
from tests.startup.forks import PYTEST

ROOT = Path(__file__).resolve().parents[2]


CALLS = itertools.count(1)


@dataclass
class CountsCalls(FedAvg):
    """An algorithm whose step length depends on the number of earlier calls."""

    def direction(self, x, g, carry):
        return g * (1 + 0.01 * next(CALLS)), carry


@dataclass
class TakesAnything(FedAvg):
    """An algorithm whose option has no type."""

    mu: Any = 0.1


BROKEN = {
    "has_the_same_bits_on_any_worker": CountsCalls,
    "resumes_after_a_kill_in_every_phase": CountsCalls,
    "its_saved_config_repeats_the_run": CountsCalls,
    "refuses_what_is_no_option": TakesAnything,
}


def form(cls):
    """Types, dtypes and shapes of a method's states of server and clients, whatever their names and number."""
    method, x = cls(), torch.zeros(3)
    states = method.init_server(x, Population.of(np.ones(2))), method.init_clients(x, 2)
    return tuple(
        tuple(sorted({f"{type(v)} {getattr(v, 'dtype', None)} {np.shape(v)}" for v in state.values()}))
        for state in states
    )


STATES = {  # an algorithm for each form of state, but for those that need a model to cut
    form(entry.cls): entry.name for entry in ALGORITHMS if entry.name not in ("splitfed", "ssl")
}


EVERY_TYPE = ("fedaware", "scaffold", "sgp")  # together: tables, rows of clients and of nodes, numbers of all dtypes


@pytest.mark.parametrize("name", [(pytest.param if n in EVERY_TYPE else also)(n) for n in STATES.values()])
def test_every_state_is_continued_from_its_checkpoint(tmp_path, name):
    """Its state has another size than before round 0 if it has rows of the clients received so far."""
    config = configured([f"algorithm={name}"]).resolved
    carry_out(config, tmp_path, ["rounds=3", "checkpoint.every=1"])
    carry_out(config, tmp_path, ["rounds=4"], resume=True)
    uses_its_checkpoints(tmp_path)
    assert "resumed at round 3" in (tmp_path / "log.txt").read_text()


def settings(cls):
    return [f"algorithm={cls.__module__}.{cls.__qualname__}"]


@pytest.mark.parametrize(("check", "cls"), BROKEN.items(), ids=list(BROKEN))
def test_a_broken_algorithm_is_refused(tmp_path, check, cls):
    with pytest.raises(ContractBroken):
        RUN_CHECKS[check](settings(cls), tmp_path)


def test_every_check_has_an_algorithm_that_it_refuses():
    assert set(BROKEN) == set(RUN_CHECKS)


@pytest.mark.parametrize("check", sorted({*RUN_CHECKS} - {"resumes_after_a_kill_in_every_phase"}))
def test_a_ring_keeps_the_contract_in_whole_runs(tmp_path, check):
    RUN_CHECKS[check](["algorithm=sfl"], tmp_path)


MINE = '''
"""State x [d]. Nothing else is told of it."""
from dataclasses import dataclass

from raylfl.algorithms.fedprox import FedProx


@dataclass
class Good(FedProx):
    """As FedProx."""


@dataclass
class Bad(FedProx):
    def empty_round(self, server, r):
        return {"x": 0.9 * server["x"]}
'''


@pytest.mark.slow
def test_pytest_runs_the_contract_of_classes_in_the_working_directory(tmp_path):
    (tmp_path / "mine.py").write_text(MINE)
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1", "COLUMNS": "200"}
    command = [*PYTEST, "-p", "raylfl.pytest_plugin", "-v", "-k", "empty_round or no_option"]
    classes = ["--raylfl-contract", "mine.Good mu=0.2", "--raylfl-contract", "mine.Bad"]
    done = subprocess.run([*command, *classes], cwd=tmp_path, env=environment, capture_output=True, text=True)
    assert done.returncode == 1, done.stdout + done.stderr
    assert re.search(r"1 failed, 3 passed, \d+ deselected", done.stdout)
    assert "FAILED ::mine.Bad::an_empty_round_moves_no_vector - server['x'] moved in an empty round" in done.stdout


def test_a_class_that_does_not_exist_is_an_error_of_usage(tmp_path, monkeypatch):
    (tmp_path / "mine.py").write_text(MINE)
    monkeypatch.setattr(sys, "path", list(sys.path))
    session = SimpleNamespace(config=SimpleNamespace(invocation_params=SimpleNamespace(dir=tmp_path)))
    with pytest.raises(pytest.UsageError, match=r"--raylfl-contract mine.None: .*mine has no None"):
        contract_items(session, "mine.None")


def test_the_plug_in_is_an_entry_point_of_the_package():
    points = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["entry-points"]
    assert points["pytest11"] == {"raylfl": "raylfl.pytest_plugin"}
