"""The files of a checkpoint: its manifest, and a run's state as tensors; both are checked when they are read."""

import hashlib
import json
import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any

import torch
from pydantic import ConfigDict, Field, NonNegativeInt, StringConstraints, TypeAdapter, ValidationError
from torch import Tensor
from typing_extensions import TypedDict  # pydantic does not support Python 3.11's TypedDict

from raylfl.config.text import refuse_other
from raylfl.core.algorithm import ServerState, State
from raylfl.core.client_rows import Table
from raylfl.core.costs import Costs, Links
from raylfl.errors import headline
from raylfl.runtime.records.files import open_plain, read_plain
from raylfl.runtime.round.state import Average, FederationState
from raylfl.runtime.workers.backend import Backend, Handle

CHUNK_BYTES = 64 * 2**20  # largest size of the client states in one file, unless a single client has more
NUMBERS = ("seconds", "computation_seconds", "last_finite_loss")
Sha256 = Annotated[str, StringConstraints(pattern=r"^[0-9a-f]{64}$")]
Folder = Annotated[str, StringConstraints(pattern=r"^round_[0-9]{6,18}$")]
StateFile = Annotated[str, StringConstraints(pattern=r"^(server|clients_[0-9]{3,9})\.pt$")]
Record = Annotated[str, StringConstraints(pattern=r"^(metrics|participation|topology)\.jsonl$")]


class Manifest(TypedDict):
    """The content of manifest.json: the files of a checkpoint, the definition of its run, and the record files.

    sha256: file of the checkpoint -> its checksum. clients: name of a checkpoint -> the clients whose newest states it
    has. records, records_sha256: record file -> its size in bytes when the checkpoint was written, and of these the
    sha256.
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
    return f"round_{rounds:06d}"


def encode(manifest: Mapping[str, Any]) -> str:
    """The text of manifest.json: the manifest and its own checksum."""
    return json.dumps({**manifest, "manifest_sha256": _checksum(manifest)})


def read_manifest(folder: Path) -> Manifest:
    """The manifest in a checkpoint's folder. Raises Damaged with the first wrong key; BadConfig for another format."""
    name = f"{folder.name}/manifest.json"
    try:
        content = json.loads(read_plain(folder / "manifest.json"))
    except (OSError, ValueError, RecursionError) as error:
        raise Damaged(f"{name} cannot be read: {getattr(error, 'strerror', type(error).__name__)}") from error
    if not isinstance(content, dict) or content.pop("manifest_sha256", None) != _checksum(content):
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


def _checksum(manifest: Mapping[str, Any]) -> str:
    return hashlib.sha256(json.dumps(manifest, sort_keys=True).encode()).hexdigest()


# -- the state ----------------------------------------------------------------------------------------------------


def server_blob(state: FederationState) -> dict[str, Any]:
    """The content of server.pt: the state of a run without the client states."""
    return {
        "round": state.round,
        "server": pack_server(state.server),
        "buffers": state.buffers,
        **({"moments": state.moments} if len(state.moments) else {}),
        "average": None if state.average is None else vars(state.average),
        "costs": asdict(state.costs),
        "links": {name: torch.from_numpy(values) for name, values in vars(state.links).items()},
        **{name: getattr(state, name) for name in NUMBERS},
    }


def pack_server(server: ServerState) -> dict[str, Any]:
    """Converts a server state for torch.save: each `Table` becomes its state_dict, other values are unchanged."""
    return {k: {"table": v.state_dict()} if isinstance(v, Table) else v for k, v in server.items()}


def client_chunks(clients: Sequence[int], handles: dict[int, Handle], backend: Backend) -> Iterator[dict[str, Any]]:
    """Yields the contents of the files of client states; each has at most CHUNK_BYTES, or a single client."""
    if not clients:
        return
    first = backend.get([handles[clients[0]]])[0]
    size = max(1, CHUNK_BYTES // max(1, sum(t.numel() * t.element_size() for t in first.values())))
    for start in range(0, len(clients), size):
        some = list(clients[start : start + size])
        states = backend.get([handles[c] for c in some])
        rows: State = {name: torch.cat([s[name] for s in states]) for name in first}
        yield {"clients": torch.tensor(some, dtype=torch.int64), "states": rows}


def save_hashed(content: Any, path: Path) -> str:
    """Saves an object to `path` with torch.save and syncs the file to disk; returns the sha256 of the file."""
    with open(path, "wb") as file:
        try:
            torch.save(content, file)
        except RuntimeError as error:
            if isinstance(error.__context__, OSError):  # a full disk; torch raises its own error for it
                raise error.__context__ from None
            raise
        file.flush()
        os.fsync(file.fileno())
    return sha256_of(path)


def sha256_of(path: Path) -> str:
    """The sha256 of a file. Raises OSError for anything but a regular file."""
    with os.fdopen(open_plain(path, os.O_RDONLY), "rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


# -- reading -----------------------------------------------------------------------------------------------------


def load_server(path: Path, fresh: FederationState, rounds: int) -> FederationState:
    """The state of a run after so many rounds from server.pt, without client states; raises Damaged.

    fresh: the state before round 0, whose keys and shapes it must have, as the code of a class may have changed.
    """
    blob = load(path)
    try:
        _same_form(blob["server"], pack_server(fresh.server), "server")
        _same_form(blob["buffers"], fresh.buffers, "buffers")
        moments = blob.get("moments", fresh.moments[:0])
        _same_form(moments, fresh.moments, "moments")
        _same_form(blob["costs"], asdict(fresh.costs), "costs")
        numbers = {name: blob[name] for name in NUMBERS}
        packed, costs = blob["server"], Costs(**blob["costs"])
        server = {k: Table.from_state(v["table"]) if isinstance(v, dict) else v for k, v in packed.items()}
        average = _average(blob["average"], fresh.average)
        links = Links.of_columns({name: values.numpy() for name, values in blob["links"].items()})
    except (KeyError, TypeError, ValueError, AttributeError, RuntimeError, IndexError) as error:
        raise _unfit(path, error) from error
    return FederationState(
        rounds, server, blob["buffers"], {}, set(), costs, moments=moments, average=average, links=links, **numbers
    )


def _average(saved: dict[str, Any] | None, fresh: Average | None) -> Average | None:
    """The saved average of the iterates; None if this run measures none, or one with another rho."""
    if saved is None or fresh is None or saved["rho"] != fresh.rho:
        return None
    _same_form(saved, vars(fresh), "average")
    return Average(**saved)


def load_clients(path: Path, chosen: set[int], fresh: State) -> Iterator[tuple[int, State]]:
    """Yields (client, state with rows [1, ...]) for each chosen client whose state is in a file of a checkpoint.

    fresh: an initial client state, rows [1, ...], whose form the states must have. Raises Damaged.
    """
    chunk = load(path, mmap=True)
    try:
        clients, states = chunk["clients"].tolist(), dict(chunk["states"])
        _same_form(states, {name: rows.expand(len(clients), *rows.shape[1:]) for name, rows in fresh.items()}, "states")
    except (KeyError, TypeError, ValueError, AttributeError, RuntimeError) as error:
        raise _unfit(path, error) from error
    for row, client in enumerate(clients):
        if client in chosen:
            yield client, {name: rows[row : row + 1].clone() for name, rows in states.items()}


def load(path: Path, mmap: bool = False) -> Any:
    """The content of a file from torch.save. Raises Damaged if it has anything but tensors and plain values.

    mmap: whether a tensor is read from disk only when it is used.
    """
    try:
        return torch.load(path, weights_only=True, mmap=mmap)
    except Exception as error:
        if isinstance(error, MemoryError) or "memory" in str(error):  # not a damaged file
            raise
        raise Damaged(f"{path.parent.name}/{path.name} cannot be read: {type(error).__name__}") from error


def _same_form(value: Any, like: Any, name: str) -> None:
    """Raises ValueError unless `value`, with this name in the message, has the keys, dtypes and shapes of `like`.

    Tables may have any number of rows, and a tensor any size in a dimension that is empty in `like`, such as one entry
    for each client received so far.
    """
    if isinstance(like, Tensor):
        fits = isinstance(value, Tensor) and value.dtype == like.dtype and value.ndim == like.ndim
        if not fits or any(size not in (0, got) for got, size in zip(value.shape, like.shape, strict=True)):
            got = _form(value) if isinstance(value, Tensor) else type(value).__name__
            raise ValueError(f"{name} is {got}, but must be {_form(like)}")
    elif isinstance(like, Mapping):
        if not isinstance(value, Mapping) or set(value) != set(like):
            raise ValueError(f"{name} holds {_keys(value)}, but must hold {_keys(like)}")
        if set(like) == {"table"}:
            value, like, count = value["table"], like["table"], len(value["table"]["clients"])
            rows = like["rows"].new_empty(count, like["rows"].shape[1])
            like = {"clients": like["clients"].new_empty(count), "rows": rows}
        for key in like:
            _same_form(value[key], like[key], f"{name}.{key}")
    elif not isinstance(value, type(like)):
        raise ValueError(f"{name} is {type(value).__name__}, but must be {type(like).__name__}")


def _form(tensor: Tensor) -> str:
    return f"{str(tensor.dtype).removeprefix('torch.')} {list(tensor.shape)}"


def _keys(value: Any) -> str:
    return ", ".join(sorted(map(str, value))) if isinstance(value, Mapping) and value else "nothing"


def _unfit(path: Path, error: Exception) -> Damaged:
    reason = f"{error} is missing" if isinstance(error, KeyError) else headline(error)
    return Damaged(f"{path.parent.name}/{path.name} does not fit this run: {reason}")
