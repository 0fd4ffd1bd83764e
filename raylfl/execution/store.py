"""The store of runs: the folder of a config, in which the run is complete, interrupted or not begun.

The identity of a run is a digest of its config and of raylfl's source. A new run has it in identity.txt; an existing
run is used if the file is equal, and the source of the user's modules has not changed since the run began.
"""

import hashlib
import itertools
import re
import secrets
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any

from raylfl.config.identity import flatten, identity
from raylfl.config.load import Config
from raylfl.config.urls import join
from raylfl.execution.planned import PlannedRun
from raylfl.python.api import IDENTITY
from raylfl.report.labels import canonical
from raylfl.runtime.records import sources
from raylfl.runtime.records.files import read_plain
from raylfl.runtime.records.run_dir import id_exists

PACKAGE = Path(__file__).resolve().parents[1]


def plan(config: Config) -> PlannedRun:
    """The planned run of a config, in the folder of the existing run if there is one.

    Without `logging.id` the folder is `<algorithm>-s<seed>-<digest>`, with `-2`, `-3`, ... if the source of a user's
    module has changed since. A run with objects that other processes cannot import is always a new one, because their
    source is not known. Raises BadConfig if `logging.id` is the id of another run.
    """
    resolved, logging, name = config.resolved, config.logging, config.top.name
    label = f"{resolved['algorithm']['name']}, seed {config.top.seed}"
    key = secrets.token_hex(32) if config.objects else identity_of(resolved)
    stem = logging.id or f"{words_of(resolved['algorithm']['name'])}-s{config.top.seed}-{key[:8]}"
    for count in itertools.count(1):
        id_ = stem if count == 1 else f"{stem}-{count}"
        url = None if logging.url is None else join(logging.url, name, id_)
        content = {**resolved, "logging": {**resolved["logging"], "id": id_}}
        run = PlannedRun(label, content, logging.folder / name / id_, None, url, key, config.objects)
        run.fetch()
        if not (run.path.exists() if url is None else run.begun):
            return run
        saved = sources.read(run.path)  # of the user's modules
        if read_plain(run.path / IDENTITY) == str(run.identity).encode() and sources.today(saved) == saved:
            return run
        if logging.id is not None:
            raise id_exists(url or run.path)
    raise AssertionError


def identity_of(config: Mapping[str, Any]) -> str:
    """The identity of a run: a sha256 of the keys of its config that influence results, and of raylfl's source."""
    records = config["checkpoint"]["best"], config["logging"]["loggers"]
    text = canonical([flatten(identity(config, of="digest")), config["seed"], records, source_digest()])
    return hashlib.sha256(text.encode()).hexdigest()


@cache
def source_digest() -> str:
    """The sha256 of raylfl's Python files, as they were at the first call."""
    digest = hashlib.sha256()
    for path in sorted(PACKAGE.rglob("*.py")):
        digest.update(f"{path.relative_to(PACKAGE)}\0".encode() + path.read_bytes() + b"\0")
    return digest.hexdigest()


def words_of(label: str) -> str:
    """The label of a setting as part of a folder's name."""
    return re.sub(r"[^A-Za-z0-9.]+", "-", label).strip("-").lower()
