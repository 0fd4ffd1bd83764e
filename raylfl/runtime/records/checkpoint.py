"""Checkpoints: the state of a run on disk, written to a temporary folder, synced and renamed.

checkpoints/round_000100/ has
    server.pt           the algorithm's server state, the module's buffers, counters
    clients_000.pt ...  only the client states that changed since the previous checkpoint, up to 64 MiB per file:
                        {"clients": int64 [C], "states": {name: [C, ...]}}
    manifest.json       sha256 of every file, the round, the definition of the run (its config and sha256, the sha256
                        of the partition), versions, size and sha256 of the record files up to this round, and the
                        checkpoint that has each client's newest state
A checkpoint is complete once its folder has its final name. The newest `checkpoint.keep` checkpoints are kept, and
every older one that still has the newest state of a client. If a checkpoint or its records are damaged, the previous
checkpoint is used, with a warning.
"""

import hashlib
import os
import re
import shutil
from contextlib import suppress
from pathlib import Path
from typing import Any

from raylfl.config.identity import defining, fingerprint_of_config, refuse_changes
from raylfl.config.load import load_config
from raylfl.config.objects import ObjectLayer
from raylfl.config.text import FORMAT
from raylfl.core.algorithm import State
from raylfl.core.population import ClientShards
from raylfl.errors import BadConfig, RaylflError, Say
from raylfl.experiment.parts import Experiment
from raylfl.runtime.records.files import atomic_write, discard, read_plain, sync_folder
from raylfl.runtime.records.lines import lines, parse_rows
from raylfl.runtime.records.run_dir import RunDirectory, remedy
from raylfl.runtime.records.state_files import (
    Damaged,
    Manifest,
    client_chunks,
    encode,
    folder_of,
    load_clients,
    load_server,
    read_manifest,
    save_hashed,
    server_blob,
    sha256_of,
)
from raylfl.runtime.records.summary import versions
from raylfl.runtime.round.state import FederationState
from raylfl.runtime.workers.backend import Backend

FOLD_AFTER = 20  # if needed client states are in at least as many checkpoints, all states are written again
SAME_BITS = ("raylfl", "torch", "numpy")  # packages whose version may change the bits


class Checkpoints:
    """Writes, verifies and reads the checkpoints in one run directory."""

    def __init__(self, run_dir: RunDirectory, experiment: Experiment, warn: Say):
        self.run_dir, self.warn, self.folder = run_dir, warn, run_dir.path / "checkpoints"
        self.config, self.setup = experiment.config, experiment.setup
        self.identity: dict[str, Any] = {
            "config_sha256": fingerprint_of_config(self.config.resolved),
            "partition_sha256": sha256_of_shards(experiment.setup.shards),
            "device": "gpu" if experiment.setup.runtime.gpus > 0 else "cpu",
            "versions": versions(),
        }
        self._holders: dict[int, str] = {}  # client -> the checkpoint that has its newest state

    # -- writing ---------------------------------------------------------------------------------------------

    def save(self, state: FederationState, backend: Backend) -> None:
        """Writes the checkpoint of `state` unless it exists, deletes those no longer needed, and requests a copy.

        backend: has the client states. Raises RaylflError if the checkpoint cannot be written; the previous one is then
        intact.
        """
        self.run_dir.check()
        name = folder_of(state.round)
        final, aside = self.folder / name, self.folder / f".{name}.tmp"
        if final.exists():  # already saved: the state of a round is always the same
            return
        try:
            discard(aside)
            aside.mkdir(parents=True)
            holders = self._write(aside, state, backend)
            sync_folder(aside)
            os.replace(aside, final)
            sync_folder(self.folder)
        except OSError as error:
            shutil.rmtree(aside, ignore_errors=True)
            self.run_dir.check()
            raise RaylflError(
                f"checkpoint of round {state.round} could not be written to {self.folder} ({error.strerror}); "
                f"the previous one is intact: {remedy(error)}, then resume"
            ) from error
        self._holders = holders
        state.changed.clear()
        self._prune()
        self.run_dir.request_copy(self.warn)

    def _write(self, aside: Path, state: FederationState, backend: Backend) -> dict[int, str]:
        """Writes the files of a checkpoint; returns client -> checkpoint that has its newest state."""
        name, earlier = folder_of(state.round), set(self._holders.values())
        fold = len(earlier) >= FOLD_AFTER or not all((self.folder / holder).is_dir() for holder in earlier)
        clients = sorted(state.clients if fold else state.changed)
        sums = {"server.pt": save_hashed(server_blob(state), aside / "server.pt")}
        for k, chunk in enumerate(client_chunks(clients, state.clients, backend)):
            file = f"clients_{k:03d}.pt"
            sums[file] = save_hashed(chunk, aside / file)
        holders = {**({} if fold else self._holders), **dict.fromkeys(clients, name)}
        held: dict[str, list[int]] = {}
        for client, holder in sorted(holders.items()):
            held.setdefault(holder, []).append(client)
        records = self.run_dir.sync()
        manifest: Any = {
            "version": FORMAT,
            "round": state.round,
            "sha256": sums,
            **self.identity,
            "config": defining(self.config.resolved),
            "records": {record: size for record, (size, _) in records.items()},
            "records_sha256": {record: sha256 for record, (_, sha256) in records.items()},
            "clients": held,
        }
        atomic_write(aside / "manifest.json", encode(manifest))
        return holders

    def _prune(self) -> None:
        """Deletes all checkpoints except the newest `keep` and those that have client states of these."""
        folders = self._folders()
        newest = folders[-self.config.checkpoint.keep :]
        needed = {folder.name for folder in newest}
        for folder in newest:
            with suppress(Damaged):  # no run can be resumed from a damaged checkpoint, so it needs no others
                needed |= set(read_manifest(folder)["clients"])
        for folder in folders:
            if folder.name not in needed:
                discard(folder)

    def _folders(self) -> list[Path]:
        folders = [f for f in self.folder.glob("round_*") if re.fullmatch(r"round_[0-9]{6,18}", f.name)]
        return sorted(folders, key=lambda f: int(f.name.removeprefix("round_")))

    # -- reading ---------------------------------------------------------------------------------------------

    def newest(self, backend: Backend, fresh: FederationState) -> FederationState | None:
        """Loads the newest intact checkpoint; returns its state, or None if there is no such checkpoint.

        The client states are loaded into the backend. fresh: the state before round 0, whose keys and shapes the loaded
        state must have. Rows written after the checkpoint are removed, and damaged checkpoints are renamed. Raises
        BadConfig if the run's definition has changed.
        """
        for leftover in self.folder.glob(".round_*.tmp"):  # left by a killed process
            discard(leftover)
        for folder in reversed(self._folders()):
            try:
                manifest = self._check_files(folder)
                for name in manifest["clients"]:
                    if name != folder.name:
                        self._check_files(self.folder / name, "clients_")
                self._check_records(manifest)
                self._compare(folder, manifest)
                state = self._load(folder, manifest, backend, fresh)
            except Damaged as error:
                self.warn(f"checkpoint {folder.name} is damaged ({error}): the previous one is used")
                target = folder.with_name(f"damaged_{folder.name}")  # a new checkpoint of this round can be written
                discard(target)
                folder.rename(target)
                continue
            if fresh.average is not None and state.average is None:
                self.warn(f"eval.average: not measured, as {folder.name} has no average of the iterates before it")
            self._holders = {c: name for name, clients in manifest["clients"].items() for c in clients}
            self.run_dir.truncate(manifest["records"])
            return state
        return None

    def _check_files(self, folder: Path, prefix: str = "") -> Manifest:
        """The manifest of a checkpoint whose files match their checksums, or only files that begin with `prefix`."""
        manifest = read_manifest(folder)
        for file, expected in manifest["sha256"].items():
            try:
                sound = not file.startswith(prefix) or sha256_of(folder / file) == expected
            except OSError as error:
                raise Damaged(f"{folder.name}/{file} cannot be read: {error.strerror}") from error
            if not sound:
                raise Damaged(f"{folder.name}/{file} does not match its checksum")
        return manifest

    def _check_records(self, manifest: Manifest) -> None:
        """Raises Damaged unless each record file begins with its content at this checkpoint; copies a damaged file."""
        for name, size in manifest["records"].items():
            try:
                content = read_plain(self.run_dir.path / name)
            except OSError as error:
                raise Damaged(f"{name} cannot be read: {error.strerror}") from error
            written = content[:size]
            if damaged := parse_rows(written).damaged:
                fault = f"{lines(damaged)} cannot be read"
            elif len(written) < size:
                fault = "its end is lost"
            elif hashlib.sha256(written).hexdigest() != manifest["records_sha256"].get(name):
                fault = "its content is not what was written"
            else:
                continue
            with suppress(OSError):
                atomic_write(self.run_dir.path / f"damaged_{name}", content)
            raise Damaged(f"{name} is damaged: {fault}")

    def _compare(self, folder: Path, manifest: Manifest) -> None:
        """Raises BadConfig unless this run has the definition in the manifest, whose number of rounds may differ.

        Warns of another device, and of another version of a package in SAME_BITS.
        """
        objects = ObjectLayer({}, dict(self.config.objects))
        defined = load_config(manifest["config"], object_layer=objects).resolved  # with the defaults of newer options
        refuse_changes({**defined, "rounds": 0}, {**self.config.resolved, "rounds": 0})
        if manifest["partition_sha256"] != self.identity["partition_sha256"]:
            raise BadConfig(
                f"the clients' samples differ from those in {folder.name}: have files of the data changed, or the "
                "version of a library? Put them back, or start a new run"
            )
        then = {"device": manifest["device"], **manifest["versions"]}
        now = {"device": self.identity["device"], **self.identity["versions"]}
        for what in ("device", *SAME_BITS):
            if then.get(what) != now[what]:
                self.warn(
                    f"warning: {folder.name} was written with {what} {then.get(what)}, this is {now[what]}: "
                    "the rest may differ in its last bits from an undisturbed run"
                )

    def _load(self, folder: Path, manifest: Manifest, backend: Backend, fresh: FederationState) -> FederationState:
        """Loads the state from a checkpoint whose checksums are correct. Raises Damaged if it does not fit this run."""
        initial = backend.initial()
        state = load_server(folder / "server.pt", fresh, manifest["round"])
        fresh_client: State = self.setup.fresh_state(initial)
        for name, clients in manifest["clients"].items():
            ids = set(clients)
            for path in sorted((self.folder / name).glob("clients_*.pt")):
                for client, rows in load_clients(path, ids, fresh_client):
                    state.clients[client] = backend.put(rows)
            if not ids <= state.clients.keys():
                raise Damaged(f"{name} holds no state of client {min(ids - state.clients.keys())}")
        return state


def sha256_of_shards(shards: ClientShards) -> str:
    """The sha256 of a partition, that is of the sample indices of each client."""
    digest = hashlib.sha256(shards.offsets.tobytes())
    digest.update(shards.indices.tobytes())
    return digest.hexdigest()
