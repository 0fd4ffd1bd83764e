"""Client states that stay on their workers' nodes, and their transfer to and from checkpoints."""

from __future__ import annotations

import secrets
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import ray
import torch

from raylfl.core.algorithm import State
from raylfl.runtime.ray.channel import Channel
from raylfl.runtime.ray.traffic import weight
from raylfl.runtime.ray.worker_pool import CallInFlight, WorkerCall
from raylfl.runtime.records.checksums import save_hashed
from raylfl.runtime.records.manifest import Damaged
from raylfl.runtime.records.state_files import CHUNK_BYTES, SEEN, clients_blob, clients_in, mark_of
from raylfl.runtime.workers.state_store import HeldState
from raylfl.runtime.workers.task import pack, unpack

FILE_SECONDS = 600.0  # time limit for writing a worker's files, if calls have a limit
END_SECONDS = 3.0  # time limit for deleting files at the end of a run


class HeldStates:
    """Access to client states that the clients' workers store; the server has handles (`HeldState`)."""

    def __init__(self, channel: Channel, notify: Callable[[str], None], before: int):
        """Access to the states of a run.

        notify: called with a line for the user. before: the largest number of calls of local work that a worker may
        have to finish before it begins a call of this class. The time limit of such a call includes their time limits.
        """
        self.channel, self.notify = channel, notify
        self._limit = None if channel.timeout is None else before * channel.timeout + FILE_SECONDS
        self._told = False

    def write(self, states: Sequence[HeldState], folder: Path) -> dict[str, str]:
        """Makes the clients' workers write these states into a checkpoint's folder; returns file name -> sha256.

        If a worker cannot read the folder, the server collects the worker's states and writes them, one file at a time.
        """
        size = max(1, CHUNK_BYTES // max(1, self.channel.state_bytes))
        files: dict[int, dict[str, list[HeldState]]] = {}
        count = 0
        for worker, own in self._by_worker(states).items():
            for at in range(0, len(own), size):
                files.setdefault(worker, {})[f"clients_{count:03d}.pt"] = own[at : at + size]
                count += 1
        key = secrets.token_hex(16)
        (folder / SEEN).write_text(key)
        calls = {worker: (str(folder), key, own) for worker, own in files.items()}
        sums = dict[str, str]()
        for worker, written in zip(files, self._results("write_states", calls), strict=True):
            sums |= self._collected(worker, files[worker], folder) if written is None else written
        return sums

    def _collected(self, worker: int, files: Mapping[str, list[HeldState]], folder: Path) -> dict[str, str]:
        if not self._told:
            self.notify(f"worker {worker} cannot read {folder.parent}: the server collects its clients' states")
            self._told = True
        sums = dict[str, str]()
        for name, states in files.items():
            (rows,) = self._results("read_states", {worker: (states,)})
            self.channel.traffic.count(received=weight(rows))
            sums[name] = save_hashed(clients_blob([state.client for state in states], unpack(rows)), folder / name)
        return sums

    def load(self, path: Path, clients: set[int], rounds: int) -> dict[int, HeldState] | None:
        """Makes the clients' workers read states from a file of a checkpoint; returns client -> handle.

        Clients without a state in the file are left out. rounds: the number of rounds before the checkpoint. Returns
        None if a worker cannot read the file. Raises Damaged if the file does not fit this run.
        """
        held = {client: HeldState(client, rounds) for client in clients_in(path) if client in clients}
        mark = mark_of(path)
        calls = {worker: (str(path), mark, own) for worker, own in self._by_worker(list(held.values())).items()}
        return held if all(self._results("load_states", calls)) else None

    def take(self, states: Mapping[int, State], rounds: int) -> dict[int, HeldState]:
        """Sends states from a checkpoint after `rounds` rounds to the clients' workers; returns client -> handle."""
        held = {client: HeldState(client, rounds) for client in states}
        calls = {}
        for worker, own in self._by_worker(list(held.values())).items():
            rows = pack({name: torch.cat([states[h.client][name] for h in own]) for name in states[own[0].client]})
            self.channel.traffic.count(sent=weight(rows))
            calls[worker] = own, rows
        self._results("take_states", calls)
        return held

    def drop(self) -> None:
        """Deletes the stored states on all nodes whose workers answer within END_SECONDS; errors are ignored."""
        pool = self.channel.pool
        with suppress(Exception):  # must not change the outcome of the run
            sent = [pool.submit(w, WorkerCall("drop_states", (self.channel.held,))) for w in pool.ready()]
            ray.wait([s.references[0] for s in sent], num_returns=len(sent), timeout=END_SECONDS)

    def _by_worker(self, states: Sequence[HeldState]) -> dict[int, list[HeldState]]:
        placement, found = self.channel.pool.stored.placement, dict[int, list[HeldState]]()
        for state in states:
            worker = placement.worker_of(state.client)
            assert worker is not None
            found.setdefault(worker, []).append(state)
        return found

    def _results(self, method: str, calls: Mapping[int, tuple[Any, ...]]) -> list[Any]:
        """Calls the Python method `method` of each worker in `calls`; returns the results in the order of `calls`.

        Lost calls are repeated. calls: number of a worker -> the arguments after the name of the states' folder. An
        OSError or Damaged that a worker raised is raised again.
        """
        pool, held = self.channel.pool, self.channel.held
        sent: list[CallInFlight] = pool.send(
            [WorkerCall(method, (held, *given), 1, self._limit, worker) for worker, given in calls.items()]
        )
        try:
            return pool.with_retries(sent, self.channel.attempts)
        except (OSError, Damaged) as error:  # from a worker: Ray's copy of the exception lacks its reason
            raise getattr(error, "cause", error) from None
