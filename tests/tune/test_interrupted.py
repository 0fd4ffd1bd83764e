"""A sweep killed by SIGKILL continues and repeats no finished trial."""

import os
import signal
from glob import glob

import psutil
import pytest
import torch

from raylfl.tune.spec import load_sweep
from tests.runtime.faults import alive, finished, start, wait_until
from tests.tune.sweeps import finish, folder_of, params, plain, tables, write

METHODS = ("fedavg", "fedavgm")


@pytest.mark.exhaustive
@pytest.mark.timeout(900)
def test_a_killed_sweep_ends_with_the_table_of_an_undisturbed_one(tmp_path):
    """The sweep is killed with one finished trial and one in its third round; no trial is run twice."""
    runs, gate = tmp_path / "runs" / "quadratics", tmp_path / "gate"
    held = {"after": str(runs / "fedavgm-*/checkpoints/round_*"), "gate": str(gate)}
    path = write(
        tmp_path,
        model={"name": None, "class_path": "tests.tune.modules.Held"},
        space={
            "algorithm.name": {"grid": list(METHODS)},
            "model.init_args": {"grid": [held], "when": {"algorithm.name": METHODS[1]}},
        },
        logging={"dir": str(tmp_path / "runs")},
    )
    process = start("sweep", str(path))
    try:
        begun = lambda: glob(held["after"]) and list(runs.glob("fedavg-*/summary.json"))  # noqa: E731
        wait_until(lambda: begun() or process.poll() is not None, "finished trial and one under way", 300)
        processes = psutil.Process(process.pid).children(recursive=True)
    finally:
        os.killpg(process.pid, signal.SIGKILL)
        process.communicate()
    assert alive(processes, 120) == []  # Ray ends processes that have lost their driver
    first, second = (folder_of(runs, setting) for setting in range(2))
    assert not (second / "summary.json").exists()
    written = (first / "final.pt").stat().st_mtime_ns

    gate.touch()
    again = start("sweep", str(path))
    wait_until(lambda: "resumed at round 2" in (second / "log.txt").read_text(), "resumed trial", 300)
    processes = psutil.Process(again.pid).children(recursive=True)
    code, out, err = finished(again)
    assert code == 0, err
    assert alive(processes, 120) == []
    assert "[2/2] 001-fedavgm  finished" in out
    assert (first / "final.pt").stat().st_mtime_ns == written
    assert (runs / "report" / "index.html").exists()
    finish(load_sweep(path), tmp_path / "undisturbed" / "quadratics")
    assert tables(runs) == tables(tmp_path / "undisturbed" / "quadratics")
    for folder, method in zip((first, second), METHODS, strict=True):
        assert torch.equal(params(folder), plain(tmp_path, f"algorithm.name={method}").params)
