"""The messages between the round loop and the workers: plain values that can be sent repeatedly."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple, TypeVar

import numpy as np
import torch
from torch import Tensor

from raylfl.core.algorithm import State
from raylfl.core.arrays import Floats, Ints
from raylfl.core.oracle import GradientMode
from raylfl.core.partial_sums import SubtreeSums, SumPlan, add_up
from raylfl.core.population import Round
from raylfl.core.samples import as_tensor
from raylfl.core.transfer import all_to_host

K = TypeVar("K")
ClientStates = Sequence[State | None] | State  # of each client, None without a state so far; or rows [C, ...] of all


class Chunk(NamedTuple):
    """A part of an evaluation: samples of the test set, the validation set, or the clients' training data."""

    kind: str  # test, val or train
    indices: Ints
    first: int = 0  # number of the chunk's first batch within the evaluation
    client: int | None = None  # the owner of these samples; None: several clients
    name: str = ""  # of the evaluation

    def batches(self, size: int) -> int:
        """The number of batches of `size` samples, of which the last one may be smaller."""
        return -(-len(self.indices) // size)


class Room(NamedTuple):
    """What a worker's GPU has room for.

    clients: the largest number of clients in a call. side_by_side: whether clients take their steps side by side, so
    that the bits of a client do not depend on the others of its call.
    """

    clients: int
    side_by_side: bool


@dataclass(frozen=True)
class Task:
    """The local work of some clients of a round; its result depends on task, broadcast and client states only.

    steps: K_i, the local steps of each client; batch_sizes: samples per local step; a_norm: |a_i|_1, where a_i is the
    client's accumulation vector (`raylfl.core.local_rule.a_vector`); lr: the local learning rate eta; sums: the round's
    sums, None if uploads are returned as rows; client_states: a handle of each client's state, None for a client
    without a state so far; received: whether each client's upload is received.
    """

    round: int
    clients: tuple[int, ...]
    steps: tuple[int, ...]
    batch_sizes: tuple[int, ...]
    a_norm: tuple[float, ...]
    lr: float
    sums: SumPlan | None = None
    client_states: tuple[Any, ...] = ()
    received: tuple[bool, ...] = ()

    @staticmethod
    def of(r: Round, rows: Ints, sums: SumPlan | None = None, handles: Mapping[int, Any] | None = None) -> Task:
        """The task of the clients at these positions of the cohort of round r. handles: client -> that of its state."""
        clients = tuple(r.cohort[rows].tolist())
        return Task(
            round=r.index,
            clients=clients,
            steps=tuple(r.steps[rows].tolist()),
            batch_sizes=tuple(r.batch_sizes[rows].tolist()),
            a_norm=tuple(r.a_norm[rows].tolist()),
            lr=r.lr,
            sums=sums,
            client_states=tuple(map((handles or {}).get, clients)),
            received=tuple(r.received[rows].tolist()),
        )

    def __getitem__(self, part: slice) -> Task:
        """The task of some of the clients."""
        names = "clients", "steps", "batch_sizes", "a_norm", "client_states", "received"
        return replace(self, **{name: getattr(self, name)[part] for name in names})

    @property
    def prefix(self) -> str:
        """The beginning of a message about the task: `round 3, client 5, 2, 9, 4, ...: `."""
        return (
            f"round {self.round}, client {', '.join(map(str, self.clients[:4]))}{', ...' * (len(self.clients) > 4)}: "
        )

    @property
    def load(self) -> int:
        """The number of sample gradients of the task; workers get tasks of about equal load."""
        return int(np.dot(self.steps, self.batch_sizes))


def order_of(clients: Sequence[int], among: Ints) -> Ints | None:
    """The permutation that sorts `clients` into the order of `among`; None if they already have that order.

    >>> order_of([5, 2, 9], np.array([9, 5, 7, 2])).tolist()
    [2, 0, 1]
    """
    position = {client: place for place, client in enumerate(among.tolist())}
    places = np.array([position[client] for client in clients], dtype=np.int64)
    return np.argsort(places) if (places[1:] < places[:-1]).any() else None


LOCAL_DRIFT = "local_drift"  # the name of the drift among a client's logged values: metric train/local_drift
REPORT = np.dtype(
    [
        ("client", np.int64),
        ("loss", np.float64),  # mean over its local steps; nan without steps
        ("last_loss", np.float64),  # the last finite loss
        ("gradients", np.int64),  # sample gradients computed
        ("square", np.float64),  # |U_i|^2, by `square_norms`; 0 if its upload has no update
    ]
)


@dataclass
class ClientReports:
    """The reports that clients return with their uploads: loss, number of gradients, errors and logged values.

    rows: one row of dtype `REPORT` per client; errors: client -> the error that ended its local work; logged: name ->
    values that the module logged in training [C], nan for a client that logged none; ways: `GradientMode` -> number of
    gradients of all clients computed in that way; reasons: client -> what it returned that was not finite.
    """

    rows: np.ndarray
    errors: dict[int, str] = field(default_factory=dict)
    logged: dict[str, Floats] = field(default_factory=dict)
    ways: Counter[GradientMode] = field(default_factory=Counter)
    reasons: dict[int, str] = field(default_factory=dict)

    @staticmethod
    def of(clients: Sequence[int], **columns: Any) -> ClientReports:
        """One report for each of these clients. columns: fields of `REPORT`; the others are 0."""
        rows = np.zeros(len(clients), REPORT)
        rows["client"] = clients
        for name, values in columns.items():
            rows[name] = values
        return ClientReports(rows)

    @staticmethod
    def failed(clients: Sequence[int], error: str) -> ClientReports:
        """Reports of clients whose local work ended in this error."""
        nothing = ClientReports.of(clients, loss=np.nan, last_loss=np.nan)
        return ClientReports(nothing.rows, dict.fromkeys(clients, error))

    @staticmethod
    def joined(parts: Sequence[ClientReports]) -> ClientReports:
        """The reports of several tasks, concatenated."""
        rows = np.concatenate([part.rows for part in parts] or [np.zeros(0, REPORT)], dtype=REPORT)
        names = dict.fromkeys(name for part in parts for name in part.logged)
        logged = {
            name: np.concatenate([part.logged.get(name, np.full(len(part.rows), np.nan)) for part in parts])
            for name in names
        }
        reports = ClientReports(rows, logged=logged)
        for part in parts:
            reports.errors |= part.errors
            reports.reasons |= part.reasons
            reports.ways.update(part.ways)
        return reports

    def in_order(self, clients: Ints) -> ClientReports:
        """The reports sorted into the order of these clients."""
        order = order_of(self.rows["client"].tolist(), clients)
        if order is None:
            return self
        logged = {name: values[order] for name, values in self.logged.items()}
        return replace(self, rows=self.rows[order], logged=logged)

    @property
    def bad(self) -> np.ndarray:
        """The rows (of dtype `REPORT`) of clients that failed or returned non-finite values."""
        rows: np.ndarray = self.rows[np.isin(self.rows["client"], [*self.errors, *self.reasons])]
        return rows

    def squares(self, clients: Ints) -> Floats:
        """The squared norms |U_i|^2 of the given clients' updates, in the order of `clients`."""
        known = dict(self.rows[["client", "square"]].tolist())
        return np.array([known[client] for client in clients.tolist()])

    def logs(self, clients: Ints) -> dict[str, Floats]:
        """Name -> values of training, one per given client, in the order of the reports: losses, and logged values."""
        mask = np.isin(self.rows["client"], clients)
        return {name: values[mask] for name, values in {"loss": self.rows["loss"], **self.logged}.items()}


@dataclass
class TaskResult:
    """The result of a task, as it travels from a worker to the server.

    reports: one for each client of the task. uploads: name -> rows [C, ...]; uploads that were added up have no rows
    [0, ...]. client_states: the clients' new states, or references to them. sums: uploads that were added up, of this
    task and possibly of others: for each term of the round's `SumPlan`, the sums over subtrees of the tree in which
    uploads are added. All but `reports` is empty if the whole task failed.

    A pickled result has numpy arrays in place of tensors, which are read from shared memory without a copy.
    """

    reports: ClientReports
    uploads: State = field(default_factory=dict)
    client_states: Sequence[Any] = ()
    sums: list[SubtreeSums] = field(default_factory=list)

    @staticmethod
    def joined(parts: Sequence[TaskResult]) -> TaskResult:
        """The results of several tasks as one; a failed task has rows of zeros and empty states, unless all failed."""
        counts = [len(part.clients) for part in parts]
        states = [s for part, n in zip(parts, counts, strict=True) for s in part.client_states or [{}] * n]
        reports = ClientReports.joined([part.reports for part in parts])
        return TaskResult(reports, joined_rows([p.uploads for p in parts], counts), states if any(states) else [])

    @staticmethod
    def of_sums(sums: list[SubtreeSums]) -> TaskResult:
        """A result without clients: partial sums of several tasks, whose own results lack them."""
        return TaskResult(ClientReports.of([]), sums=sums)

    @property
    def clients(self) -> list[int]:
        """The clients of the task."""
        clients: list[int] = self.reports.rows["client"].tolist()
        return clients

    @property
    def failed(self) -> bool:
        """Whether a client of the task failed."""
        return bool(self.reports.errors)

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "uploads": pack(self.uploads), "sums": [pack(term) for term in self.sums]}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state, uploads=unpack(state["uploads"]), sums=[unpack(term) for term in state["sums"]])


def added_up(results: Iterable[TaskResult], plan: SumPlan | None, stay: bool = False) -> list[TaskResult]:
    """The results of a worker's tasks, in which partial sums replace uploads as the plan says; None: nothing is added.

    Failed tasks are left out. The first result that did not fail gets the sums of all tasks: those that a GPU has added
    up task by task, and of the other tasks' uploads. stay: as in `SumPlan.parts`.
    """
    if plan is None:
        return list(results)
    done, parts = list(results), list[list[SubtreeSums]]()
    rest = [result for result in done if not (result.sums or result.failed)]
    for result in done:
        if result.sums:
            parts.append(result.sums if stay else [all_to_host(sums) for sums in result.sums])
            result.sums = []
    if rest:
        clients = [client for result in rest for client in result.clients]
        parts.append(plan.parts(clients, [result.uploads for result in rest], stay))
        for result in rest:
            result.uploads = without_rows(result.uploads, plan)
    if parts:
        first = next(result for result in done if not result.failed)
        first.sums = add_up(parts, len(plan.clients), stay) if parts[1:] else parts[0]
    return done


def without_rows(uploads: State, plan: SumPlan) -> State:
    """The uploads of a task; those that the plan's sums replace have no rows [0, ...]."""
    return {
        name: torch.empty(0, *rows.shape[1:], dtype=rows.dtype) if plan.replaces(name) else rows
        for name, rows in uploads.items()
    }


def joined_rows(parts: Sequence[State], counts: Sequence[int]) -> State:
    """The uploads of several tasks with these numbers of clients, with zeros for a failed task; empty if all failed."""
    if len(parts) == 1:
        return dict(parts[0])
    some: State = next((uploads for uploads in parts if uploads), {})
    return {
        name: torch.cat(
            [u[name] if u else like.new_zeros(n, *like.shape[1:]) for u, n in zip(parts, counts, strict=True)]
        )
        for name, like in some.items()
    }


def pack(tensors: Mapping[K, Tensor]) -> dict[K, np.ndarray]:
    """Converts tensors to numpy arrays, which Ray reads from its object store without a copy."""
    return {name: tensor.cpu().contiguous().numpy() for name, tensor in tensors.items()}


def unpack(packed: Mapping[K, np.ndarray]) -> dict[K, Tensor]:
    """Converts packed arrays to tensors of the same memory, which may be shared and must not be written."""
    return {name: as_tensor(array) for name, array in packed.items()}
