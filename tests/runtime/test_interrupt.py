"""SIGTERM and Ctrl-C through the command line: a checkpoint, the way to go on, exit code 1, nobody left behind."""

from __future__ import annotations

import os
import re
import shlex
import signal

import pytest
import yaml

import raylfl
from tests.runtime.faults import alive, family, finished, outcome, wait_until
from tests.runtime.tiny import TINY

LONG = {**TINY, "rounds": 100_000, "eval": {"every": 0, "inconsistency": False}, "checkpoint": {"every": 0}}
RAY = ["runtime.backend=ray", "runtime.workers=2", "runtime.cpus_per_worker=0.5", "runtime.object_store_mb=80"]


@pytest.fixture
def config(tmp_path):
    path = tmp_path / "long.yaml"
    path.write_text(yaml.safe_dump({**LONG, "logging": {"report": False, "dir": str(tmp_path / "runs"), "id": "it"}}))
    return path


def wait_for_rounds(process, folder, count):
    """Until so many rounds are written down."""
    path = folder / "metrics.jsonl"

    def there():
        assert process.poll() is None, process.communicate()
        return path.exists() and path.read_text().count("\n") >= count

    wait_until(there, f"{count} rounds")


def check_that_it_resumes(folder, err):
    """By the printed command, with few rounds left, into the bits of an undisturbed run."""
    told = re.search(r"raylfl resume (\S+)", err)
    assert told is not None, err
    assert shlex.split(told.group(1)) == [str(folder)]
    done = int(re.search(r"stopped before round (\d+)", err).group(1))
    assert (folder / "checkpoints" / f"round_{done:06d}").is_dir()
    assert (folder / "metrics.jsonl").read_text().count("\n") == done
    check_against_an_undisturbed_run(folder, done)


def check_against_an_undisturbed_run(folder, done, overrides=("runtime.backend=local",)):
    """Resumed with three rounds to go; rounds may only be raised, so the config asks for few at first."""
    text = (folder / "config.yaml").read_text().replace(f"rounds: {LONG['rounds']}", f"rounds: {done + 3}")
    (folder / "config.yaml").write_text(text)
    resumed = raylfl.resume(folder, list(overrides))
    clean = raylfl.run(yaml.safe_load(text), ["runtime.backend=local", "logging.id=clean"])
    assert outcome(resumed.run_dir) == outcome(clean.run_dir)


def test_sigterm_ends_a_local_run_after_its_round_with_a_checkpoint(command, config, tmp_path):
    process, folder = command("run", str(config)), tmp_path / "runs" / "tiny" / "it"
    wait_for_rounds(process, folder, 3)
    processes = family(process)
    process.terminate()
    code, _, err = finished(process)
    assert code == 1
    assert len(err.strip().splitlines()) == 2
    assert "Traceback" not in err
    assert alive(processes) == []
    check_that_it_resumes(folder, err)


def test_a_second_ctrl_c_ends_at_once_even_in_a_hanging_client(command, tmp_path, config):
    content = yaml.safe_load(config.read_text())
    content["model"] = {"class_path": "tests.runtime.tiny.Cursed", "init_args": {"hangs": 13}}
    content["participation"] = {"name": "full"}
    config.write_text(yaml.safe_dump(content))
    process, folder = command("run", str(config)), tmp_path / "runs" / "tiny" / "it"
    log = folder / "log.txt"
    wait_until(lambda: log.exists() and "rounds on local" in log.read_text(), "first round")
    os.killpg(process.pid, signal.SIGINT)
    assert "stopping after this round" in process.stderr.readline()
    os.killpg(process.pid, signal.SIGINT)
    code, _, err = finished(process)
    assert code == 1
    assert f"interrupted\nraylfl: raylfl resume {folder} goes on with it" in err


def test_ctrl_c_ends_a_run_on_ray_and_leaves_no_process(command, config, tmp_path):
    process, folder = command("run", str(config), *RAY), tmp_path / "runs" / "tiny" / "it"
    wait_for_rounds(process, folder, 3)
    processes = family(process)
    assert len(processes) > 5  # the cluster's own, the server's and two workers'
    os.killpg(process.pid, signal.SIGINT)  # as a terminal does it: to everybody in the foreground
    code, _, err = finished(process)
    assert code == 1
    assert "Traceback" not in err
    assert alive(processes) == []
    check_that_it_resumes(folder, err)


def test_a_killed_driver_takes_its_cluster_along_and_the_run_resumes_on_another(command, config, tmp_path):
    """Of another size, with another number of workers."""
    process, folder = command("run", str(config), *RAY, "checkpoint.every=2"), tmp_path / "runs" / "tiny" / "it"
    wait_for_rounds(process, folder, 5)
    processes = family(process)
    process.kill()
    process.wait()
    for left in alive(processes):  # Ray's agents need a minute to see that their raylet is gone
        assert "Agent" in left.name()
        left.kill()
    done = (folder / "metrics.jsonl").read_text().count("\n")
    check_against_an_undisturbed_run(folder, done, ["runtime.workers=1", "runtime.object_store_mb=90"])
