"""Fixtures of run tests: commands that end with the test, and a run to compare with."""

from __future__ import annotations

import os
import signal
from contextlib import suppress

import pytest

from tests.runtime.faults import carry_out, outcome, start
from tests.runtime.tiny import FOCUS


@pytest.fixture
def command():
    """`command("run", ...)` starts `raylfl run ...`; its remaining processes are killed at the end of the test."""
    started = []

    def call(*args):
        started.append(start(*args))
        return started[-1]

    yield call
    for process in started:
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.communicate()


@pytest.fixture(scope="session")
def clean(tmp_path_factory):
    """The outcome of an undisturbed run of FOCUS."""
    folder = tmp_path_factory.mktemp("clean")
    carry_out(FOCUS, folder, ["checkpoint.every=0"])
    return outcome(folder)
