"""Files at a URL: on any storage, within time limits, and with the remedy for each failure."""

from __future__ import annotations

import errno
import time

import fsspec
import pytest

from raylfl.runtime.records import storage
from raylfl.runtime.records.storage import Storage, StorageError, package_of, within


@pytest.fixture(params=["memory", "file"])
def url(request, tmp_path):
    yield "memory://far/runs" if request.param == "memory" else f"file://{tmp_path}/far/runs"
    fsspec.filesystem("memory").store.clear()


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
