"""A run's directory: never overwritten, one process at a time, refused before training where it cannot be written."""

import errno
import fcntl
import json
import os
import sys
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from itertools import islice

import pytest
import yaml

import raylfl
from raylfl.errors import BadConfig, RaylflError
from raylfl.runtime import session
from raylfl.runtime.records import run_dir
from raylfl.runtime.records.files import Locks
from raylfl.runtime.records.run_dir import RunDirectory, remedy
from tests.runtime.tiny import ONE_BY_ONE as TINY


def test_the_summary_has_the_command_that_was_typed_and_not_that_of_the_process_of_the_rounds(finished, monkeypatch):
    """The process that holds the lock writes its command there; a server actor only reads it."""
    monkeypatch.setattr(sys, "argv", ["raylfl", "resume", "a b", "rounds=4"])
    typed = RunDirectory(finished).open()
    monkeypatch.setattr(sys, "argv", ["default_worker.py", "--node-ip-address=127.0.0.1"])
    RunDirectory(finished).write_summary({"rounds": 4})
    typed.close()
    assert json.loads((finished / "summary.json").read_text())["command"] == "raylfl resume 'a b' rounds=4"


def test_a_lock_held_for_a_moment_is_waited_for(finished, monkeypatch):
    """`in_use` takes the lock to test whether another process holds it."""
    with (finished / ".lock").open() as asking:
        fcntl.flock(asking, fcntl.LOCK_SH)
        monkeypatch.setattr(run_dir.time, "sleep", lambda seconds: asking.close())
        RunDirectory(finished).open().close()
        assert asking.closed


def test_a_second_run_on_one_directory_is_refused_until_the_first_ends(finished, monkeypatch):
    """The system's lock belongs to an open file, so that two in one process stand for two processes."""

    def again(progress):
        assert RunDirectory(finished).in_use
        with pytest.raises(BadConfig, match=r"is in use by another process \(raylfl resume it\): wait for it"):
            raylfl.resume(finished, ["rounds=4"])

    monkeypatch.setattr(sys, "argv", ["raylfl", "resume", "it"])
    assert len(raylfl.resume(finished, ["rounds=4"], watch=again).metrics) == 4
    assert not RunDirectory(finished).in_use


def test_the_lock_on_writing_rounds_is_waited_for_as_long_as_the_limit_says(finished, monkeypatch):
    """A server actor ends a moment after its killed driver, and may write rows until then."""
    other, here = Locks(finished), RunDirectory(finished)
    assert other.take(".writing")
    monkeypatch.setattr(run_dir.time, "sleep", lambda seconds: other.close())
    here.claim()
    here.close()
    assert other.take(".writing")
    monkeypatch.setattr(run_dir.time, "sleep", lambda seconds: None)
    monkeypatch.setattr(run_dir, "WAIT_SECONDS", 0.0)
    with pytest.raises(RaylflError, match=r"still writes to .* after 0.0 s"):
        here.claim()
    here.close()
    other.close()


def test_a_file_system_without_locks_is_refused_before_training(runs, tmp_path, monkeypatch):
    def without(file, operation):
        raise OSError(errno.ENOLCK, os.strerror(errno.ENOLCK))

    monkeypatch.setattr("fcntl.flock", without)
    with pytest.raises(BadConfig, match=r"cannot be written, or locked \(No locks available\): logging.dir=DIR sets"):
        raylfl.run(TINY, [*runs, "logging.id=it"])
    assert not (tmp_path / "runs" / "tiny" / "it" / "metrics.jsonl").exists()


def refused(*args, **options):
    """A generator of rounds that the cluster refuses to start."""
    raise BadConfig("the cluster lacks resources")
    yield


@pytest.mark.parametrize("place", ["{}/runs", "file://{}/far"])
def test_a_run_that_is_refused_before_its_first_round_leaves_nothing_and_offers_no_resume(tmp_path, monkeypatch, place):
    monkeypatch.setenv("RAYLFL_STAGING", str(tmp_path / "staging"))
    monkeypatch.setattr(session, "rows_in_process", refused)
    overrides = [f"logging.dir={place.format(tmp_path)}", "logging.report=false", "logging.id=it"]
    with pytest.raises(BadConfig, match="lacks resources") as caught:
        raylfl.run(TINY, overrides)
    assert not getattr(caught.value, "__notes__", [])
    assert not [path for path in tmp_path.rglob("*") if path.is_file() and path.name != "key"]  # see provenance.py
    monkeypatch.undo()
    monkeypatch.setenv("RAYLFL_STAGING", str(tmp_path / "staging"))
    assert len(raylfl.run(TINY, overrides).metrics) == TINY["rounds"]


def test_a_run_whose_mistake_shows_after_a_round_is_kept(runs, tmp_path, monkeypatch):
    carry_out = session.rows_in_process

    def one_round(*args, **options):
        yield next(carry_out(*args, **options))
        raise BadConfig("training_step returned no loss")

    monkeypatch.setattr(session, "rows_in_process", one_round)
    with pytest.raises(BadConfig) as caught:
        raylfl.run(TINY, [*runs, "logging.id=it"])
    assert "continues it" in caught.value.__notes__[0]
    assert (tmp_path / "runs" / "tiny" / "it" / "metrics.jsonl").exists()


@pytest.mark.parametrize("done", [2, 3])
def test_settings_with_which_a_resume_is_refused_are_not_saved(finished, monkeypatch, done):
    """After a round that the saved settings do not have, the new ones are: with the saved ones it could not go on."""
    before, carry_out = yaml.safe_load((finished / "config.yaml").read_text()), session.rows_in_process

    def some_rounds(*args, **options):
        with closing(carry_out(*args, **options)) as rows:
            yield from islice(rows, done)
        yield from refused()

    with monkeypatch.context() as patch:
        patch.setattr(session, "rows_in_process", some_rounds)
        with pytest.raises(BadConfig, match="lacks resources") as caught:
            raylfl.resume(finished, ["rounds=4", "runtime.workers=2"])
    assert caught.value.__notes__ == [f"raylfl resume {finished} continues it"]
    after = yaml.safe_load((finished / "config.yaml").read_text())
    assert (after == before) is (done == 2)
    assert len(raylfl.resume(finished, [] if done > 2 else ["rounds=4"]).metrics) == 4


def test_an_existing_id_is_refused_with_the_command_to_resume(runs):
    folder = raylfl.run(TINY, [*runs, "logging.id=it", "rounds=1"]).run_dir
    before = {p: p.read_bytes() for p in folder.iterdir() if p.is_file()}
    with pytest.raises(BadConfig, match=f"never overwritten; `raylfl resume {folder}` continues"):
        raylfl.run(TINY, [*runs, "logging.id=it"])
    assert {p: p.read_bytes() for p in folder.iterdir() if p.is_file()} == before


def test_runs_started_in_the_same_second_have_directories_of_their_own(tmp_path):
    with ThreadPoolExecutor(8) as threads:
        made = list(threads.map(lambda _: RunDirectory.create(tmp_path, "x", None, 0), range(8)))
    assert len({d.path for d in made}) == 8
    for directory in made:
        directory.close()


def test_a_place_that_cannot_be_written_is_refused_before_training(tmp_path, monkeypatch):
    (tmp_path / "file").write_text("not a folder")
    for place in (tmp_path / "file", tmp_path / "file" / "deeper"):
        with pytest.raises(BadConfig, match=r"logging.dir=.*cannot make a run directory there"):
            raylfl.run(TINY, [f"logging.dir={place}"])

    def readonly(self, *args, **kwargs):
        raise OSError(errno.EROFS, os.strerror(errno.EROFS))

    monkeypatch.setattr("pathlib.Path.mkdir", readonly)
    with pytest.raises(BadConfig, match="Read-only file system"):
        raylfl.run(TINY, [f"logging.dir={tmp_path}/runs"])


def test_each_failure_to_write_has_its_remedy():
    remedies = {number: remedy(OSError(number, "")) for number in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)}
    assert set(remedies.values()) == {"free some space"}
    assert remedy(OSError(errno.EROFS, "")) == remedy(OSError(errno.EACCES, "")) == "make it writable"


def test_a_log_that_cannot_be_written_ends_no_run(finished):
    (finished / "log.txt").unlink()
    (finished / "log.txt").mkdir()
    assert len(raylfl.resume(finished, ["rounds=3"]).metrics) == 3
