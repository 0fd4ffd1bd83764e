"""Runs whose directory is copied to a URL: what lies there can always be resumed elsewhere, with the same bits."""

import atexit
import hashlib
import json
import os
import shutil
import tempfile
import threading
from contextlib import nullcontext, suppress
from functools import partial

import fsspec
import pytest

import raylfl
from raylfl.config.urls import staging
from raylfl.errors import BadConfig, RaylflError
from raylfl.report.runs import load_run
from raylfl.runtime.records import mirror
from raylfl.runtime.records.files import Displaced
from raylfl.runtime.records.mirror import Mirror, local_view
from raylfl.runtime.records.storage import COPY, OWNER, Storage, StorageError
from tests.runtime.faults import outcome
from tests.runtime.tiny import FOCUS
from tests.shares import also

SHORT = {**FOCUS, "rounds": 3, "checkpoint": {"every": 1, "keep": 2}}


@pytest.fixture(scope="module")
def clean(tmp_path_factory):
    """The outcome of SHORT without a URL."""
    folder = tmp_path_factory.mktemp("clean")
    return outcome(raylfl.run(SHORT, [f"logging.dir={folder}"]).run_dir)


resume = partial(raylfl.resume, trust=True)  # of a run from another machine whose config names classes


def run(url, *overrides):
    return raylfl.run(SHORT, [f"logging.dir={url}", "logging.id=it", *overrides])


def test_a_finished_run_lies_at_the_url_whole(url, clean):
    result = run(url)
    assert result.url == f"{url}/tiny/it"
    assert result.run_dir == staging(result.url)
    there = fsspec.filesystem(url.partition(":")[0])
    files = [p for p in result.run_dir.rglob("*") if p.is_file() and not p.name.startswith(".")]
    root = there._strip_protocol(result.url)
    names = {str(p).removeprefix(f"{root}/") for p in there.find(root)}
    assert names == {p.relative_to(result.run_dir).as_posix() for p in files} | {COPY}
    assert all(there.cat_file(f"{root}/{p.relative_to(result.run_dir)}") == p.read_bytes() for p in files)
    assert outcome(result.run_dir) == clean


@pytest.fixture(scope="module")
def states():
    """The files at the URL after each change that a run of SHORT makes there."""
    store, found = fsspec.filesystem("memory").store, []

    def noted(method):
        def call(self, *args):
            result = method(self, *args)
            found.append({path: file.getvalue() for path, file in store.items()})
            return result

        return call

    with pytest.MonkeyPatch.context() as patch, tempfile.TemporaryDirectory() as folder:
        patch.setenv("RAYLFL_STAGING", folder)
        for name in ("put", "create", "write", "remove"):
            patch.setattr(Storage, name, noted(getattr(Storage, name)))
        run("memory://far/runs")
    store.clear()
    assert len(found) > 20
    return found


def faults(files):
    """Descriptions of faults in the checkpoints and the summary among the files of a run."""
    top = "/far/runs/tiny/it"
    found = ["no parameters"] * (f"{top}/summary.json" in files and f"{top}/final.pt" not in files)
    for path in (path for path in files if path.endswith("manifest.json")):
        manifest, folder = json.loads(files[path]), path.rpartition("/")[0]
        wanted = [(f"{folder}/{file}", None, sha256) for file, sha256 in manifest["sha256"].items()]
        wanted += [(f"{top}/{file}", manifest["records"][file], s) for file, s in manifest["records_sha256"].items()]
        found += [name for name, n, s in wanted if hashlib.sha256(files.get(name, b"")[:n]).hexdigest() != s]
    return found


def test_after_every_single_change_the_checkpoints_at_the_url_are_whole(states):
    assert [faults(files) for files in states] == [[]] * len(states)
    assert sum(path.endswith("manifest.json") for path in states[-1]) >= 2


@pytest.mark.parametrize("url", ["memory"], indirect=True)
def test_a_machine_lost_between_two_changes_at_the_url_is_replaced_by_another(url, machine, states, clean):
    fs, place = fsspec.filesystem("memory"), f"{url}/tiny/it"
    for number, files in enumerate(states[::8]):
        fs.store.clear()
        for path, content in files.items():
            fs.pipe_file(path, content)
        machine(f"new-{number}")
        whole = any(path.endswith("manifest.json") for path in files)
        owned = False
        if mirror.exists(place):
            owned = Storage(place).read(OWNER) is not None
            with pytest.raises(BadConfig, match="is in use by process") if owned else nullcontext():
                result = resume(place)
            result = resume(place, take_over=True)
        else:  # nothing was copied yet
            Storage(place).remove([OWNER])
            result = run(url)
        log = (result.run_dir / "log.txt").read_text()
        assert "damaged" not in log
        assert ("resumed at round" in log) == whole
        assert outcome(result.run_dir) == clean
        assert outcome(local_view(place, complete=True)) == clean


@pytest.mark.parametrize("url", ["memory"], indirect=True)
def test_a_damaged_file_at_the_url_is_noticed_and_its_round_computed_again(url, machine, clean):
    with pytest.raises(Stop):
        raylfl.run(SHORT, [f"logging.dir={url}", "logging.id=it"], watch=stop_after(1))
    there, name = Storage(f"{url}/tiny/it"), "checkpoints/round_000002/server.pt"
    content = there.read(name)
    there.write(name, content[:100] + bytes([content[100] ^ 1]) + content[101:])
    machine("b")
    result = resume(f"{url}/tiny/it")
    assert "damaged" in (result.run_dir / "log.txt").read_text()
    assert outcome(result.run_dir) == clean


class Stop(Exception):
    pass


def stop_after(r):
    def watch(progress):
        if progress.round == r:
            raise Stop

    return watch


@pytest.mark.parametrize("named_by", [str, staging], ids=["url", "folder"])
def test_the_same_machine_goes_on_from_its_own_folder_which_may_have_more(url, clean, monkeypatch, named_by):
    with monkeypatch.context() as broken:
        broken.setattr(Storage, "put", fails)
        with pytest.raises(Stop):
            raylfl.run(SHORT, [f"logging.dir={url}", "logging.id=it"], watch=stop_after(2))
    assert Storage(f"{url}/tiny/it").names() == [COPY, OWNER]  # the folder stays the owner: it has more than the URL
    result = resume(named_by(f"{url}/tiny/it"))
    assert "resumed at round 3" in (result.run_dir / "log.txt").read_text()
    assert outcome(local_view(result.url, complete=True)) == clean


def fails(self, *args):
    raise StorageError(f"{self.url} cannot be written (out of order): check the connection")


def test_a_storage_that_fails_for_a_while_is_reported_once_and_loses_nothing(url, clean, monkeypatch):
    lines, put, failed = [], Storage.put, threading.Event()

    def failing(self, *args):
        failed.set()
        fails(self, *args)

    def watch(progress):
        lines.extend(progress.messages)
        if progress.round == 0:
            monkeypatch.setattr(Storage, "put", failing)
        elif progress.round == 1:  # its checkpoint is copied after the change above
            assert failed.wait(30)
            monkeypatch.setattr(Storage, "put", put)

    result = raylfl.run(SHORT, [f"logging.dir={url}"], watch=watch)
    log = (result.run_dir / "log.txt").read_text()
    said = [line for line in log.splitlines() if "cannot be written" in line]
    assert len(said) == 1
    assert f"Nothing is lost: all files are in {result.run_dir}" in said[0]
    assert sum("is complete again" in line for line in log.splitlines()) == 1
    assert outcome(local_view(result.url, complete=True)) == clean


@pytest.mark.parametrize("url", ["memory"], indirect=True)
def test_a_slow_storage_does_not_stop_the_rounds_and_holds_one_copy_at_most(url, clean, monkeypatch):
    """No copy of rounds ends before the last round: afterwards all of them are one copy, and the end waits for it."""
    put, done, pushes, rounds, copiers = Storage.put, threading.Event(), [], [], set()

    def slow(self, source, name):
        if "checkpoints" in name:
            copiers.add(threading.current_thread())
            assert done.wait(60)
        put(self, source, name)

    def watch(progress):
        rounds.append(progress.round)
        if progress.round == 2:
            done.set()

    def noted(self):
        pushes.append(len(rounds))
        push(self)

    push = Mirror.push
    with monkeypatch.context() as patch:
        patch.setattr(Mirror, "push", noted)
        patch.setattr(Storage, "put", slow)
        result = raylfl.run(SHORT, [f"logging.dir={url}"], watch=watch)
    assert rounds == [0, 1, 2]
    others = copiers - {threading.main_thread()}
    assert others
    assert all(copier.daemon for copier in others)  # one that hangs does not hold a process that ends by an error
    assert len(pushes) <= 5  # before the rounds, of round 0, of the rest, at the end, at the release
    assert outcome(local_view(result.url, complete=True)) == clean


def test_a_last_copy_that_fails_is_an_error_that_says_where_the_run_is(url, clean, monkeypatch):
    with monkeypatch.context() as broken:
        broken.setattr(Storage, "put", fails)
        words = r"The run is finished and complete in .*: raylfl resume .* copies the rest"
        with pytest.raises(RaylflError, match=words):
            run(url)
    result = resume(staging(f"{url}/tiny/it"))
    assert outcome(local_view(result.url, complete=True)) == clean
    assert Storage(f"{url}/tiny/it").read(OWNER) is None


def test_a_run_that_another_machine_carries_out_is_refused(url, machine):
    refused = []

    def watch(progress):
        machine("b")
        words = rf"is in use by process \d+ on .*; if it has ended, raylfl resume {url}/tiny/it --take-over"
        with pytest.raises(BadConfig, match=words) as error:
            resume(f"{url}/tiny/it")
        refused.append(error)
        machine("a")

    raylfl.run(SHORT, [f"logging.dir={url}", "logging.id=it", "rounds=1"], watch=watch)
    assert len(refused) == 1  # so the run was at the URL before its first row
    machine("c")
    with pytest.raises(BadConfig, match=f"{url}/tiny/it exists and is never overwritten; `raylfl resume {url}/tiny/it"):
        run(url)
    resume(f"{url}/tiny/it")  # given back at the end


def take_over(place, folder):
    os.environ["RAYLFL_STAGING"] = folder
    resume(place, take_over=True)


PAUSES = ["checkpoints/round_000003/server.pt", also("metrics.jsonl"), also("summary.json")]


@pytest.mark.parametrize("paused", PAUSES)
@pytest.mark.parametrize("url", ["file"], indirect=True)
def test_a_machine_that_sleeps_in_a_copy_overwrites_one_file_at_most_when_it_wakes_up(
    url, machine, monkeypatch, paused, clean, fork
):
    """Another machine has taken the run over and finished it in between; the run at the URL can be continued."""
    place, put, seen = f"{url}/tiny/it", Storage.put, []

    def slow(self, source, name):
        last = name.startswith(("check", "summary")) or b'"round": 2' in source.read_bytes()
        if name == paused and last and not seen:
            fork.submit(take_over, place, str(staging("file://b"))).result()
            seen.append(outcome(local_view(place, complete=True)))
            late.append(name)
        elif seen:
            late.append(name)
        put(self, source, name)

    late = []
    monkeypatch.setattr(Storage, "put", slow)
    with suppress(Displaced):  # no error if nothing was left to copy
        run(url)
    assert (seen, late) == ([clean], [paused])
    assert outcome(local_view(place, complete=True)) == clean
    with pytest.raises(Displaced, match="was continued on another machine: raylfl resume"):
        resume(staging(place), ["rounds=4"])


def test_a_run_that_went_on_elsewhere_is_fetched_and_the_newest_old_folder_kept(url, machine, clean):
    with pytest.raises(Stop):
        raylfl.run(SHORT, [f"logging.dir={url}", "logging.id=it"], watch=stop_after(0))
    machine("b")
    resume(f"{url}/tiny/it")
    machine("a")
    result = resume(f"{url}/tiny/it", ["rounds=4"])
    assert len(result.metrics) == 4
    assert (result.run_dir.with_name(".it.old") / "config.yaml").is_file()
    machine("b")
    resume(f"{url}/tiny/it", ["rounds=5"])
    machine("a")
    assert len(resume(f"{url}/tiny/it", ["rounds=6"]).metrics) == 6
    assert len((result.run_dir.with_name(".it.old") / "metrics.jsonl").read_text().splitlines()) == 4
    assert len(local_view(f"{url}/tiny/it").joinpath("metrics.jsonl").read_text().splitlines()) == 6
    machine("b")
    with pytest.raises(Displaced, match="was continued on another machine: raylfl resume"):
        resume(staging(f"{url}/tiny/it"), ["rounds=7"])


def test_reports_read_runs_at_a_url_without_their_checkpoints_in_copies_that_end_with_the_process(url, monkeypatch):
    result, ends = run(url), []
    monkeypatch.setattr(atexit, "register", lambda *call, **options: ends.append(partial(*call, **options)))
    frame = raylfl.runs(url)
    assert frame["path"].tolist() == [result.url]
    assert frame["rounds_done"].tolist() == [3]
    view = local_view(url) / "tiny/it"
    assert not (view / "checkpoints").exists()
    assert load_run(view).complete(3)
    assert raylfl.load(result.url, trust=True).params.equal(result.params)
    for end in ends:
        end()
    assert not view.parents[1].exists()


def test_a_package_that_the_protocol_needs_is_named(machine, monkeypatch):
    monkeypatch.setitem(__import__("sys").modules, "s3fs", None)
    with pytest.raises(StorageError, match=r"s3://bucket/runs/tiny/it cannot be read \(.*\): pip install s3fs"):
        run("s3://bucket/runs")
    assert not staging("s3://bucket/runs/tiny/it").exists()


@pytest.mark.parametrize("url", ["file"], indirect=True)
def test_names_that_lead_out_of_the_folder_are_not_fetched(url, monkeypatch, tmp_path):
    run(url)
    fs = fsspec.filesystem("file")
    monkeypatch.setattr(type(fs), "find", lambda self, root: [f"{root}/config.yaml", f"{root}/../../../evil.yaml"])
    assert Storage(f"{url}/tiny/it").names() == ["config.yaml"]


def test_a_folder_that_was_copied_there_by_other_means_can_be_resumed(url, machine, tmp_path, clean):
    with pytest.raises(Stop):
        raylfl.run(SHORT, [f"logging.dir={tmp_path}/plain", "logging.id=it"], watch=stop_after(0))
    for path in (tmp_path / "plain/tiny/it").rglob("*"):
        if path.is_file() and not path.name.startswith("."):
            Storage(f"{url}/tiny/it").put(path, path.relative_to(tmp_path / "plain/tiny/it").as_posix())
    shutil.rmtree(tmp_path / "plain")
    assert outcome(resume(f"{url}/tiny/it").run_dir) == clean
    assert Mirror(staging(f"{url}/tiny/it")).state.copied
