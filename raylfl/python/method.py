"""Any method as two functions on arrays, `init` and `round`, for a notebook or another program's loop."""

import copy
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from raylfl.algorithms import ALGORITHMS
from raylfl.config.components import build, make_typed
from raylfl.config.registries import REGISTRIES
from raylfl.core.algorithm import Algorithm, ServerState, State
from raylfl.core.local_rule import LocalRule
from raylfl.core.population import Population
from raylfl.errors import BadConfig
from raylfl.heterogeneity.links.bernoulli import Perfect
from raylfl.heterogeneity.topologies.base import Graph
from raylfl.heterogeneity.world import RunContext
from raylfl.testing.simulation import Simulation, recorded_round

Gradient = Callable[[int, Any, int], Any]
"""gradient(client, x [d], local step) -> gradient [d] of the client's loss; local step -1: the full-batch gradient."""


@dataclass(frozen=True)
class MethodState:
    """The state of a method after `index` rounds: a value, which later rounds leave as it is.

    x: the model [d], of the type that `init` got. server: the server state by name. clients: client -> its state, for
    clients that have taken part in a round.
    """

    x: Any
    server: ServerState
    clients: dict[int, State]
    index: int = 0


@dataclass(frozen=True)
class Method:
    """A method as two functions, `init` and `round`, made by `raylfl.method`.

    algorithm, population: the method and its clients. rule: options of the local solver. topology: the graph of a
    method without a server, else None.
    """

    algorithm: Algorithm
    population: Population
    rule: LocalRule
    topology: Graph | None

    def init(self, x: Any) -> MethodState:
        """The state before the first round. x: the initial model [d], a floating-point numpy array or tensor."""
        simulation = self._simulation(x, lambda client, point, t: point)
        return MethodState(x, copy.deepcopy(simulation.server), {})

    def round(
        self,
        state: MethodState,
        gradient: Gradient,
        cohort: Sequence[int] | None = None,
        *,
        lr: float = 0.1,
        steps: npt.ArrayLike = 1,
        draws: npt.ArrayLike = 1,
        received: npt.ArrayLike = True,
        failure: npt.ArrayLike = 0.0,
        inclusion: npt.ArrayLike | None = None,
    ) -> MethodState:
        """The state after one more round, in which these clients take part (None: all).

        gradient: (client, x [d], local step) -> [d], arrays of the type of the model; local step -1 means the
        full-batch gradient, which some methods need. lr: the local learning rate eta. steps, draws, received,
        failure, inclusion: as in `raylfl.testing.recorded_round`; inclusion None: the method's own `probabilities` if
        it samples clients itself, else 1/N. Raises BadConfig if the method needs all clients in this round.
        """
        count, index = self.population.count, state.index
        clients = list(range(count)) if cohort is None else list(cohort)
        if self.algorithm.full_participation(state.server, index) and len(set(clients)) < count:
            raise BadConfig(f"method: {type(self.algorithm).__name__} needs all {count} clients in round {index}")
        edges = None
        if self.topology is not None:
            edges = self.topology.edges(index, RunContext(0, self.population, index + 1), Perfect())
        r = recorded_round(
            *(index, clients, self.population),
            steps=steps,
            lr=lr,
            draws=draws,
            received=received,
            failure=failure,
            inclusion=inclusion,
            rule=self.rule,
            proximal=self.algorithm.proximal,
            edges=edges,
        )
        assert r.system is not None
        p = self.algorithm.probabilities(state.server, r.system)
        if p is not None and inclusion is None:
            r = replace(r, inclusion=p[r.cohort])
        simulation = self._simulation(state.x, gradient)
        simulation.restart(copy.deepcopy(self.algorithm), copy.deepcopy(state.server), copy.deepcopy(state.clients))
        server = simulation.run_round(r)
        return MethodState(_like(state.x, server["x"].clone()), server, dict(simulation.clients), index + 1)

    def _simulation(self, x: Any, gradient: Gradient) -> Simulation:
        start = torch.as_tensor(x).detach().clone()

        def on_tensors(client: int, point: Tensor, r: int, t: int) -> Tensor:
            return torch.as_tensor(gradient(client, _like(x, point), t)).detach().to(start.dtype)

        return Simulation(self.algorithm, on_tensors, start, self.population, self.rule)


def method(
    name: str | type[Algorithm],
    clients: int | Sequence[int],
    *,
    topology: str | Mapping[str, Any] | None = None,
    rule: LocalRule | None = None,
    **options: Any,
) -> Method:
    """A registered method, or a class of your own, as functions on arrays.

    name: its name in a config, a class path or a class. clients: the number of clients N, or the number of samples of
    each, to which weights are then proportional. topology: the name of a graph, or its keys in a config, for a method
    without a server. rule: options of the local solver, such as `LocalRule(momentum=0.9)`; None: plain SGD. options:
    the method's own. Raises BadConfig for unknown names and options, and for a missing or unused topology.
    """
    if isinstance(name, str):
        chosen = {"class_path" if "." in name else "name": name}
        algorithm = build(ALGORITHMS, {**chosen, **options}, "algorithm")
    else:
        algorithm = make_typed(name, options, "algorithm")
    kind = type(algorithm).__name__
    if algorithm.pattern.peers == (topology is None):
        need = "a graph, such as ring" if topology is None else f"null: {kind} has a server"
        raise BadConfig(f"topology={topology}, but must be {need}")
    if isinstance(clients, int):
        population = Population.of(np.ones(clients, dtype=np.int64))
    else:
        population = Population.of(np.asarray(clients), "data_size")
    graph = None
    if topology is not None:
        keys = {"name": topology} if isinstance(topology, str) else topology
        graph = build(REGISTRIES["topology"], keys, "topology")
        graph.check(RunContext(0, population, 1))
    return Method(algorithm, population, rule or LocalRule(), graph)


def _like(x: Any, tensor: Tensor) -> Any:
    return tensor if isinstance(x, Tensor) else tensor.numpy()
