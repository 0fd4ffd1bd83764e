"""The state files of a checkpoint: conversion of a run's state to tensors on disk, and checks when they are read."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from raylfl.core.algorithm import ServerState, State
from raylfl.core.client_rows import Table
from raylfl.core.costs import Costs
from raylfl.core.links import Links
from raylfl.errors import headline
from raylfl.runtime.records.manifest import Damaged
from raylfl.runtime.records.record_file import open_plain
from raylfl.runtime.round.state import Average, FederationState
from raylfl.runtime.workers.backend import Backend, Handle

CHUNK_BYTES = 64 * 2**20  # largest size of the client states in one file, unless a single client has more
NUMBERS = ("seconds", "computation_seconds", "last_finite_loss")


def server_blob(state: FederationState) -> dict[str, Any]:
    """The content of server.pt: the state of a run without the client states."""
    return {
        "round": state.round,
        "server": pack_server(state.server),
        "buffers": state.buffers,
        **({"moments": state.moments} if len(state.moments) else {}),
        "average": None if state.average is None else vars(state.average),
        "costs": asdict(state.costs),
        "links": {name: torch.from_numpy(values) for name, values in state.links.columns().items()},
        **{name: getattr(state, name) for name in NUMBERS},
    }


def pack_server(server: ServerState) -> dict[str, Any]:
    """Converts a server state for torch.save: each `Table` becomes its state_dict, other values are unchanged."""
    return {k: {"table": v.state_dict()} if isinstance(v, Table) else v for k, v in server.items()}


def unpack_server(packed: dict[str, Any]) -> ServerState:
    """The inverse of `pack_server`."""
    return {k: Table.from_state(v["table"]) if isinstance(v, dict) else v for k, v in packed.items()}


def client_chunks(clients: Sequence[int], handles: dict[int, Handle], backend: Backend) -> Iterator[dict[str, Any]]:
    """Yields the contents of the files of client states; each has at most CHUNK_BYTES, or more for a single client.

    clients: the clients to write, in the order of their rows; handles: client -> handle of its state in the backend.
    """
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
    """Reads the state in server.pt, without client states.

    fresh: the state before round 0, whose keys and shapes the state must have, as the code of a class may have changed.
    rounds: the number of finished rounds. Raises Damaged if the state does not fit or cannot be read.
    """
    blob = load(path)
    try:
        _same_form(blob["server"], pack_server(fresh.server), "server")
        _same_form(blob["buffers"], fresh.buffers, "buffers")
        moments = blob.get("moments", fresh.moments[:0])
        _same_form(moments, fresh.moments, "moments")
        _same_form(blob["costs"], asdict(fresh.costs), "costs")
        numbers = {name: blob[name] for name in NUMBERS}
        server, costs = unpack_server(blob["server"]), Costs(**blob["costs"])
        average = _average(blob["average"], fresh.average)
        links = Links.of_columns({name: values.numpy() for name, values in blob["links"].items()})
    except (KeyError, TypeError, ValueError, AttributeError, RuntimeError, IndexError) as error:
        raise Damaged(f"{_short_path(path)} does not fit this run: {_reason(error)}") from error
    return FederationState(
        rounds, server, blob["buffers"], {}, set(), costs, moments=moments, average=average, links=links, **numbers
    )


def _average(saved: dict[str, Any] | None, fresh: Average | None) -> Average | None:
    """The saved average of the iterates; None if this run cannot continue it.

    saved: None if the checkpoint has no average. fresh: the run's average before round 0, None if the run measures no
    average. The result is None if either is None, or if they have different rho (`Average`). Raises ValueError if the
    shapes differ.
    """
    if saved is None or fresh is None or saved["rho"] != fresh.rho:
        return None
    _same_form(saved, vars(fresh), "average")
    return Average(**saved)


def load_clients(path: Path, chosen: set[int], fresh: State) -> Iterator[tuple[int, State]]:
    """Yields (client, state with rows [1, ...]) for each chosen client whose state is in a file of a checkpoint.

    fresh: an initial client state, rows [1, ...], whose names and shapes the states must have. Raises Damaged
    if the states do not fit or cannot be read.
    """
    chunk = load(path, mmap=True)
    try:
        clients, states = chunk["clients"].tolist(), dict(chunk["states"])
        _same_form(states, {name: rows.expand(len(clients), *rows.shape[1:]) for name, rows in fresh.items()}, "states")
    except (KeyError, TypeError, ValueError, AttributeError, RuntimeError) as error:
        raise Damaged(f"{_short_path(path)} does not fit this run: {_reason(error)}") from error
    for row, client in enumerate(clients):
        if client in chosen:
            yield client, {name: rows[row : row + 1].clone() for name, rows in states.items()}


def load(path: Path, mmap: bool = False) -> Any:
    """The content of a file from torch.save.

    Raises Damaged if the file cannot be read, or has anything but tensors and plain values. mmap: whether to map the
    file into memory, so that a tensor is read from disk when it is used.
    """
    try:
        return torch.load(path, weights_only=True, mmap=mmap)
    except Exception as error:
        if isinstance(error, MemoryError) or "memory" in str(error):  # not a damaged file
            raise
        raise Damaged(f"{_short_path(path)} cannot be read: {type(error).__name__}") from error


def _same_form(value: Any, like: Any, name: str) -> None:
    """Checks that `value` has the keys, dtypes and shapes of `like`; raises ValueError otherwise.

    Tables may have any number of rows, and a tensor any size in a dimension that is empty in `like`, such as one entry
    for each client received so far. name: the name of the value in the error message.
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
            _same_table(value["table"], like["table"], name)
            return
        for key in like:
            _same_form(value[key], like[key], f"{name}.{key}")
    elif not isinstance(value, type(like)):
        raise ValueError(f"{name} is {type(value).__name__}, but must be {type(like).__name__}")


def _same_table(value: Any, like: dict[str, Tensor], name: str) -> None:
    count = len(value["clients"])
    _same_form(value["clients"], like["clients"].new_empty(count), f"{name}.clients")
    _same_form(value["rows"], like["rows"].new_empty(count, like["rows"].shape[1]), f"{name}.rows")


def _form(tensor: Tensor) -> str:
    return f"{str(tensor.dtype).removeprefix('torch.')} {list(tensor.shape)}"


def _keys(value: Any) -> str:
    return ", ".join(sorted(map(str, value))) if isinstance(value, Mapping) and value else "nothing"


def _reason(error: Exception) -> str:
    return f"{error} is missing" if isinstance(error, KeyError) else headline(error)


def _short_path(path: Path) -> str:
    return f"{path.parent.name}/{path.name}"
