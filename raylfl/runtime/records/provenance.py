"""Whether a run or a sweep was written on this machine; one from elsewhere may name code to run in its config.

A config imports the class at each `class_path`, and calls it; a cluster at `runtime.address` can run code here as well,
because calls and results are pickles. `sign` therefore writes a keyed checksum of the saved
config into .made_here; the key is in a file that only this user can read, in the folder of `RAYLFL_STAGING`. A config
without a valid checksum is used only if it names components of raylfl alone and no cluster, or if the caller trusts it.
"""

from __future__ import annotations

import hmac
import os
import secrets
from collections.abc import Collection, Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from raylfl.config.registries import REGISTRIES
from raylfl.config.urls import cache_folder
from raylfl.errors import UnusableConfig
from raylfl.runtime.records.files import atomic_write, read_plain

MARK, KEY = ".made_here", "key"
SHIPPED = tuple(f"{registry.package}." for registry in REGISTRIES.values())
NAMES = {*REGISTRIES, "availability", "loggers", "name"}  # keys whose values may be class paths


def foreign(value: Any, keys: tuple[str, ...] = ()) -> Iterator[str]:
    """Yields what may run code of others in a config, or in a sweep's content: class paths, and a cluster's address.

    Class paths of raylfl's own components are left out.

    keys: those that lead to `value`.
    """
    if isinstance(value, Mapping):
        for key, entry in value.items():
            yield from foreign(entry, (*keys, *str(key).split(".")))
    elif isinstance(value, list):
        for entry in value:
            yield from foreign(entry, keys)
    elif isinstance(value, str) and keys[-2:] == ("runtime", "address"):
        yield f"runtime.address={value}"
    elif isinstance(value, str) and "." in value and not value.startswith(SHIPPED):
        key = next(key for key in reversed(keys) if key not in ("grid", "choice"))
        if key == "class_path" or (key in NAMES and keys != ("name",)):  # the run's name
            yield value


def sign(path: Path, config: Mapping[str, Any]) -> None:
    """Marks the saved config at `path` as written on this machine, if it names classes outside raylfl or a cluster.

    Without a folder for the key, nothing is written, and resuming the run needs trust.
    """
    if any(foreign(config)):
        with suppress(OSError):
            atomic_write(path.with_name(MARK), _checksum(_key(), path))


def require_trust(
    path: Path, config: Mapping[str, Any], trusted: Collection[str], way: str, address: str | Path | None = None
) -> None:
    """Checks that a saved config names no code, or was written on this machine; raises UnusableConfig otherwise.

    path: of the saved config; config: its content. trusted: class paths that need no check. way: how to give trust.
    address: the folder of the config, or the URL that it was copied from, for the message.
    """
    names = sorted(set(foreign(config)) - set(trusted))
    if names and not _made_here(path):
        raise UnusableConfig(
            f"{address or path.parent} was not written on this machine by this user, or its {path.name} was changed, "
            f"and it names {', '.join(names)}: if you trust these and their code, {way}"
        )


def _made_here(path: Path) -> bool:
    try:
        mark = read_plain(path.with_name(MARK)).decode()
        return hmac.compare_digest(mark, _checksum(read_plain(_key_file()), path)) and bool(mark)
    except (OSError, ValueError, TypeError):
        return False


def _checksum(key: bytes, path: Path) -> str:
    if len(key) < 32:
        raise ValueError("no key")
    return hmac.new(key, read_plain(path), "sha256").hexdigest()


def _key_file() -> Path:
    return cache_folder() / KEY


def _key() -> bytes:
    """The key of this user on this machine, made on first use. Raises OSError if it cannot be stored."""
    file = _key_file()
    if not (key := read_plain(file)):
        file.parent.mkdir(parents=True, exist_ok=True)
        aside = file.with_name(f".{KEY}.{secrets.token_hex(4)}")
        with os.fdopen(os.open(aside, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as handle:
            handle.write(secrets.token_bytes(32))
        with suppress(FileExistsError):  # another process was first
            os.link(aside, file)
        aside.unlink()
        key = read_plain(file)
    return key
