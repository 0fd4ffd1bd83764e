"""The manifest of a checkpoint: its schema and its checksum. A manifest that violates one of them counts as damaged."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Annotated, Any

from pydantic import ConfigDict, Field, NonNegativeInt, StringConstraints, TypeAdapter, ValidationError
from typing_extensions import TypedDict  # pydantic does not support Python 3.11's TypedDict

from raylfl.config.formats import refuse_other
from raylfl.runtime.records.files import read_plain

Sha256 = Annotated[str, StringConstraints(pattern=r"^[0-9a-f]{64}$")]
Folder = Annotated[str, StringConstraints(pattern=r"^round_[0-9]{6,18}$")]
StateFile = Annotated[str, StringConstraints(pattern=r"^(server|clients_[0-9]{3,9})\.pt$")]
Record = Annotated[str, StringConstraints(pattern=r"^(metrics|participation|topology)\.jsonl$")]


class Manifest(TypedDict):
    """The content of manifest.json: the files of a checkpoint, the definition of its run, and the record files.

    version: the number of the file format. round: the number of finished rounds. sha256: file of the checkpoint -> its
    checksum. versions: package -> version. clients: name of a checkpoint -> the clients whose newest states it has.
    records: record file -> its size in bytes when the checkpoint was written; records_sha256: record file -> the sha256
    of these bytes.
    """

    __pydantic_config__ = ConfigDict(strict=True, extra="allow")  # type: ignore[misc]

    version: int
    round: NonNegativeInt
    sha256: dict[StateFile, Sha256]
    config_sha256: Sha256
    partition_sha256: Sha256
    device: str
    versions: dict[str, str]
    config: dict[str, Any]
    records: dict[Record, NonNegativeInt]
    records_sha256: dict[Record, Sha256]
    clients: dict[Folder, Annotated[list[NonNegativeInt], Field(min_length=1)]]


ADAPTER = TypeAdapter(Manifest)


class Damaged(Exception):
    """Raised for a checkpoint that cannot be used; the message names the file and its fault."""


def folder_of(rounds: int) -> str:
    """The name of the checkpoint after `rounds` rounds, and of its folder: `round_000100`."""
    return f"round_{rounds:06d}"


def encode(manifest: Manifest) -> str:
    """The text of manifest.json: the manifest and its own checksum."""
    return json.dumps({**manifest, "manifest_sha256": sha256_of_manifest(manifest)})


def read_manifest(folder: Path) -> Manifest:
    """Reads and checks the manifest in a checkpoint's folder.

    Raises Damaged, which names the first wrong key, or BadConfig if the manifest has the format number of an older or
    newer release.
    """
    name = f"{folder.name}/manifest.json"
    try:
        content = json.loads(read_plain(folder / "manifest.json"))
    except OSError as error:
        raise Damaged(f"{name} cannot be read: {error.strerror}") from error
    except (ValueError, RecursionError) as error:
        raise Damaged(f"{name} cannot be read: {type(error).__name__}") from error
    if not isinstance(content, dict) or content.pop("manifest_sha256", None) != sha256_of_manifest(content):
        raise Damaged(f"{name} does not match its checksum")
    if isinstance(content.get("version"), int):
        refuse_other(content["version"], folder)
    try:
        manifest = ADAPTER.validate_python(content)
    except ValidationError as error:
        first = error.errors()[0]
        key = ".".join(str(part) for part in first["loc"])
        raise Damaged(f"{name}: {key}: {first['msg']}") from None
    if folder_of(manifest["round"]) != folder.name:
        raise Damaged(f"{name}: it is of round {manifest['round']}")
    return manifest


def sha256_of_manifest(manifest: Any) -> str:
    """The sha256 of a manifest, given without its key `manifest_sha256`."""
    return hashlib.sha256(json.dumps(manifest, sort_keys=True).encode()).hexdigest()
