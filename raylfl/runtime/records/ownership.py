"""Which process executes a run at a URL, and which local folder was copied there."""

from __future__ import annotations

import json
import os
import platform
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from pathlib import Path

from raylfl.config.urls import check_url
from raylfl.errors import BadConfig
from raylfl.runtime.records.files import atomic_write, read_plain
from raylfl.runtime.records.storage import Storage, leads_outside

OWNER, COPY, STATE = ".owner.json", ".copy.json", ".mirror.json"
Copied = dict[str, list[int] | None]  # size, time and inode of each file copied; None: unknown


@dataclass
class Owner:
    """The content of .owner.json: the process that executes a run at a URL, and the token of its local folder."""

    token: str
    command: str = ""
    host: str = field(default_factory=platform.node)
    process: int = field(default_factory=os.getpid)

    def encode(self) -> bytes:
        return (json.dumps(asdict(self)) + "\n").encode()

    @staticmethod
    def of(storage: Storage) -> Owner | None:
        """The owner of the files in this storage; None if there is no owner. Raises BadConfig for a damaged file."""
        content = storage.read(OWNER)
        if content is None:
            return None
        try:
            return Owner(**json.loads(content))
        except (ValueError, TypeError, RecursionError):
            raise BadConfig(f"{storage.url}/{OWNER} is damaged: delete it if no machine executes this run") from None


@dataclass
class MirrorState:
    """The content of .mirror.json in a local folder.

    url: of the run. token: identifies the local folder. copied: the copied files. source: the token of the folder whose
    copy at the URL was fetched into this one; "" for a new run.
    """

    url: str
    token: str
    copied: Copied
    source: str = ""

    def write(self, folder: Path) -> None:
        atomic_write(folder / STATE, json.dumps(asdict(self)))

    @staticmethod
    def read(folder: Path) -> MirrorState:
        """Reads a folder's .mirror.json; raises BadConfig if it is damaged, or names files outside the URL."""
        with suppress(OSError, ValueError, TypeError, AttributeError, RecursionError, BadConfig):
            state = MirrorState(**json.loads(read_plain(folder / STATE)))
            check_url(state.url)  # a path with `..` could name this folder as the staging folder of another URL
            texts = isinstance(state.token, str) and isinstance(state.source, str)
            stamps = all(stamp is None or len(stamp) == 3 for stamp in state.copied.values())
            if texts and stamps and not any(map(leads_outside, state.copied)):
                return state
        raise BadConfig(
            f"{folder / STATE} is damaged: resume the run by its URL, or delete the file to continue without a URL"
        )


def copy_token(storage: Storage) -> str | None:
    """The token of the local folder from which the files in this storage were copied; None if there is none."""
    content = storage.read(COPY)
    try:
        return None if content is None else str(json.loads(content)["token"])
    except (ValueError, TypeError, KeyError):
        return ""


def newest_token(storage: Storage, owner: Owner | None) -> str | None:
    """The token of the local folder that has the newest state of a run: its owner's, or else that of the copy."""
    return copy_token(storage) if owner is None else owner.token


def in_use(url: str, owner: Owner, remedy: str | None = None) -> BadConfig:
    """The error for a run at a URL that another process owns; remedy: what to do if the process has ended."""
    return BadConfig(
        f"{url} is in use by process {owner.process} on {owner.host} ({owner.command}): wait for it, or stop it first; "
        f"if it has ended, {remedy or f'raylfl resume {url} --take-over'}"
    )
