"""Simulation of an algorithm on a gradient function, over recorded rounds.

A recorded round is a `Round` whose cohort, lost uploads and numbers of local steps are given in advance.
"""

import copy
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from raylfl.config.groups.runtime import RuntimeConfig
from raylfl.core.algorithm import Algorithm, ServerState, State
from raylfl.core.local import run_local
from raylfl.core.local_rule import LocalRule, a_norm
from raylfl.core.mixing import Edges
from raylfl.core.oracle import Batch, Oracle
from raylfl.core.population import Population, Round, SystemInfo
from raylfl.experiment.parts import Initial
from raylfl.heterogeneity.trace import Row, make_row
from raylfl.runtime.round.loop import Federation, dispatch_of
from raylfl.runtime.round.plan import Planner
from raylfl.runtime.round.state import RoundResult
from raylfl.runtime.workers.backend import InProcess
from raylfl.runtime.workers.local_work import work_of
from raylfl.runtime.workers.task import ClientReports, ClientStates, Task, TaskResult

Gradient = Callable[[int, Tensor, int, int], Tensor]
"""gradient(client, x [d], round, local step) -> [d]; local step -1: the full-batch gradient."""


class FunctionOracle(Oracle):
    """A gradient oracle that calls a gradient function; all losses are 0.

    The content of a batch is (client, round, local step). width: the number of parameters d.
    """

    def __init__(self, gradient: Gradient, width: int, dtype: torch.dtype = torch.float64):
        super().__init__()
        self.gradient, self._width, self.dtype = gradient, width, dtype

    @property
    def width(self) -> int:
        return self._width

    def workspace(self, count: int) -> Tensor:
        return torch.empty(count, self._width, dtype=self.dtype)

    def gradients(self, x: Tensor, batches: Sequence[Batch], seeds: Callable[[int], int]) -> tuple[Tensor, Tensor]:
        rows = [self.gradient(b.content[0], row.clone(), *b.content[1:]) for b, row in zip(batches, x, strict=True)]
        return torch.zeros(len(rows)), torch.stack(rows)


class FunctionBackend(InProcess):
    """A backend that runs local work with a gradient function, for a whole cohort in one solver call."""

    one_by_one = None

    def __init__(self, algorithm: Algorithm, gradient: Gradient, x0: Tensor, population: Population, rule: LocalRule):
        self.algorithm, self.x0, self.population, self.rule = algorithm, x0, population, rule
        self.oracle = FunctionOracle(gradient, x0.numel(), x0.dtype)

    def initial(self) -> Initial:
        return Initial(self.x0, self.x0.new_zeros(0), self.x0.new_zeros(0))

    def attempt(self, task: Task, broadcast: State, client_states: ClientStates) -> TaskResult:
        rows = client_states
        if not isinstance(rows, dict):
            fresh = self.algorithm.init_clients(self.x0, 1)
            rows = {name: torch.cat([(state or fresh)[name] for state in rows]) for name in fresh}
        result = run_local(
            self.algorithm,
            self.oracle,
            lambda t, active: [Batch((task.clients[i], task.round, t), 1) for i in active],
            lambda t, row: 0,
            broadcast,
            rows,
            work_of(task, self.population, seed=0),
            self.rule,
            [Batch((i, task.round, -1), 1) for i in task.clients] if self.algorithm.full_gradient else None,
        )
        states = [
            {name: values[k : k + 1].clone() for name, values in result.client_state.items()}
            for k in range(len(task.clients))
        ]
        return TaskResult(ClientReports.of(task.clients), result.uploads, states)


class RecordedRounds(Planner):
    """A planner that plans the recorded round `next`, whatever the round number."""

    next: Round

    def __init__(self) -> None:
        pass

    def plan(self, r: int, server: ServerState) -> Round:
        return self.next

    def sample_by_norms(self, result: RoundResult, server: ServerState) -> RoundResult:
        return result

    def row(self, r: Round) -> Row:
        return make_row(r.index, r.cohort, r.draws, r.received, r.steps)

    def graph_line(self, r: Round) -> str | None:
        return None


class Simulation:
    """A run of an algorithm on a gradient function, with the round loop of `raylfl.runtime.round`.

    gradient: (client, x [d], round, local step) -> gradient [d]; local step -1 means the full-batch gradient. x0:
    the initial model [d]. rule: options of the local solver; None: plain SGD. A centralised method (pattern `Alone`)
    trains on F = sum_i w_i f_i as a single client; `merged` is then true.
    """

    def __init__(
        self,
        algorithm: Algorithm,
        gradient: Gradient,
        x0: Tensor,
        population: Population,
        rule: LocalRule | None = None,
    ):
        self.rule, self.x0 = rule or LocalRule(), x0
        self.merged = algorithm.pattern.merged and population.count > 1

        def objective(client: int, x: Tensor, r: int, t: int) -> Tensor:
            rows = [float(w) * gradient(i, x, r, -1) for i, w in enumerate(population.weights)]
            return torch.stack(rows).sum(dim=0)

        trained = Population.of(population.sizes.sum(keepdims=True)) if self.merged else population
        self.backend = FunctionBackend(algorithm, objective if self.merged else gradient, x0, trained, self.rule)
        self.planner = RecordedRounds()
        runtime, count = RuntimeConfig(micro_cohort=population.count), population.count
        dispatch = dispatch_of(algorithm, self.backend, runtime, count, width=x0.numel())
        self.federation = Federation(
            algorithm=algorithm,
            backend=self.backend,
            planner=self.planner,
            dispatch=dispatch,
            costs=None,
            measurements=None,
            state=dispatch.initial_state(self.backend.initial(), trained),
            keeps_client_state=bool(algorithm.init_clients(x0, 1)),
        )

    @property
    def algorithm(self) -> Algorithm:
        return self.federation.algorithm

    @property
    def server(self) -> ServerState:
        """The server state after the last round."""
        return self.federation.collect().server

    @property
    def clients(self) -> dict[int, State]:
        """The client states by client number, for clients that have taken part; empty if the method has none."""
        return self.federation.state.clients

    def restart(self, algorithm: Algorithm, server: ServerState, clients: dict[int, State]) -> None:
        """Replace the algorithm and its states, from which the next round then continues."""
        for part in (self.federation, self.federation.dispatch, self.backend):
            part.algorithm = algorithm
        self.federation.resume(replace(self.federation.state, server=server, clients=dict(clients)))

    def client_state(self, clients: Sequence[int]) -> State:
        """The states of the given clients, by name, as rows [C, ...]; initial states for clients without a round."""
        fresh = self.algorithm.init_clients(self.x0, 1)
        states = [self.clients.get(int(i), fresh) for i in clients]
        return {name: torch.cat([s[name] for s in states]) for name in fresh}

    def run_round(self, r: Round) -> ServerState:
        """Run one round, which changes `server` and `clients`; returns the new server state."""
        self.planner.next, self.federation.state.round = self._prepared(r), r.index
        for _ in self.federation.round(last=False):
            pass
        return self.server

    def uploads(self, r: Round) -> tuple[State, State]:
        """Returns the uploads and the new states of the received clients of round r, with rows in cohort order.

        The simulation itself stays unchanged. A graph method that keeps node states at workers returns no client
        states.
        """
        broadcast, dispatch = self.algorithm.broadcast(self.server), copy.copy(self.federation.dispatch)
        dispatch.rows = "they are returned"
        result = dispatch.send(self._prepared(r), broadcast, self.federation.state).result()
        names = result.client_states[0] if result.client_states else {}
        return dispatch.uploads(result), {name: torch.cat([s[name] for s in result.client_states]) for name in names}

    def _prepared(self, r: Round) -> Round:
        steps = np.minimum(r.steps, 1) if self.algorithm.one_step else r.steps
        if self.merged:
            one = recorded_round(r.index, [0], self.backend.population, lr=r.lr, received=r.received.any())
            r, steps = one, np.array([steps.max(initial=0)])
        return replace(r, steps=steps, a_norm=a_norm(steps, self.rule, r.lr, self.algorithm.proximal))


def simulate(
    algorithm: Algorithm,
    gradient: Gradient,
    rounds: Sequence[Round],
    x0: Tensor,
    population: Population,
    rule: LocalRule | None = None,
) -> Iterator[tuple[ServerState, dict[int, State]]]:
    """Runs the algorithm over recorded rounds; after each, yields (server state, client number -> client state).

    Clients without a state so far are absent. Later rounds do not change what was yielded.

    gradient: (client, x [d], round, local step) -> gradient [d]; local step -1 means the full-batch gradient. x0:
    the initial model [d]. rule: options of the local solver; None: plain SGD.
    """
    run = Simulation(algorithm, gradient, x0, population, rule)
    for r in rounds:
        server = run.run_round(r)
        yield copy.deepcopy((server, dict(run.clients)))


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
    edges: Edges | None = None,
) -> Round:
    """A round with the sampled clients `cohort`; every array argument may be one value for all clients.

    In the order of the cohort: draws, how often each client is drawn; received, whether its upload arrives. For all N
    clients: steps, the numbers of local steps K_i; failure, the probabilities that an upload is lost; inclusion, the
    probabilities of a draw (None: 1/N).

    rule, proximal: options of the local solver and the factor mu of FedProx, from which the norms |a_i|_1 of the
    accumulation vectors are computed. edges: the graph of a method without a server.
    """
    ids, n = np.asarray(cohort, dtype=np.int64), population.count
    everyone = np.broadcast_to(np.asarray(steps, dtype=np.int64), n)
    q = np.broadcast_to(np.asarray(failure, dtype=np.float64), n)
    p = np.broadcast_to(np.asarray(1.0 / n if inclusion is None else inclusion, dtype=np.float64), n)
    s = np.broadcast_to(np.asarray(draws, dtype=np.int64), len(ids)).copy()
    norms = a_norm(everyone, rule or LocalRule(), lr, proximal)
    known = SystemInfo(
        index=index,
        population=population,
        failure=q,
        a_norm=norms,
        available=np.ones(n, dtype=bool),
        lr=lr,
        size=int(s.sum()),
    )
    return Round(
        index=index,
        cohort=ids,
        draws=s,
        received=np.broadcast_to(np.asarray(received, dtype=bool), len(ids)).copy(),
        steps=everyone[ids],
        batch_sizes=np.ones(len(ids), dtype=np.int64),
        lr=lr,
        population=population,
        a_norm=norms[ids],
        failure=q[ids],
        inclusion=p[ids],
        edges=edges,
        system_of=lambda: known,
    )
