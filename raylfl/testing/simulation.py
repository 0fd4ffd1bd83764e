"""The round loop in small: any algorithm, any gradient function, recorded rounds."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from raylfl.core.algorithm import Algorithm, ServerState, State, Work
from raylfl.core.local import LocalRule, a_norm, run_local
from raylfl.core.oracle import Batch, Oracle
from raylfl.core.population import Floats, Ints, Population, Round, SystemInfo

Gradient = Callable[[int, Tensor, int, int], Tensor]
"""gradient(client, x [d], round, step) -> [d]; step -1 asks for the full-batch gradient."""

POOL = -1  # the imaginary client that owns everybody's data


class FunctionOracle(Oracle):
    """An oracle over a gradient function; the losses it gives are 0."""

    def __init__(self, gradient: Gradient, width: int, dtype: torch.dtype = torch.float64):
        self.gradient, self._width, self.dtype = gradient, width, dtype

    @property
    def width(self) -> int:
        return self._width

    def workspace(self, count: int) -> Tensor:
        return torch.empty(count, self._width, dtype=self.dtype)

    def gradients(self, x: Tensor, batches: Sequence[Batch], seeds: Callable[[int], int]) -> tuple[Tensor, Tensor]:
        rows = [self.gradient(b.content[0], row.clone(), *b.content[1:]) for b, row in zip(batches, x, strict=True)]
        return torch.zeros(len(rows)), torch.stack(rows)


@dataclass
class Simulation:
    """A run of one algorithm on plain functions; `clients` holds the states of those who have any."""

    algorithm: Algorithm
    gradient: Gradient
    x0: Tensor
    population: Population
    rule: LocalRule = field(default_factory=LocalRule)
    clients: dict[int, State] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.oracle = FunctionOracle(self._gradient, self.x0.numel(), self.x0.dtype)
        self.server: ServerState = self.algorithm.init_server(self.x0, self.population)

    def client_state(self, clients: Sequence[int]) -> State:
        """The states of these clients as rows."""
        fresh = self.algorithm.init_clients(self.x0, 1)
        states = [self.clients.get(int(i), fresh) for i in clients]
        return {name: torch.cat([s[name] for s in states]) for name in fresh}

    def run_round(self, r: Round) -> ServerState:
        """One round; afterwards `server` and `clients` are those after it."""
        steps = np.minimum(r.steps, 1) if self.algorithm.one_step else r.steps
        r = replace(r, steps=steps, a_norm=a_norm(steps, self.rule, r.lr, self.algorithm.proximal))
        got = r.received_view
        if len(got.cohort) == 0:
            self.server = self.algorithm.empty_round(self.server, r)
            return self.server
        uploads, client_state = self.uploads(r)
        self.server, _ = self.algorithm.server_step(self.server, uploads, got)
        answer = self.algorithm.update_clients(self.server, uploads, client_state, got)
        client_state = client_state if answer is None else answer
        for k, client in enumerate(got.cohort):
            self.clients[int(client)] = {name: rows[k : k + 1].clone() for name, rows in client_state.items()}
        return self.server

    def uploads(self, r: Round) -> tuple[State, State]:
        """(uploads, new states) of the received clients of round r, rows in cohort order."""
        if self.algorithm.pooled:
            steps = np.array([r.steps.max()])
            return self.local(r, [POOL], steps, np.ones(1), self.algorithm.broadcast(self.server))
        return self._ring(r) if self.algorithm.route == "ring" else self._star(r)

    def local(
        self, r: Round, clients: Sequence[int], steps: Ints, relative_weight: Floats, broadcast: State
    ) -> tuple[State, State]:
        """(uploads, new states) after the local steps of these clients, in one call of the solver."""
        norms = a_norm(steps, self.rule, r.lr, self.algorithm.proximal)
        result = run_local(
            self.algorithm,
            self.oracle,
            lambda t, active: [Batch((clients[i], r.index, t), 1) for i in active],
            lambda t, row: 0,
            broadcast,
            self.client_state(clients),
            Work(steps.astype(float), norms, relative_weight, r.lr),
            self.rule,
            [Batch((i, r.index, -1), 1) for i in clients] if self.algorithm.full_gradient else None,
        )
        return result.uploads, result.client_state

    def _cohort(self, r: Round, rows: Sequence[int], broadcast: State) -> tuple[State, State]:
        clients = [int(r.cohort[k]) for k in rows]
        relative = self.population.weights[clients] / (1.0 / self.population.count)
        return self.local(r, clients, r.steps[list(rows)], relative, broadcast)

    def _star(self, r: Round) -> tuple[State, State]:
        uploads, client_state = self._cohort(r, range(len(r.cohort)), self.algorithm.broadcast(self.server))
        keep = torch.from_numpy(np.flatnonzero(r.received))
        return {k: v[keep] for k, v in uploads.items()}, {k: v[keep] for k, v in client_state.items()}

    def _ring(self, r: Round) -> tuple[State, State]:
        broadcast, uploads = self.algorithm.broadcast(self.server), {}
        for k in range(len(r.cohort)):
            sent, _ = self._cohort(r, [k], broadcast)
            if r.received[k]:
                broadcast, uploads = {name: rows[0] for name, rows in sent.items()}, sent
        return uploads, {}

    def _gradient(self, client: int, x: Tensor, r: int, t: int) -> Tensor:
        if client != POOL:
            return self.gradient(client, x, r, t)
        rows = [float(w) * self.gradient(i, x, r, -1) for i, w in enumerate(self.population.weights)]
        return torch.stack(rows).sum(dim=0)


def simulate(
    algorithm: Algorithm,
    gradient: Gradient,
    rounds: Sequence[Round],
    x0: Tensor,
    population: Population,
    rule: LocalRule | None = None,
) -> Iterator[tuple[ServerState, dict[int, State]]]:
    """(server, clients) after each of the recorded rounds, as copies that later rounds do not change."""
    run = Simulation(algorithm, gradient, x0, population, rule or LocalRule())
    for r in rounds:
        server = run.run_round(r)
        yield copy.deepcopy(server), dict(run.clients)


def recorded_round(
    index: int,
    cohort: npt.ArrayLike,
    population: Population,
    *,
    steps: npt.ArrayLike = 1,
    lr: float = 0.1,
    draws: npt.ArrayLike = 1,
    received: npt.ArrayLike = True,
    failure: npt.ArrayLike = 0.0,
    inclusion: npt.ArrayLike | None = None,
    rule: LocalRule | None = None,
    proximal: float = 0.0,
) -> Round:
    """Round r of these clients; `draws` and `received` align with the cohort or are the same for all.

    steps: K_i, failure: q_i, inclusion: p_i, of all N clients or the same for all; p_i = 1/N where left out.
    rule, proximal: what |a_i|_1 follows from.
    """
    ids, n = np.asarray(cohort, dtype=np.int64), population.count
    everyone = np.broadcast_to(np.asarray(steps, dtype=np.int64), n)
    q = np.broadcast_to(np.asarray(failure, dtype=np.float64), n)
    p = np.broadcast_to(np.asarray(1.0 / n if inclusion is None else inclusion, dtype=np.float64), n)
    s = np.broadcast_to(np.asarray(draws, dtype=np.int64), len(ids)).copy()
    norms = a_norm(everyone, rule or LocalRule(), lr, proximal)
    known = SystemInfo(index, population, q, norms, np.ones(n, dtype=bool), lr, int(s.sum()))
    return Round(
        index,
        ids,
        s,
        np.broadcast_to(np.asarray(received, dtype=bool), len(ids)).copy(),
        everyone[ids],
        np.ones(len(ids), dtype=np.int64),
        lr,
        population,
        norms[ids],
        q[ids],
        p[ids],
        system=known,
    )
