"""Fixtures of run tests: commands that end with the test, and a run to compare with."""

import os
import shutil
import signal
from concurrent.futures import ProcessPoolExecutor
from contextlib import suppress
from multiprocessing import get_context

import fsspec
import pytest

import raylfl
from raylfl.startup import lazy_imports
from tests.runtime.faults import carry_out, killed, outcome, start, strike
from tests.runtime.tiny import FOCUS, ONE_BY_ONE
from tests.shares import also


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


@pytest.fixture(scope="module")
def process():
    """A process for runs on a simulated device: torch unregisters a device only when its process ends."""
    with ProcessPoolExecutor(1, get_context("spawn"), lazy_imports.install) as pool:
        yield pool


@pytest.fixture
def fork():
    """A fork of this process as it is before the test: with its imports, without the threads of other tests."""
    with ProcessPoolExecutor(1, get_context("fork")) as pool:
        pool.submit(int).result()
        yield pool


@pytest.fixture(scope="module")
def kill_folder(tmp_path_factory):
    """The folder of kill points of a cluster's processes."""
    return tmp_path_factory.mktemp("faults")


@pytest.fixture(scope="session")
def clean(tmp_path_factory):
    """The outcome of an undisturbed run of FOCUS."""
    folder = tmp_path_factory.mktemp("clean")
    carry_out(FOCUS, folder, ["checkpoint.every=0"])
    return outcome(folder)


@pytest.fixture(scope="session")
def killed_run(tmp_path_factory):
    """A run of FOCUS killed in round 4, with checkpoints of rounds 2, 3 and 4 (older ones still hold clients)."""
    folder = tmp_path_factory.mktemp("killed") / "run"
    killed(lambda: carry_out(FOCUS, folder, fault=strike("collect", 4)))
    return folder


@pytest.fixture
def folder(killed_run, tmp_path):
    """A copy of `killed_run`, to be damaged or resumed."""
    shutil.copytree(killed_run, tmp_path / "run")
    return tmp_path / "run"


@pytest.fixture(scope="session")
def finished_run(tmp_path_factory):
    """The directory of a finished run of two rounds."""
    return raylfl.run(ONE_BY_ONE, [f"logging.dir={tmp_path_factory.mktemp('finished')}", "rounds=2"]).run_dir


@pytest.fixture
def finished(finished_run, tmp_path):
    """A copy of `finished_run`, to be changed or resumed."""
    return shutil.copytree(finished_run, tmp_path / "finished")


@pytest.fixture
def machine(monkeypatch, tmp_path):
    """`machine("b")`: from now on this process works with the local files of machine b, which has none at first."""

    def go_to(name: str) -> None:
        monkeypatch.setenv("RAYLFL_STAGING", str(tmp_path / name))

    go_to("a")
    return go_to


@pytest.fixture(params=["memory", also("file")])
def url(request, tmp_path, machine):
    """A URL for run directories, in memory and in a folder."""
    yield "memory://far/runs" if request.param == "memory" else f"file://{tmp_path}/far/runs"
    fsspec.filesystem("memory").store.clear()
