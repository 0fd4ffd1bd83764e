"""Python objects of a run that its config cannot name, saved in the run directory so that the run can be resumed.

objects.pkl has the objects, each pickled by value: {class path: bytes}. objects.json has the sha256 of objects.pkl and
the reasons why objects were not saved. Loading a pickle executes code from it, so objects.pkl is loaded only if the
caller trusts the directory; checkpoints and records need no such trust.
"""

from __future__ import annotations

import hashlib
import json
import pickle
import shlex
from collections.abc import Mapping
from dataclasses import dataclass
from io import BytesIO
from pathlib import Path
from typing import Any

from raylfl.errors import BadConfig, headline
from raylfl.runtime.records.files import read_plain
from raylfl.runtime.records.run_dir import RunDirectory

FILE, INDEX = "objects.pkl", "objects.json"
LARGEST = 256 * 2**20  # largest size of one object in bytes; a larger data set should be passed again


class _Limited(BytesIO):
    """A buffer in memory that raises ValueError beyond LARGEST bytes."""

    def write(self, data: Any) -> int:
        if self.tell() + len(memoryview(data)) > LARGEST:
            raise ValueError(f"it takes more than {LARGEST >> 20} MiB")
        return super().write(data)


@dataclass(frozen=True)
class KeptObjects:
    """The content of objects.json: which objects of a run were saved.

    left_out: class path of each object -> the reason why it was not saved, None if it was saved. sha256: the checksum
    of objects.pkl; None if no object was saved.
    """

    left_out: dict[str, str | None]
    sha256: str | None

    def load(self, folder: Path) -> dict[str, Any]:
        """Loads the saved objects: class path -> object. This executes code from objects.pkl.

        folder: the run directory. Raises BadConfig if objects.pkl is damaged or cannot be loaded.
        """
        if self.sha256 is None:
            return {}
        data = read_plain(folder / FILE)
        if hashlib.sha256(data).hexdigest() != self.sha256:
            raise BadConfig(f"{folder / FILE} does not match its checksum in {INDEX}: give the objects again")
        try:
            return {path: pickle.loads(content) for path, content in pickle.loads(data).items()}
        except Exception as error:
            raise BadConfig(f"{folder / FILE} cannot be loaded here: {type(error).__name__}: {error}") from error


def keep(run_dir: RunDirectory, objects: Mapping[str, Any]) -> str | None:
    """Saves a run's objects in its directory; returns a line for the user on how to resume the run.

    objects: class path -> object; an object that cannot be pickled is left out. Without objects, nothing is saved and
    None is returned.
    """
    if not objects:
        return None
    pickles, left_out = dict[str, bytes](), dict[str, str | None]()
    for path, value in objects.items():
        content, left_out[path] = _pickle(value)
        if content is not None:
            pickles[path] = content
    sha256 = None
    if pickles:
        data = pickle.dumps(pickles)
        run_dir.write(FILE, data)
        sha256 = hashlib.sha256(data).hexdigest()
    run_dir.write(INDEX, json.dumps({"sha256": sha256, "left_out": left_out}, indent=2) + "\n")
    return _how_to_resume(run_dir.address, left_out)


def on_trust(address: str | Path) -> str:
    """The command that resumes the run in this folder, or at this URL, with its saved objects and classes."""
    return f"raylfl resume {shlex.quote(str(address))} --trust"


def _how_to_resume(address: str, left_out: Mapping[str, str | None]) -> str:
    saved = any(reason is None for reason in left_out.values())
    ways = [f"{FILE} keeps what it needs: {on_trust(address)}"] if saved else []
    for path, reason in left_out.items():
        if reason is not None:
            ways.append(f"{path} is not kept ({reason}): give it again to raylfl.resume")
    subject = f"{', '.join(left_out)} {'is' if len(left_out) == 1 else 'are'} known to this process only"
    return f"{subject}, so the run cannot be resumed from its config alone; {'; '.join(ways)}"


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


def _pickle(value: Any) -> tuple[bytes | None, str | None]:
    """Pickles an object; returns (its bytes, None) or, if it cannot be pickled, (None, the reason)."""
    import cloudpickle

    memory = _Limited()
    try:
        cloudpickle.dump(value, memory)
    except Exception as error:
        return None, headline(error)
    return memory.getvalue(), None
