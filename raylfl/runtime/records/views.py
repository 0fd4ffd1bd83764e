"""Runs at URLs, read through temporary local copies."""

from __future__ import annotations

import atexit
import os
import shutil
import tempfile
import time
from pathlib import Path

from raylfl.config.urls import is_url, join
from raylfl.runtime.records.mirror import WATCH_SECONDS, Owner
from raylfl.runtime.records.storage import Storage, fetch

_views: dict[Path, str] = {}


def here(place: str | os.PathLike[str], whole: bool = False) -> Path:
    """A local folder with the files at a path or URL, for reading only.

    For a path, the result is this path. For a URL, it is a temporary copy, which is deleted when this process ends.
    whole: whether to copy checkpoints and parameters, too; otherwise only the files that reports read are copied.
    """
    if not is_url(place):
        return Path(place)
    url = str(place).rstrip("/")
    view = Path(tempfile.mkdtemp(prefix="raylfl-")) / url.rpartition("/")[2]
    atexit.register(shutil.rmtree, view.parent, ignore_errors=True)
    _views[view] = url
    view.mkdir()
    fetch(Storage(url), view, whole)
    return view


def running(path: Path) -> bool:
    """Whether a process carries out the run at the URL from which `here` copied this folder.

    Such a process has renewed its ownership within the last WATCH_SECONDS and has not released the run. False for a
    folder that is no copy.
    """
    url = address(path)
    owner = Owner.of(Storage(url)) if is_url(url) else None
    return owner is not None and owner.held and time.time() - owner.beat < WATCH_SECONDS


def address(path: Path) -> str:
    """The URL from which `here` copied this folder; for a folder that is no copy, its path."""
    for view, url in _views.items():
        if path.is_relative_to(view):
            return join(url, *path.relative_to(view).parts)
    return str(path)
