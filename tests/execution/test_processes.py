"""Runs in processes: Ctrl-C and lost processes leave checkpoints and no process behind; each has its share of GPUs."""

import os
import re
import signal
from contextlib import suppress
from types import SimpleNamespace

import psutil
import pytest
import torch
import yaml

import raylfl
from raylfl.config.groups.runtime import RuntimeConfig
from raylfl.config.load import load_config
from raylfl.execution import executor
from raylfl.execution.executor import room
from raylfl.execution.store import plan
from tests.runtime.faults import alive, finished, rounds_of, start, wait_until
from tests.runtime.tiny import LONG
from tests.runtime.tiny import ONE_BY_ONE as TINY
from tests.shares import one_in

NAMES = ("fedavg", "fedprox")


@pytest.fixture
def at_work(tmp_path):
    """`raylfl compare` of two long runs in two processes, in round 3 or later; and the folders of the runs."""
    path, base = tmp_path / "long.yaml", tmp_path / "runs" / "tiny"
    path.write_text(yaml.safe_dump({**LONG, "logging": {"report": False, "dir": str(tmp_path / "runs"), "id": "it"}}))
    process = start("compare", str(path), "-a", ",".join(NAMES), "--jobs", "2")
    folders = [base / f"it-{name}" for name in NAMES]
    try:
        wait_until(lambda: all(rounds_of(folder) >= 3 for folder in folders), "three rounds of both runs")
        yield process, psutil.Process(process.pid).children(recursive=True), folders
    finally:
        for child in psutil.Process(process.pid).children(recursive=True) if process.poll() is None else ():
            with suppress(psutil.NoSuchProcess):
                child.kill()
        process.kill()
        process.communicate()


@pytest.mark.parametrize("number", one_in(2, [signal.SIGINT, signal.SIGTERM]))
def test_ctrl_c_ends_all_processes_with_checkpoints_and_the_same_command_continues(at_work, number):
    process, children, folders = at_work
    os.killpg(process.pid, number)  # as a terminal does
    code, out, err = finished(process, 120)
    assert code == 1
    assert err.splitlines() == [
        "raylfl: stopping the runs after their rounds, with checkpoints; once more ends at once",
        "raylfl: interrupted",
        "raylfl: the same command continues",
    ]
    assert "runs     2 to do, 0 found" in out
    assert alive(children) == []
    for name, folder in zip(NAMES, folders, strict=True):
        assert (folder / "checkpoints" / f"round_{rounds_of(folder):06d}").is_dir()
        config = load_config(folder.parents[2] / "long.yaml", [f"algorithm.name={name}", f"logging.id=it-{name}"])
        assert (plan(config).path, plan(config).begun, plan(config).complete) == (folder, True, False)


@pytest.mark.exhaustive
def test_if_one_process_is_killed_the_other_run_is_saved(at_work):
    process, children, folders = at_work
    victim = re.search(r"process (\d+)", (folders[0] / "log.txt").read_text())[1]
    os.kill(int(victim), signal.SIGKILL)
    code, _, err = finished(process, 120)
    assert code == 1
    assert "fedavg, seed 0: its process ended unexpectedly (SIGKILL; is the memory used up?)" in err
    assert alive(children) == []
    assert (folders[1] / "checkpoints" / f"round_{rounds_of(folders[1]):06d}").is_dir()


FAULTY = """
from pathlib import Path

from tests.runtime.tiny import Net


class Faulty(Net):
    def test_step(self, batch, batch_idx):
        if list(Path(__file__).parent.glob("runs/tiny/*/metrics.jsonl")):  # not in a probe step
            raise self.Fault(f"rows: {len(batch[0])}")
        return super().test_step(batch, batch_idx)

    class Fault(ValueError):
        def __reduce__(self):
            raise TypeError("this error cannot be pickled")
"""


@pytest.mark.exhaustive
@pytest.mark.parametrize("picklable", [True, False])
def test_an_error_of_a_users_class_is_raised_in_the_parent_with_its_traceback(tmp_path, monkeypatch, runs, picklable):
    monkeypatch.syspath_prepend(str(tmp_path))
    (tmp_path / "mine_faulty.py").write_text(FAULTY.replace("self.Fault", "ValueError") if picklable else FAULTY)
    config = {**TINY, "model": {"class_path": "mine_faulty.Faulty"}}
    with pytest.raises(Exception, match="rows: ") as caught:
        raylfl.run([config, {**config, "seed": 1}], runs, jobs=2)
    assert "mine_faulty.py" in str(caught.value.__cause__)
    assert any("continues it" in note for note in caught.value.__notes__) if picklable else "Fault" in str(caught.value)


MACHINES = [  # runtime, runs, GPUs, jobs -> GPUs of each process, and those that each process sees
    ({}, 9, 0, None, 0, [None] * 8),
    ({"cpus_per_worker": 2}, 9, 0, None, 0, [None] * 4),
    ({"threads": 4}, 9, 0, None, 0, [None] * 2),
    ({}, 3, 0, None, 0, [None] * 3),
    ({}, 9, 0, 2, 0, [None] * 2),
    ({}, 9, 2, None, 1, ["0", "1"]),
    ({"gpus_per_worker": 0.5}, 9, 2, None, 0.5, ["0", "0", "1", "1"]),
    ({"gpus_per_worker": 1}, 9, 4, None, 1, ["0", "1", "2", "3"]),
    ({"gpus_per_worker": 0}, 9, 2, None, 0, [None] * 8),
    ({}, 9, 1, 2, 0.5, ["0", "0"]),
    ({}, 9, 2, 3, 0.5, ["0", "0", "1"]),
    ({"backend": "ray"}, 3, 0, None, 0, [None]),  # Ray would give each run eight workers
    ({"backend": "ray"}, 4, 0, None, 0, [None] * 4),
]


@pytest.mark.parametrize(("runtime", "count", "gpus", "jobs", "share", "seen"), MACHINES)
def test_the_processes_share_cpus_and_gpus(monkeypatch, runtime, count, gpus, jobs, share, seen):
    monkeypatch.setattr(executor, "cores", lambda: 8)
    monkeypatch.setattr(executor.psutil, "virtual_memory", lambda: SimpleNamespace(available=2**40))
    monkeypatch.setattr(torch.cuda, "device_count", lambda: gpus)
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    of_each, environments = room(RuntimeConfig(**{"backend": "local", **runtime}), count, jobs)
    assert of_each == share
    assert [environment.get("CUDA_VISIBLE_DEVICES") for environment in environments] == seen


def test_the_processes_fit_into_memory_and_use_the_gpus_that_the_caller_may_use(monkeypatch):
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "3,GPU-7")
    _, environments = room(RuntimeConfig(backend="local"), 4, 2)
    assert [environment["CUDA_VISIBLE_DEVICES"] for environment in environments] == ["3", "GPU-7"]
    monkeypatch.setattr(executor, "cores", lambda: 8)
    monkeypatch.setattr(executor.psutil, "virtual_memory", lambda: SimpleNamespace(available=7 * 2**29))
    assert len(room(RuntimeConfig(backend="local", gpus_per_worker=0), 9, None)[1]) == 3
