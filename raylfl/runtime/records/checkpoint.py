"""The state of a run on disk: written aside, synced, renamed; damaged ones are passed over, loudly.

checkpoints/round_000100/ holds
    server.pt           the algorithm's server state, buffers, counters
    clients_000.pt ...  only the client states that changed since the checkpoint before, some megabytes a file:
                        {"clients": int64 [C], "states": {name: [C, ...]}}
    manifest.json       sha256 of every file, the round, what defines the run (its config and sha256, the sha256 of the
                        partition), versions, the sizes of the record files, and which checkpoint holds the newest
                        state of which client
A checkpoint is whole once its folder has its final name. The newest `keep` stay, and every older one that still
holds the newest state of a client.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import shutil
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch

from raylfl.config.changes import defining, fingerprint_of_config, refuse_changes
from raylfl.core.algorithm import ServerState, State
from raylfl.core.client_rows import Table
from raylfl.core.costs import Costs
from raylfl.core.samples import Shards
from raylfl.errors import BadConfig, RaylflError
from raylfl.parts import Experiment
from raylfl.runtime.records.checksums import save_hashed, sha256_of
from raylfl.runtime.records.run_dir import RunDirectory, atomic_write, sync_folder, versions
from raylfl.runtime.round.loop import FederationState
from raylfl.runtime.workers.backend import Backend, Handle

VERSION = 2
FOLD_AFTER = 20  # checkpoints whose client files are still needed before all states are written anew
CHUNK_BYTES = 64 * 2**20  # of client states in memory at a time
SAME_BITS = ("raylfl", "torch", "numpy")  # packages whose change may change the bits

Manifest = dict[str, Any]


class Damaged(Exception):
    """A checkpoint that is not what was written: which file, and how it shows."""


class Checkpoints:
    """The checkpoints of one run directory."""

    def __init__(self, run_dir: RunDirectory, experiment: Experiment, warn: Callable[[str], None]):
        """warn: takes one line of news."""
        self.run_dir, self.warn = run_dir, warn
        self.keep, self.resolved = experiment.config.checkpoint.keep, experiment.config.resolved
        self.identity = {
            "config_sha256": fingerprint_of_config(self.resolved),
            "partition_sha256": sha256_of_shards(experiment.setup.shards),
            "device": "gpu" if experiment.setup.runtime.gpus_per_worker > 0 else "cpu",
            "versions": versions(),
        }
        self.folder = run_dir.path / "checkpoints"
        self._holders: dict[int, str] = {}  # client -> the checkpoint that holds its newest state

    # -- writing ---------------------------------------------------------------------------------------------

    def save(self, state: FederationState, backend: Backend) -> None:
        """Write `state`; raises RaylflError (disk full, say) with the checkpoint before left intact."""
        name = f"round_{state.round:06d}"
        final, aside = self.folder / name, self.folder / f".{name}.tmp"
        if final.exists():  # a state is a function of its round: this one is there already
            return
        try:
            shutil.rmtree(aside, ignore_errors=True)
            aside.mkdir(parents=True)
            holders = self._write(aside, name, state, backend)
            sync_folder(aside)
            os.replace(aside, final)
            sync_folder(self.folder)
        except OSError as error:
            shutil.rmtree(aside, ignore_errors=True)
            raise RaylflError(
                f"checkpoint of round {state.round} could not be written to {self.folder} ({error.strerror}); "
                "the one before is intact: free some space, then resume"
            ) from error
        self._holders = holders
        state.changed.clear()
        self._prune()

    def _write(self, folder: Path, name: str, state: FederationState, backend: Backend) -> dict[int, str]:
        """The files of a checkpoint; returns which checkpoint then holds which client's newest state."""
        fold = len(set(self._holders.values())) >= FOLD_AFTER
        clients = sorted(state.clients if fold else state.changed)
        sums = {"server.pt": save_hashed(server_blob(state), folder / "server.pt")}
        for k, chunk in enumerate(client_chunks(clients, state.clients, backend)):
            file = f"clients_{k:03d}.pt"
            sums[file] = save_hashed(chunk, folder / file)
        holders = {**({} if fold else self._holders), **dict.fromkeys(clients, name)}
        held: dict[str, list[int]] = {}
        for client, holder in sorted(holders.items()):
            held.setdefault(holder, []).append(client)
        manifest = {
            "version": VERSION,
            "round": state.round,
            "sha256": sums,
            **self.identity,
            "config": defining(self.resolved),
            "records": self.run_dir.sync(),
            "clients": held,
        }
        atomic_write(
            folder / "manifest.json", json.dumps({**manifest, "manifest_sha256": sha256_of_manifest(manifest)})
        )
        return holders

    def _prune(self) -> None:
        """Keep the newest `keep`, and whatever holds client states that one of them needs."""
        folders = self._folders()
        kept = folders[-self.keep :]
        needed = {folder.name for folder in kept}
        for folder in kept:
            with suppress(Damaged):  # of one that cannot be gone on from, nothing is needed
                needed |= set(self._intact(folder, "manifest")["clients"])
        for folder in folders:
            if folder.name not in needed:
                shutil.rmtree(folder)

    def _folders(self) -> list[Path]:
        """The checkpoints on disk, oldest first."""
        found = [f for f in self.folder.glob("round_*") if re.fullmatch(r"round_\d+", f.name) and f.is_dir()]
        return sorted(found, key=lambda f: int(f.name.removeprefix("round_")))

    # -- reading ---------------------------------------------------------------------------------------------

    def newest(self, backend: Backend) -> FederationState | None:
        """The newest intact state, its client states put behind the backend's handles; None: there is none.

        Records written after it are cut off. Raises BadConfig where what defines the run is no longer the same.
        """
        for leftover in self.folder.glob(".round_*.tmp"):  # of a process killed while it wrote
            shutil.rmtree(leftover)
        for folder in reversed(self._folders()):
            try:
                manifest = self._verified(folder)
            except Damaged as error:
                self.warn(f"checkpoint {folder.name} is damaged ({error}): passed over for the one before")
                self._set_aside(folder)
                continue
            self._compare(folder, manifest)
            state = self._load(folder, manifest, backend)
            self._holders = {c: name for name, clients in manifest["clients"].items() for c in clients}
            self.run_dir.truncate(manifest["records"])
            return state
        return None

    def _verified(self, folder: Path) -> Manifest:
        """Its manifest, once every file that it needs has proved intact; raises Damaged."""
        manifest = self._intact(folder)
        for name in manifest["clients"]:
            if name != folder.name:
                self._intact(self.folder / name, "clients_")
        short = self.run_dir.lacks(manifest["records"])
        if short:
            raise Damaged(f"{short} has lost rows since")
        return manifest

    def _intact(self, folder: Path, prefix: str = "") -> Manifest:
        """Its manifest, once that and the files of this prefix match their checksums; raises Damaged."""
        try:
            manifest: Manifest = json.loads((folder / "manifest.json").read_text())
            if manifest.pop("manifest_sha256") != sha256_of_manifest(manifest):
                raise Damaged(f"{folder.name}/manifest.json does not match its checksum")
            if manifest["version"] != VERSION:
                raise RaylflError(
                    f"{folder} has checkpoint format {manifest['version']}, but this raylfl reads {VERSION}: "
                    "resume it with the version that wrote it"
                )
            for file, expected in manifest["sha256"].items():
                if file.startswith(prefix) and sha256_of(folder / file) != expected:
                    raise Damaged(f"{folder.name}/{file} does not match its checksum")
        except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
            reason = error.strerror if isinstance(error, OSError) else f"{type(error).__name__}: {error}"
            raise Damaged(f"{folder.name} cannot be read: {reason}") from error
        return manifest

    def _compare(self, folder: Path, manifest: Manifest) -> None:
        """Refuse another config or partition; warn where another device or version may give other bits."""
        refuse_changes({**manifest["config"], "rounds": 0}, {**self.resolved, "rounds": 0})
        if manifest["partition_sha256"] != self.identity["partition_sha256"]:
            raise BadConfig(
                f"the clients' samples are not those of {folder.name}: have files of the data changed, or the version "
                "of a library? Put them back, or start a new run"
            )
        before: Any = manifest
        after: Any = self.identity
        then, now = ({"device": m["device"], **m["versions"]} for m in (before, after))
        for what in ("device", *SAME_BITS):
            if then.get(what) != now[what]:
                self.warn(
                    f"warning: {folder.name} was written with {what} {then.get(what)}, this is {now[what]}: "
                    "the rest may differ in its last bits from an undisturbed run"
                )

    def _load(self, folder: Path, manifest: Manifest, backend: Backend) -> FederationState:
        blob = torch.load(folder / "server.pt", weights_only=True)
        handles: dict[int, Handle] = {}
        for name, clients in manifest["clients"].items():
            wanted = set(clients)
            for path in sorted((self.folder / name).glob("clients_*.pt")):
                chunk = torch.load(path, weights_only=True)
                for i, client in enumerate(chunk["clients"].tolist()):
                    if client in wanted:
                        handles[client] = backend.put({k: v[i : i + 1].clone() for k, v in chunk["states"].items()})
        return FederationState(
            blob["round"],
            unpack_server(blob["server"]),
            blob["buffers"],
            handles,
            set(),
            Costs(**blob["costs"]),
            blob["seconds"],
            blob["computation_seconds"],
            blob["last_finite_loss"],
        )

    def _set_aside(self, folder: Path) -> None:
        """Out of the way of the checkpoint that will be written for this round again, but there to be looked at."""
        target = folder.with_name(f"damaged_{folder.name}")
        if target.exists():
            shutil.rmtree(target)
        folder.rename(target)


def server_blob(state: FederationState) -> dict[str, Any]:
    """Everything of a state but the clients'."""
    return {
        "round": state.round,
        "server": pack_server(state.server),
        "buffers": state.buffers,
        "costs": asdict(state.costs),
        "seconds": state.seconds,
        "computation_seconds": state.computation_seconds,
        "last_finite_loss": state.last_finite_loss,
    }


def client_chunks(clients: Sequence[int], handles: dict[int, Handle], backend: Backend) -> Iterator[dict[str, Any]]:
    """The states of these clients as rows of matrices, no more than CHUNK_BYTES (or one client) at a time."""
    if not clients:
        return
    first = backend.get([handles[clients[0]]])[0]
    size = max(1, CHUNK_BYTES // max(1, sum(t.numel() * t.element_size() for t in first.values())))
    for at in range(0, len(clients), size):
        some = list(clients[at : at + size])
        states = backend.get([handles[c] for c in some])
        rows: State = {name: torch.cat([s[name] for s in states]) for name in first}
        yield {"clients": torch.tensor(some, dtype=torch.int64), "states": rows}


def sha256_of_manifest(manifest: Manifest) -> str:
    return hashlib.sha256(json.dumps(manifest, sort_keys=True).encode()).hexdigest()


def sha256_of_shards(shards: Shards) -> str:
    """Of who owns which samples."""
    digest = hashlib.sha256(shards.offsets.tobytes())
    digest.update(shards.indices.tobytes())
    return digest.hexdigest()


def pack_server(server: ServerState) -> dict[str, Any]:
    """Tensors as they are, Tables as their rows."""
    return {k: {"table": v.state_dict()} if isinstance(v, Table) else v for k, v in server.items()}


def unpack_server(packed: dict[str, Any]) -> ServerState:
    """The inverse of `pack_server`."""
    return {k: Table.from_state(v["table"]) if isinstance(v, dict) else v for k, v in packed.items()}
