"""What all tests share: quick property tests, a tidy environment, run directories in a temporary place."""

from __future__ import annotations

import os

import pytest
from hypothesis import HealthCheck, settings

import raylfl  # noqa: F401 - before any test module imports lightning (see raylfl.startup.torchvision_cpu)

os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
os.environ.setdefault("WANDB_MODE", "offline")
os.environ.setdefault("MPLBACKEND", "agg")

settings.register_profile("suite", deadline=None, max_examples=40, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("suite")


@pytest.fixture(autouse=True)
def _tidy_environment():
    """Fails a test that leaves an environment variable of ours behind."""
    before = {k: v for k, v in os.environ.items() if k.startswith(("RAYLFL", "WANDB"))}
    yield
    after = {k: v for k, v in os.environ.items() if k.startswith(("RAYLFL", "WANDB"))}
    assert after == before


@pytest.fixture
def runs(tmp_path):
    """Overrides that put a run's directory under the test's own folder."""
    return [f"logging.dir={tmp_path}/runs", "logging.report=false"]
