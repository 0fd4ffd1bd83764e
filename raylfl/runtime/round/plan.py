"""The plan of a round before its local work: the sampled clients, their local steps, and which uploads are lost.

It depends only on config, seed and round, unless the method chooses clients by its state or by the clients' updates.
"""

from contextlib import suppress
from dataclasses import replace
from functools import cached_property

import numpy as np

from raylfl.algorithms.graph import GraphAlgorithm
from raylfl.core.algorithm import ServerState, overrides
from raylfl.core.arrays import Bools, Floats, Ints
from raylfl.core.chunked_matrix import norms as norms_of
from raylfl.core.chunked_matrix import select
from raylfl.core.draws import Law
from raylfl.core.keyed import keyed
from raylfl.core.local_rule import a_norm
from raylfl.core.pattern import ExchangePattern
from raylfl.core.population import Round, SystemInfo
from raylfl.core.returned import local_steps_of
from raylfl.errors import BadConfig
from raylfl.experiment.parts import Experiment
from raylfl.heterogeneity.links import Link
from raylfl.heterogeneity.participation.base import Draw, Independent, Sampler
from raylfl.heterogeneity.participation.trace import Trace
from raylfl.heterogeneity.topologies.record import graph_line
from raylfl.heterogeneity.trace import Row, make_row
from raylfl.runtime.round.state import RoundResult


class Planner:
    """Plans the rounds of one experiment: samples (or replays) their clients, local steps and lost uploads."""

    def __init__(self, experiment: Experiment):
        self.experiment = experiment
        self.everyone = np.arange(experiment.world.count, dtype=np.int64)
        self.replayed = experiment.participation if isinstance(experiment.participation, Trace) else None
        self.samples_by_norm = experiment.algorithm.samples_by_norm and self.replayed is None
        self.samples = overrides(experiment.algorithm, "probabilities")  # the method samples the clients itself
        self._ahead: Round | None = None
        self._systems: dict[int, SystemInfo] = {}  # of this round, and of the previous one, which is being measured
        self._drawn: dict[int, tuple[ServerState, Floats]] = {}  # round -> (server state, the method's probabilities)
        self._coefficients: tuple[tuple[Floats | Bools, ...], Floats | None] = (), None  # arguments, and their result

    def lr(self, r: int) -> float:
        """The learning rate eta of round r as configured; a method may rescale it (`Algorithm.step_length`)."""
        return self.experiment.rule.lr * self.experiment.rule.lr_schedule.over_rounds(r)

    def system(self, r: int) -> SystemInfo:
        """The system state of all N clients (availability, failure probabilities, ...) before round r; cached."""
        if r not in self._systems:
            self._systems = {k: info for k, info in self._systems.items() if k == r - 1}
            self._systems[r] = self._system_info(r)
        return self._systems[r]

    def _system_info(self, r: int) -> SystemInfo:
        participation, world = self.experiment.participation, self.experiment.world
        proximal = self.experiment.algorithm.proximal
        available = None if self.replayed else participation.eligible(r, world)
        lr, last = self.lr(r), next(iter(self._systems.values()), None)
        if last is not None and self._steady and (lr == last.lr or not proximal):  # without a pass over N clients
            return replace(
                last, index=r, lr=lr, available=last.available if available is None else read_only(available)
            )
        failure, row = np.array(self.experiment.link.failure(r, self.everyone, world)), self._recorded(r)
        if "q" in row:
            failure[row["cohort"]] = row["q"]
        return SystemInfo(
            index=r,
            population=world.population,
            failure=read_only(failure),  # several rounds may have the array
            a_norm=read_only(a_norm(self.steps(r, self.everyone)[0], self.experiment.rule, lr, proximal)),
            available=read_only(np.ones(world.count, dtype=bool) if available is None else available),
            lr=lr,
            size=participation.cohort_size(world) if isinstance(participation, Sampler) else world.count,
        )

    @cached_property
    def _steady(self) -> bool:
        """Whether it is certain that failure probabilities and local steps of all clients are those of every round."""
        link = type(self.experiment.link).varies is not Link.varies and not self.experiment.link.varies
        work = self.experiment.work.varies or overrides(self.experiment.algorithm, "draw_local_steps")
        return link and not work and self.replayed is None

    @cached_property
    def _all_available(self) -> bool:
        """Whether all clients are available in every round, because no process decides about it."""
        return self.experiment.participation.eligible(0, self.experiment.world) is None

    def expected_draws(self, c: SystemInfo, server: ServerState) -> tuple[Floats | None, Law | None]:
        """(the expected number of draws of each client [N], the distribution of these draws), each None if unknown.

        A method that samples clients itself draws them with replacement; otherwise the participation process draws
        them. Its expected draws are unknown if clients may be unavailable: its probabilities are those given this
        round's available clients. c: the system state before the round (`system`).
        """
        experiment = self.experiment
        if experiment.algorithm.samples_by_norm:
            return None, "with_replacement"
        drawn_for, p = self._drawn.pop(c.index, (None, None))
        if drawn_for is not server:
            p = experiment.algorithm.probabilities(server, c) if self.samples else None
        if p is not None:
            return c.size * p if self._all_available else None, "with_replacement"
        return experiment.participation.marginals(experiment.world, c.index), experiment.participation.law

    def expected_coefficients(self, c: SystemInfo, server: ServerState) -> Floats | None:
        """The method's expected aggregation coefficients [N] (`Algorithm.expected_coefficients`); None if unknown.

        c: the system state before the round (`system`). The result is the previous array if nothing has changed.
        """
        experiment, participation = self.experiment, self.experiment.participation
        if isinstance(participation, Independent) and not experiment.algorithm.samples_by_norm:
            # p_i: redraws under `on_empty: resample` only scale all coefficients by one factor
            marginals: Floats | None = participation.probabilities(c.index, experiment.world)
            law = participation.law
        else:
            marginals, law = self.expected_draws(c, server)
        if marginals is None:
            return None
        arguments = c.failure, c.a_norm, c.available, marginals
        if not (self._coefficients[0] and all(map(same_array, arguments, self._coefficients[0]))):
            self._coefficients = arguments, experiment.algorithm.expected_coefficients(c, marginals, law)
        return self._coefficients[1]

    def draw(self, r: int, server: ServerState) -> tuple[Draw, Floats | None]:
        """Draws the clients of round r; returns (draw, p).

        server: the server state before the round. p: the probabilities [N] from which the method itself samples the
        clients, None if it does not, and in a replay. For a method with `samples_by_norm` the draw has all available
        clients, because the server samples after the local work.
        """
        experiment = self.experiment
        if self.replayed:
            return self.replayed.draw(r, experiment.world), None
        if self.samples_by_norm:  # every available client trains first; then the server samples by norms
            return Draw.once(self.system(r).available.nonzero()[0]), None
        if experiment.algorithm.full_participation(server, r):
            return Draw.once(self.everyone), None
        p = experiment.algorithm.probabilities(server, self.system(r)) if self.samples else None
        if p is not None:
            if experiment.config.eval.inconsistency:  # which reads them once more
                self._drawn = {k: drawn for k, drawn in self._drawn.items() if k == r - 1} | {r: (server, p)}
            return self.sample(p, r), p
        return experiment.participation.draw(r, experiment.world), None

    def sample(self, p: Floats, r: int) -> Draw:
        """Draws `participation.size` clients for round r with replacement, from probabilities p [N] of the method."""
        assert isinstance(self.experiment.participation, Sampler)
        return self.experiment.participation.draw_from(p, r, self.experiment.world)

    def plan(self, r: int, server: ServerState) -> Round:
        """Plans round r: the sampled clients, their local steps, and the uploads that will be received.

        server: the server state before the round. For a method with `samples_by_norm` the round has all available
        clients, and `sample_by_norms` makes the final round.
        """
        ahead, self._ahead = self._ahead, None
        if ahead is not None and ahead.index == r:
            return ahead
        planned = self.round_of(r, *self.draw(r, server))
        if self.samples_by_norm:
            return replace(planned, received=np.ones(len(planned.cohort), dtype=bool))
        return planned

    def plan_ahead(self, r: int, server: ServerState) -> None:
        """Plans round r already, if the plan does not depend on the server state; server: a former one."""
        if not self.depends_on_server:
            with suppress(Exception):  # `plan` raises it in its own time
                self._ahead = self.round_of(r, *self.draw(r, server))

    @cached_property
    def depends_on_server(self) -> bool:
        """Whether the plan of a round may depend on the server state."""
        algorithm = self.experiment.algorithm
        by_method = self.samples_by_norm or self.samples or overrides(algorithm, "full_participation")
        return self.replayed is not None or by_method or overrides(algorithm, "step_length")

    def sample_by_norms(self, result: RoundResult, server: ServerState) -> RoundResult:
        """Samples clients by their update norms; returns the round result of the sampled clients only.

        For methods without `samples_by_norm`, returns `result` unchanged. A client that failed or returned non-finite
        values counts as unavailable in this round. server: the server state before the round.
        """
        if not self.samples_by_norm:
            return result
        index, system = result.round.index, self.system(result.round.index)
        norms = np.full(system.population.count, np.nan)
        computed = result.round.received_view.cohort
        if len(computed):
            norms[computed] = norms_of(result.uploads["update"]).double().numpy()
        available = replace(system, available=system.available & np.isin(self.everyone, computed))
        p = self.experiment.algorithm.norm_probabilities(server, available, norms)
        planned = self.round_of(index, self.sample(p, index), p)
        where = {int(client): k for k, client in enumerate(computed)}
        keep = [where[int(client)] for client in planned.received_view.cohort]
        uploads = {name: select(rows, keep) for name, rows in result.uploads.items()}
        states = [result.client_states[k] for k in keep] if result.client_states else []
        return replace(result, round=planned, uploads=uploads, client_states=states)

    def round_of(self, r: int, draw: Draw, p: Floats | None) -> Round:
        """Round r for clients that are drawn already: decides their order, local steps, learning rate and lost uploads.

        In a replay, local steps, lost uploads and probabilities are the recorded ones. On a graph no upload is lost,
        because messages along edges are lost instead. draw: the clients and their numbers of draws. p: as returned by
        `draw`.
        """
        experiment, algorithm, world = self.experiment, self.experiment.algorithm, self.experiment.world
        cohort, draws = draw.cohort, draw.draws
        if not self.replayed and type(algorithm.pattern).order is not ExchangePattern.order:
            order = algorithm.pattern.order(len(cohort), keyed(world.seed, "ring", r))
            cohort, draws = cohort[order], draws[order]
        steps, batch_sizes = self.steps(r, cohort)
        row = self._recorded(r)
        if row:
            steps = np.asarray(row["steps"], dtype=np.int64)
            received = np.asarray(row["received"], dtype=bool)
        elif algorithm.pattern.peers:
            received = np.ones(len(cohort), dtype=bool)  # on a graph, messages along edges are lost instead
        else:
            received = ~experiment.link.lost(r, cohort, world)
        lr = algorithm.step_length(self.system(r)) if overrides(algorithm, "step_length") else self.lr(r)
        failure = row["q"] if "q" in row else experiment.link.failure(r, cohort, world)
        with_replacement = p
        if p is None and experiment.participation.law == "with_replacement":
            marginals = experiment.participation.marginals(world, r)  # None if they are not known
            with_replacement = None if marginals is None else marginals / marginals.sum()
        inclusion = row.get("p") if with_replacement is None else with_replacement[cohort]
        return Round(
            index=r,
            cohort=cohort,
            draws=draws,
            received=received,
            steps=steps,
            batch_sizes=batch_sizes,
            lr=lr,
            population=world.population,
            a_norm=a_norm(steps, experiment.rule, lr, algorithm.proximal),
            failure=np.asarray(failure, dtype=np.float64),
            inclusion=np.full(len(cohort), np.nan if inclusion is None else inclusion, dtype=np.float64),
            by_method=p is not None or "p" in row,
            edges=experiment.topology.edges(r, world, experiment.link) if algorithm.pattern.peers else None,
            system_of=lambda: self.system(r),
        )

    def row(self, r: Round) -> Row:
        """The row of participation.jsonl for round r.

        It includes the clients' sampling probabilities p if the method samples clients itself. It includes the failure
        probabilities q of their uploads if they can change over time, or if the row of a replayed trace has them.
        """
        varies = self.experiment.link.varies or "q" in self._recorded(r.index)
        p, q = r.inclusion if r.by_method else None, r.failure if varies else None
        return make_row(r.index, r.cohort, r.draws, r.received, r.steps, p, q)

    def graph_line(self, r: Round) -> str | None:
        """The line of topology.jsonl with the graph and mixing matrices of round r; None for methods with a server."""
        algorithm, edges = self.experiment.algorithm, r.edges
        if edges is None or not isinstance(algorithm, GraphAlgorithm):
            return None
        r = r.received_view  # a node that failed exchanged nothing
        return graph_line(r.index, edges, r.cohort, algorithm.family, algorithm.mixings(r))

    def steps(self, r: int, clients: Ints) -> tuple[Ints, Ints]:
        """The numbers of local steps and the batch sizes of these C clients in round r, [C] each."""
        experiment = self.experiment
        steps, batch = experiment.work.draw(r, clients, experiment.world)
        if overrides(experiment.algorithm, "draw_local_steps"):
            common = local_steps_of(experiment.algorithm, keyed(experiment.world.seed, "steps", r))
            steps = steps if common is None else np.where(steps > 0, common, 0)
        return (np.minimum(steps, 1) if experiment.algorithm.one_step else steps), batch

    def _recorded(self, r: int) -> Row:
        """The row of round r in a replay; empty otherwise."""
        return self.replayed.row(r) if self.replayed else {}


def read_only(values: np.ndarray) -> np.ndarray:
    """A view of an array that cannot be written."""
    view = values.view()
    view.flags.writeable = False
    return view


def same_array(a: np.ndarray, b: np.ndarray) -> bool:
    """Whether it is certain that array `a` has the entries that `b` had before, at no cost if both are one object.

    An array that its owner may have changed in place since then does not count; nan differs from nan.
    """
    if a is b:
        return not a.flags.writeable
    return not np.may_share_memory(a, b) and np.array_equal(a, b)


def drop_uploads(r: Round, clients: Ints) -> Round:
    """A copy of the round in which the uploads of these clients are not received."""
    return replace(r, received=np.asarray(r.received, dtype=bool) & ~np.isin(r.cohort, clients))


def check_sampling(experiment: Experiment) -> None:
    """Raises BadConfig if the method samples clients itself and the config gives no number of draws for it."""
    samples = overrides(experiment.algorithm, "probabilities")
    if samples and not isinstance(experiment.participation, (Sampler, Trace)):
        resolved = experiment.config.resolved
        raise BadConfig(
            f"participation.name={resolved['participation']['name']}, but must be one with a size "
            f"(uniform, say): algorithm {resolved['algorithm']['name']} draws participation.size clients itself; "
            "set an availability process as participation.availability"
        )
