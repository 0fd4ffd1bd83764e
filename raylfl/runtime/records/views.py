"""Runs at URLs, read through temporary local copies."""

from __future__ import annotations

import atexit
import os
import shutil
import tempfile
from pathlib import Path

from raylfl.config.urls import is_url, join
from raylfl.runtime.records.ownership import Owner
from raylfl.runtime.records.storage import Storage, fetch

_views: dict[Path, str] = {}


def local_view(source: str | os.PathLike[str], complete: bool = False) -> Path:
    """A local folder with the files at a path or URL, for reading only.

    For a path, the result is this path. For a URL, it is a temporary copy, which is deleted when this process ends.
    complete: whether to copy checkpoints and parameters, too; otherwise only the files that reports read are copied.
    """
    if not is_url(source):
        return Path(source)
    url = str(source).rstrip("/")
    view = Path(tempfile.mkdtemp(prefix="raylfl-")) / url.rpartition("/")[2]
    atexit.register(shutil.rmtree, view.parent, ignore_errors=True)
    _views[view] = url
    view.mkdir()
    fetch(Storage(url), view, complete)
    return view


def owner_of(path: Path) -> Owner | None:
    """The process that executes the run at the URL from which `local_view` copied this folder, or was killed there.

    None if no process does, or if the folder is no copy.
    """
    url = address(path)
    return Owner.of(Storage(url)) if is_url(url) else None


def address(path: Path) -> str:
    """The URL from which `local_view` copied this folder; for a folder that is no copy, its path."""
    for view, url in _views.items():
        if path.is_relative_to(view):
            return join(url, *path.relative_to(view).parts)
    return str(path)
