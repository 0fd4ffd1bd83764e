"""Run directories deleted, moved or changed during a run: one clear error, and the remaining state is kept."""

import os
import shutil
from pathlib import Path

import pytest
import torch

import raylfl
from raylfl.errors import BadConfig, RaylflError
from raylfl.runtime.records.run_dir import RunDirectory
from tests.runtime.faults import Killed, carry_out, checkpoints, killed, log_of, outcome
from tests.runtime.tiny import FOCUS
from tests.shares import also


def at(r, action, phase="train"):
    """A fault that carries out an action as round r reaches the phase."""
    return lambda phase_now, now: action() if (phase_now, now) == (phase, r) else None


@pytest.mark.parametrize(("r", "phase"), [(3, "train"), (5, "checkpoint")])
def test_a_directory_deleted_during_a_run_ends_the_run_and_is_not_made_again(tmp_path, r, phase):
    """Also while the last round is written down: it is no finished run."""
    run = tmp_path / "run"
    with pytest.raises(RaylflError, match="was moved or deleted while the run wrote to it"):
        carry_out(FOCUS, run, fault=at(r, lambda: shutil.rmtree(run), phase))
    assert not run.exists()


def test_another_directory_in_its_place_is_not_written_to_and_the_moved_one_is_resumed(tmp_path, clean):
    run, moved = tmp_path / "run", tmp_path / "moved"

    def exchange():
        run.rename(moved)
        run.mkdir()

    with pytest.raises(RaylflError, match="was moved or deleted while the run wrote to it"):
        carry_out(FOCUS, run, fault=at(3, exchange))
    assert list(run.iterdir()) == []
    carry_out(FOCUS, moved, resume=True)
    assert "resumed at round 2" in log_of(moved)
    assert outcome(moved) == clean


def test_a_record_changed_by_others_ends_the_run_and_lost_rounds_are_computed_again(tmp_path, clean):
    """Each way of a change: test_record_file.py."""
    run = tmp_path / "run"
    with pytest.raises(RaylflError, match=r"metrics.jsonl was changed while the run wrote to it"):
        carry_out(FOCUS, run, fault=at(3, (run / "metrics.jsonl").unlink))
    assert not (run / "summary.json").exists()
    carry_out(FOCUS, run, resume=True)
    assert outcome(run) == clean


def test_deleted_checkpoints_take_no_client_state_with_them(tmp_path, clean):
    """The next checkpoint holds the states of all clients, because the earlier ones are gone."""
    run = tmp_path / "run"

    def fault(phase, r):
        if (phase, r) == ("log", 3):
            shutil.rmtree(run / "checkpoints")
        if (phase, r) == ("collect", 4):
            raise Killed

    killed(lambda: carry_out(FOCUS, run, fault=fault))
    assert checkpoints(run) == ["round_000004"]
    carry_out(FOCUS, run, resume=True)
    assert "resumed at round 4" in log_of(run)
    assert outcome(run) == clean


# -- links and names from outside ------------------------------------------------------------------------------------


@pytest.mark.parametrize("run_id", ["../../elsewhere", "/tmp/elsewhere", "..", ".", ".hidden", "a/b", "a\0b", ""])
def test_an_id_that_leads_elsewhere_is_refused_by_the_directory_itself(tmp_path, run_id):
    with pytest.raises(BadConfig, match=r"logging.id=.*must be the name of one folder"):
        RunDirectory.create(tmp_path / "runs", "name", run_id, 0)
    with pytest.raises(BadConfig, match=r"name=.*must be the name of one folder"):
        RunDirectory.create(tmp_path / "runs", run_id, None, 0)
    assert not (tmp_path / "runs").exists()


def test_a_lock_that_is_a_link_is_refused_with_a_message(finished, tmp_path):
    (finished / ".lock").unlink()
    (finished / ".lock").symlink_to(tmp_path / "target")
    with pytest.raises(BadConfig, match="cannot be written, or locked"):
        RunDirectory(finished).open()
    with pytest.raises(BadConfig, match="is a symbolic link"):
        raylfl.resume(finished, ["rounds=4"])
    assert not (tmp_path / "target").exists()


LINKS = {  # name in the run directory -> whether it is a folder
    ".writing": False,
    "metrics.jsonl": False,
    "checkpoints": True,
    "checkpoints/.round_000003.tmp": True,
    "checkpoints/round_000002/server.pt": False,
    "report/index.html": False,
    "config.yaml": False,
    "wandb": True,
    ".made_here": False,
}


@pytest.mark.parametrize("name", LINKS)
@pytest.mark.parametrize("exists", [also(True), False])
def test_a_link_out_of_the_directory_is_refused_before_anything_is_written(finished, tmp_path, name, exists):
    """Lightning, wandb and the report write by paths: they must find no link."""
    target, link = tmp_path / "target", finished / name
    if exists:
        shutil.copytree(link, target) if link.is_dir() else target.mkdir() if LINKS[name] else target.touch()
        if link.is_file():
            shutil.copy2(link, target)
    before = sorted((path, path.read_bytes()) for path in tmp_path.rglob("target*/**/*") if path.is_file())
    shutil.rmtree(link) if link.is_dir() else link.unlink(missing_ok=True)
    link.parent.mkdir(parents=True, exist_ok=True)
    link.symlink_to(target)
    with pytest.raises(BadConfig, match=r"is a symbolic link to|has no config\.yaml"):
        raylfl.resume(finished, ["rounds=4", "logging.report=true", "logging.loggers=csv"])
    with pytest.raises(BadConfig, match="is a symbolic link to"):
        RunDirectory(finished).open()
    assert target.exists() == exists
    after = sorted((path, path.read_bytes()) for path in tmp_path.rglob("target*/**/*") if path.is_file())
    assert after == before


def test_links_within_the_directory_and_to_it_are_used(finished, tmp_path):
    """wandb makes such links."""
    (finished / "wandb").mkdir()
    (finished / "wandb" / "latest").symlink_to("run-1")
    (finished / "notes").symlink_to(finished / "log.txt")
    (tmp_path / "short").symlink_to(finished)
    assert len(raylfl.resume(tmp_path / "short", ["rounds=3"]).metrics) == 3


def test_a_copy_of_hard_links_is_resumed_without_a_change_of_the_original(finished, tmp_path, undrawn):
    """`cp -al` copies a run without its bytes: what appends to a file, or writes it anew, would write both."""
    raylfl.resume(finished, ["rounds=3", "logging.report=true", "logging.loggers=csv"])
    before = {path: path.read_bytes() for path in finished.rglob("*") if path.is_file()}
    copy = shutil.copytree(finished, tmp_path / "copy", copy_function=os.link)
    longer = raylfl.resume(copy, ["rounds=5"])
    raylfl.write_report([copy], copy / "report")
    assert len(longer.metrics) == 5
    assert {path: path.read_bytes() for path in finished.rglob("*") if path.is_file()} == before
    assert torch.equal(raylfl.resume(finished, ["rounds=5"]).params, longer.params)


def test_a_report_over_hard_links_leaves_the_other_files_as_they_are(finished, tmp_path, undrawn):
    raylfl.write_report([finished], tmp_path / "one")
    copy = Path(shutil.copytree(tmp_path / "one", tmp_path / "two", copy_function=os.link))
    for path in copy.iterdir():
        os.chmod(path, 0o644)
    (copy / "index.html").write_text("changed in both")
    raylfl.write_report([finished], copy)
    assert (tmp_path / "one" / "index.html").read_text() == "changed in both"
    assert (copy / "index.html").read_text() != "changed in both"


def test_two_directories_with_one_lock_file_are_locked_apart_once_no_run_holds_it(finished, tmp_path, monkeypatch):
    def opened(folder, word):
        monkeypatch.setattr("sys.argv", ["raylfl", word])
        return RunDirectory(folder).open()

    running = opened(finished, "running")
    running.claim()
    copy = Path(shutil.copytree(finished, tmp_path / "copy", copy_function=os.link))
    for folder in (finished, copy):
        with pytest.raises(BadConfig, match=r"in use by another process \(raylfl running\)"):
            opened(folder, "other")
    running.close()
    first, second = opened(copy, "first"), opened(finished, "second")
    assert [(folder / ".lock").read_text() for folder in (copy, finished)] == ["raylfl first", "raylfl second"]
    with pytest.raises(BadConfig, match=r"in use by another process \(raylfl first\)"):
        opened(copy, "third")
    assert (copy / ".lock").read_text() == "raylfl first"
    first.close()
    second.close()
