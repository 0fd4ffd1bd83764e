"""Mirrors of run directories without a run: the order of copies, the change of a run's owner, files at a URL."""

import errno
import json
import platform
import time

import fsspec
import pytest

from raylfl.cli.listing import state_of
from raylfl.config.urls import staging
from raylfl.errors import BadConfig
from raylfl.report.runs import load_run
from raylfl.runtime.records import mirror, storage
from raylfl.runtime.records.files import Displaced
from raylfl.runtime.records.mirror import Mirror, local_view, owner_of, take
from raylfl.runtime.records.run_dir import RunDirectory
from raylfl.runtime.records.storage import STATE, MirrorState, Storage, StorageError, package_of, within

URL = "memory://far/runs/it"


def copied(url):
    """A new run directory with a config, copied to the URL."""
    run_dir = RunDirectory.create(staging(url), "tiny", "it", 0, url)
    run_dir.write("config.yaml", "rounds: 1\n")
    run_dir.copy_to_url(print)
    return run_dir


@pytest.fixture
def mirrored(machine):
    """A mirror of a folder that owns its URL."""
    folder = staging(URL)
    folder.mkdir(parents=True)
    MirrorState(URL, "mine", {}).write(folder)
    yield Mirror(folder)
    fsspec.filesystem("memory").store.clear()


FILES = (
    "metrics.jsonl",
    "checkpoints/round_000001/clients_000.pt",
    "checkpoints/round_000001/server.pt",
    "checkpoints/round_000001/manifest.json",
    "checkpoints/round_000002/server.pt",
    "checkpoints/round_000002/manifest.json",
    "summary.json",
)


def test_an_empty_cache_folder_counts_as_none(monkeypatch, tmp_path):
    monkeypatch.delenv("RAYLFL_STAGING", raising=False)
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("XDG_CACHE_HOME", "")
    assert staging("s3://bucket/runs") == tmp_path / ".cache/raylfl/s3/bucket/runs"


def test_a_manifest_is_copied_after_its_files_and_deleted_before_them(mirrored, monkeypatch):
    """The summary marks a finished run: it is copied last and deleted first."""
    copied, deleted = [], []
    mirrored.hold()
    monkeypatch.setattr(Storage, "put", lambda there, path, name: copied.append(name))
    monkeypatch.setattr(Storage, "remove", lambda there, names: deleted.extend(names))
    for name in reversed(FILES):
        (mirrored.folder / name).parent.mkdir(parents=True, exist_ok=True)
        (mirrored.folder / name).write_text(name)
    mirrored.push()
    assert (copied, deleted) == ([*FILES], [])
    for name in FILES:
        (mirrored.folder / name).unlink()
    mirrored.push()
    assert (copied, list(dict.fromkeys(deleted))) == ([*FILES], [*reversed(FILES)])
    deleted.clear()
    mirrored.push()
    assert deleted == []


def test_a_machine_that_wakes_up_after_another_took_its_run_over_writes_nothing(url, machine):
    """The first machine gives no sign of life (its process is paused), and is not dead."""
    asleep = copied(url)
    machine("b")
    folder = take(f"{url}/tiny/it", take_over=True)
    awake = RunDirectory(folder).open()
    awake.write("log.txt", "second\n")
    awake.copy_to_url(print)
    asleep.write("log.txt", "first\n")
    with pytest.raises(Displaced, match=r"was taken over by .* has what was computed here"):
        asleep.copy_to_url(print)
    asleep.close()
    assert local_view(f"{url}/tiny/it").joinpath("log.txt").read_text() == "second\n"
    awake.copy_to_url(print)
    awake.close()
    assert owner_of(local_view(f"{url}/tiny/it")) is None


def test_a_commit_copies_what_changed_and_a_seldom_one_waits_for_a_while(url, machine):
    first = copied(url)
    first.write("log.txt", "new\n")
    first.request_copy(print, seldom=True)
    assert Storage(f"{url}/tiny/it").read("log.txt") == b""
    first.copy_to_url(print)
    assert Storage(f"{url}/tiny/it").read("log.txt") == b"new\n"
    first.close()


@pytest.mark.parametrize("killed", [True, False])
def test_of_two_machines_that_take_a_run_over_only_one_gets_it(url, machine, killed):
    first = copied(url)
    if not killed:
        first.close()
    folders = []
    for name in "bc":
        machine(name)
        folders.append(take(f"{url}/tiny/it", take_over=killed))
    machine("b")
    second = RunDirectory(folders[0]).open()
    machine("c")
    third = RunDirectory(folders[1])
    with pytest.raises(BadConfig, match="is in use by process"):
        third.open()
    assert not third.in_use  # its lock is free again
    second.close()
    with pytest.raises(Displaced, match="was continued on another machine"):
        third.open()
    first.close()
    machine("a")
    with pytest.raises(Displaced, match="was continued on another machine"):
        RunDirectory(first.path).open()


def test_a_run_elsewhere_is_listed_as_running_until_it_is_given_back(url):
    run_dir = copied(url)
    run_dir.write("metrics.jsonl", "")
    run_dir.copy_to_url(print)
    record = load_run(local_view(url) / "tiny/it")
    assert state_of(record) == f"running on {platform.node()}"
    run_dir.close()
    assert state_of(record) == "stopped"


STATES = {"url": URL, "token": "mine", "copied": {}, "source": ""}
DAMAGED = {
    "a list": "[]",
    "an empty object": "{}",
    "nothing": "",
    "deep": "[" * 100_000,
    "a number as URL": json.dumps({**STATES, "url": 5}),
    "no URL": json.dumps({**STATES, "url": "folder"}),
    "a URL with ..": json.dumps({**STATES, "url": "file://../../runs/a"}),
    "a protocol that is a path": json.dumps({**STATES, "url": "/tmp/runs/a://x"}),
    "a copied file outside": json.dumps({**STATES, "copied": {"../x": None}}),
    "a copied file at the root": json.dumps({**STATES, "copied": {"/x": None}}),
    "a source that is a list": json.dumps({**STATES, "source": []}),
    "copied is a list": json.dumps({**STATES, "copied": []}),
    "a stamp is a number": json.dumps({**STATES, "copied": {"x": 3}}),
    "an unknown key": json.dumps({**STATES, "x": 3}),
}


@pytest.mark.parametrize("what", [*DAMAGED, "a link"])
def test_a_damaged_state_of_a_mirror_is_named_with_the_remedy(what, tmp_path):
    if what == "a link":
        (tmp_path / "state").write_text(json.dumps(STATES))
        (tmp_path / STATE).symlink_to(tmp_path / "state")
    else:
        (tmp_path / STATE).write_text(DAMAGED[what])
    with pytest.raises(BadConfig, match=r"\.mirror\.json is damaged: resume the run by its URL, or delete the file"):
        RunDirectory(tmp_path)


def test_a_run_with_a_damaged_state_is_fetched_again_by_its_url(url, machine):
    copied(url).close()
    folder = staging(f"{url}/tiny/it")
    (folder / STATE).write_text("[]")
    assert take(f"{url}/tiny/it") == folder
    RunDirectory(folder).open().close()


@pytest.mark.parametrize("name", ["precious.txt", "checkpoints/precious.txt"])
def test_a_folder_that_is_not_the_copy_of_a_url_deletes_and_copies_nothing_there(tmp_path, machine, name):
    """.mirror.json may come from somebody else."""
    victim = tmp_path / "victim" / name
    victim.parent.mkdir(parents=True)
    victim.write_text("precious")
    run = tmp_path / "run"
    run.mkdir()
    MirrorState(f"file://{tmp_path}/victim", "t", {name: None}).write(run)
    with pytest.raises(BadConfig, match=r"says that this folder is copied to .*, but only .* is"):
        RunDirectory(run).open()
    assert victim.read_text() == "precious"
    assert [path for path in (tmp_path / "victim").rglob("*") if path.is_file()] == [victim]


def test_a_fetch_that_fails_leaves_no_folder(url, machine, monkeypatch):
    first = copied(url)
    first.close()
    machine("b")

    def fails(*arguments, complete):
        raise StorageError("no answer")

    monkeypatch.setattr(mirror, "fetch", fails)
    with pytest.raises(StorageError, match="no answer"):
        take(f"{url}/tiny/it")
    assert list(staging(f"{url}/tiny/it").parent.iterdir()) == []


# -- files at a URL ---------------------------------------------------------------------------------------------------


def test_a_storage_that_does_not_answer_is_not_waited_for():
    with pytest.raises(TimeoutError, match="no answer in 0 s"):
        within(0.01, lambda: time.sleep(0.2))


@pytest.mark.parametrize(
    ("error", "said"),
    [
        (PermissionError("denied"), "set credentials"),
        (type("NoCredentialsError", (Exception,), {})("none"), "set credentials"),
        (FileNotFoundError("bucket"), "make the bucket first"),
        (type("AuthError", (Exception,), {})("expired"), "set credentials"),
        (type("NoAuthenticationError", (Exception,), {})("no token"), "set credentials"),
        (OSError("Forbidden: b/r"), "set credentials"),  # as gcsfs says it
        (OSError("Anonymous caller is not authorized to list b"), "set credentials"),
        (OSError(errno.ENOSPC, "No space left on device"), "free some space"),
        (OSError(errno.EDQUOT, "Disk quota exceeded"), "free some space"),
        (OSError(errno.EIO, "Input/output error"), "check the connection"),
        (ImportError("Install s3fs"), "pip install s3fs"),
        (TimeoutError("no answer in 60 s"), "check the connection"),
        (TimeoutError(), "check the connection"),
    ],
)
def test_each_failure_of_a_storage_comes_with_its_remedy(error, said, monkeypatch):
    def broken(self):
        raise error

    monkeypatch.setattr(Storage, "_file_system", property(broken))
    with pytest.raises(StorageError) as caught:
        Storage("s3://b/r").names()
    reason = str(error) or type(error).__name__
    assert str(caught.value).startswith(f"s3://b/r cannot be listed ({reason}): {said}")


@pytest.mark.parametrize("url", ["memory", "file"], indirect=True)
def test_files_are_created_once_replaced_copied_and_deleted(url, tmp_path):
    there, local, copy = Storage(f"{url}/run/"), tmp_path / "local", tmp_path / "new" / "copy"
    assert (there.names(), there.read("a/b.txt")) == ([], None)
    assert there.create("a/b.txt", b"1")
    assert not there.create("a/b.txt", b"2")
    assert there.read("a/b.txt") == b"1"
    there.write("a/b.txt", b"22")
    local.write_bytes(b"333")
    there.put(local, "c/d.txt")
    assert there.names() == ["a/b.txt", "c/d.txt"]
    there.get("c/d.txt", copy)
    assert copy.read_bytes() == b"333"
    there.get("absent", copy)
    assert not copy.exists()
    there.get("absent", copy)
    there.remove(["absent", "c/d.txt"])
    assert [(name, there.read(name)) for name in there.names()] == [("a/b.txt", b"22")]


def test_every_access_reads_the_storage_and_not_an_earlier_listing(url, monkeypatch):
    there, asked = Storage(url), []
    monkeypatch.setattr(type(there._file_system[0]), "invalidate_cache", lambda fs, path=None: asked.append(path))
    for look in (there.names, lambda: there.read("a"), lambda: there.create("a", b"")):
        asked.clear()
        look()
        assert asked


def test_large_files_have_as_long_as_the_slowest_transfer_takes(url, monkeypatch, tmp_path):
    """A minute to answer, and for known bytes ten seconds a megabyte; a file of unknown size may have a gigabyte."""
    limits, there, local = [], Storage(url), tmp_path / "local"
    monkeypatch.setattr(storage, "within", lambda seconds, call: limits.append(seconds) or call())
    local.write_bytes(bytes(2 * 10**6))
    there.put(local, "large")
    there.write("small", bytes(10**5))
    there.read("small")
    there.get("large", tmp_path / "copy")
    there.remove(["small"])
    assert limits == [60 + 20, 60 + 1, 60, 60 + 2**30 / 1e5, 60]


@pytest.mark.parametrize(
    ("url", "package"),
    [
        ("s3://bucket/runs", "s3fs"),
        ("simplecache::gs://bucket/runs", "gcsfs"),
        ("sftp://host/runs", 'what this message names (SFTPFileSystem requires "paramiko" to be installed)'),
        ("nonsense://runs", "what this message names (see fsspec)"),
    ],
)
def test_the_package_of_a_protocol_is_named_or_fsspecs_own_words(url, package):
    assert package_of(url) == package
