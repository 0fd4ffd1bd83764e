"""The code that a run or a sweep may run: classes that its config names, and saved Python objects.

A config imports the class at each `class_path`, and calls it; a cluster at `runtime.address` can run code here as well,
because calls and results are pickles. `sign` therefore writes a keyed checksum of the saved config into .made_here; the
key is in a file that only this user can read, in the folder of `RAYLFL_STAGING`. A config without a valid checksum is
used only if it names components of raylfl alone and no cluster, or if the caller trusts it.

Objects that a config cannot name are saved in objects.pkl, each pickled by value: {class path: bytes}. objects.json has
its sha256, and the reasons why objects were not saved. As loading a pickle executes code, objects.pkl is loaded only if
the caller trusts the directory; checkpoints and records need no such trust.
"""

import hashlib
import hmac
import json
import os
import pickle
import secrets
import shlex
from collections.abc import Collection, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from io import BytesIO
from pathlib import Path
from typing import Any

from raylfl.config.registries import REGISTRIES
from raylfl.config.urls import cache_folder
from raylfl.errors import BadConfig, UnusableConfig, headline
from raylfl.runtime.records.files import atomic_write, read_plain

MARK, KEY = ".made_here", "key"
FILE, INDEX = "objects.pkl", "objects.json"
LARGEST = 256 * 2**20  # largest size of one object in bytes; a larger data set should be passed again
SHIPPED = tuple(f"{registry.package}." for registry in REGISTRIES.values())
NAMES = {*REGISTRIES, "availability", "loggers", "name"}  # keys whose values may be class paths


def foreign(value: Any, keys: tuple[str, ...] = ()) -> Iterator[str]:
    """Yields what may run code of others in a config, or in a sweep's content: class paths, and a cluster's address.

    Class paths of raylfl's own components are left out. keys: those that lead to `value`.
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
    """Raises UnusableConfig if a saved config names code and was not written on this machine.

    path: of the saved config; config: its content. trusted: class paths that need no check. way: how to give trust.
    address: the folder of the config, or the URL that it was copied from.
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
        return hmac.compare_digest(mark, _checksum(read_plain(cache_folder() / KEY), path)) and bool(mark)
    except (OSError, ValueError, TypeError):
        return False


def _checksum(key: bytes, path: Path) -> str:
    if len(key) < 32:
        raise ValueError("no key")
    return hmac.new(key, read_plain(path), "sha256").hexdigest()


def _key() -> bytes:
    """The key of this user on this machine, made on first use. Raises OSError if it cannot be stored."""
    file = cache_folder() / KEY
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


# -- saved objects --------------------------------------------------------------------------------------------------


class _Limited(BytesIO):
    """A buffer in memory that raises ValueError beyond LARGEST bytes."""

    def write(self, data: Any) -> int:
        if self.tell() + len(memoryview(data)) > LARGEST:
            raise ValueError(f"it takes more than {LARGEST >> 20} MiB")
        return super().write(data)


@dataclass(frozen=True)
class KeptObjects:
    """The content of objects.json: which objects of a run were saved.

    left_out: class path of each object -> the reason why it was not saved, None if it was. sha256: that of objects.pkl.
    """

    left_out: dict[str, str | None]
    sha256: str | None

    def load(self, folder: Path) -> dict[str, Any]:
        """The saved objects by class path; executes code from objects.pkl. Raises BadConfig if that is damaged."""
        if self.sha256 is None:
            return {}
        data = read_plain(folder / FILE)
        if hashlib.sha256(data).hexdigest() != self.sha256:
            raise BadConfig(f"{folder / FILE} does not match its checksum in {INDEX}: give the objects again")
        try:
            return {path: pickle.loads(content) for path, content in pickle.loads(data).items()}
        except Exception as error:
            raise BadConfig(f"{folder / FILE} cannot be loaded here: {type(error).__name__}: {error}") from error


def keep(run_dir: Any, objects: Mapping[str, Any]) -> str | None:
    """Saves a run's objects (by class path) in its directory; returns a line on how to resume it, None without objects.

    run_dir: the run's `RunDirectory`. An object that cannot be pickled is left out.
    """
    if not objects:
        return None
    import cloudpickle

    pickles, left_out, sha256 = dict[str, bytes](), dict[str, str | None](), None
    for path, value in objects.items():
        memory, left_out[path] = _Limited(), None
        try:
            cloudpickle.dump(value, memory)
            pickles[path] = memory.getvalue()
        except Exception as error:
            left_out[path] = headline(error)
    if pickles:
        data = pickle.dumps(pickles)
        run_dir.write(FILE, data)
        sha256 = hashlib.sha256(data).hexdigest()
    run_dir.write(INDEX, json.dumps({"sha256": sha256, "left_out": left_out}, indent=2) + "\n")
    ways = [f"{FILE} keeps what it needs: {on_trust(run_dir.address)}"] if pickles else []
    for path, reason in left_out.items():
        if reason is not None:
            ways.append(f"{path} is not kept ({reason}): give it again to raylfl.resume")
    subject = f"{', '.join(left_out)} {'is' if len(left_out) == 1 else 'are'} known to this process only"
    return f"{subject}, so the run cannot be resumed from its config alone; {'; '.join(ways)}"


def on_trust(address: str | Path) -> str:
    """The command that resumes the run in this folder, or at this URL, with its saved objects and classes."""
    return f"raylfl resume {shlex.quote(str(address))} --trust"


def read(folder: Path) -> KeptObjects:
    """Reads objects.json in a run directory; empty if there is no file. Raises BadConfig if it is damaged."""
    text = read_plain(folder / INDEX)
    if not text:
        return KeptObjects({}, None)
    try:
        content = json.loads(text)
        return KeptObjects(dict(content["left_out"]), content["sha256"])
    except (ValueError, KeyError, TypeError) as error:
        raise BadConfig(f"{folder / INDEX} is damaged: {type(error).__name__}") from error
