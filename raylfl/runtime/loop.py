"""The round loop: draw, local work, server step, measure, commit. It knows a Backend, not Ray.

A round is a transaction: nothing of `FederationState` changes until all of a round's uploads are in and the
server step is done; then everything changes together, and only then is the round written down.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from threadpoolctl import ThreadpoolController
from torch import Tensor

from raylfl.algorithms.base import ServerState, State
from raylfl.core.costs import Costs, floats_in
from raylfl.core.population import Floats, Round
from raylfl.core.reduce import finite_rows, weighted_sum
from raylfl.errors import ClientFailed, NonFinite
from raylfl.experiment import Experiment
from raylfl.heterogeneity.trace import Row
from raylfl.runtime.backend import Backend, Handle
from raylfl.runtime.measure import Measurements
from raylfl.runtime.plan import Planner, check_sampling, dropped
from raylfl.runtime.task import POOL, Fault, Outcome, Report, Task
from raylfl.runtime.worker import BUFFERS

Metrics = dict[str, Any]


@dataclass
class FederationState:
    """All that the next round needs; what a checkpoint holds.

    server: the algorithm's; buffers [b]: the module's (averaged); clients: handles of the client states of those
    who took part; changed: clients whose state is newer than the last checkpoint; seconds: the virtual clock.
    """

    round: int
    server: ServerState
    buffers: Tensor
    clients: dict[int, Handle] = field(default_factory=dict)
    changed: set[int] = field(default_factory=set)
    costs: Costs = field(default_factory=Costs)
    seconds: float = 0.0
    computation_seconds: float = 0.0
    last_finite_loss: float = float("nan")


@dataclass
class Collected:
    """What came back in a round: the round with who really arrived, reports, uploads and new states of those."""

    round: Round
    reports: dict[int, Report]
    up: State
    own: list[Handle]
    up_floats: int  # of one client's upload
    events: list[str] = field(default_factory=list)


class Federation:
    """One run of one experiment on one backend, round by round."""

    def __init__(self, experiment: Experiment, backend: Backend, fault: Fault | None = None):
        check_sampling(experiment)
        self.e, self.backend = experiment, backend
        self.planner = Planner(experiment)
        self.fault: Fault = fault or (lambda phase, r: None)
        self.blas = ThreadpoolController()
        x, buffers = backend.initial()
        self.x0 = x
        self.state = FederationState(0, experiment.algorithm.init_server(x, experiment.world.population), buffers)
        self.measurements = Measurements(experiment, backend, self.planner)
        self.whole = True  # between rounds, or in one that has not begun to change the state

    def rounds(self, until: int) -> Iterator[tuple[Metrics, Row]]:
        """(metrics, participation row) of each round from `state.round` on; the state is then after that round."""
        while self.state.round < until:
            yield self.step(last=self.state.round == until - 1)

    def step(self, last: bool = False) -> tuple[Metrics, Row]:
        """One round."""
        started, r = time.perf_counter(), self.state.round
        self.whole = True
        self.fault("draw", r)
        algorithm, server = self.e.algorithm, self.state.server
        down = algorithm.broadcast(server)
        if len(self.state.buffers) and not self.e.setup.local_buffers:
            down = {**down, BUFFERS: self.state.buffers}
        if algorithm.probes and self.planner.replayed is None:
            planned, p, probed = self._probe(r, down)
        else:
            drawn, p = self.planner.draw(r, server)
            planned, probed = self.planner.round_of(r, drawn, p), None
        self.fault("train", r)
        got = probed or self._train(planned, down)
        self.fault("aggregate", r)
        self.whole = False  # Tables change in place, and the round is not written down yet
        after, info, answered = self._server_step(got)
        self.fault("commit", r)
        self._commit(got, after, answered, down)
        metrics = self.measurements.of_round(got, self.state, server, info, last)
        metrics["time/round"] = time.perf_counter() - started
        return metrics, self.planner.row(got.round, p)

    # -- the clients' half -----------------------------------------------------------------------------------

    def _train(self, r: Round, down: State) -> Collected:
        if self.e.algorithm.pooled:
            return self._train_pooled(r, down)
        tasks = self._tasks(r)
        own = [[self.state.clients.get(c) for c in task.clients] for task in tasks]
        if self.e.algorithm.route == "ring":
            outcomes, last = self.backend.run_ring(tasks, down, own, [bool(b) for b in r.received])
            return self._collect(r, outcomes, last)
        return self._collect(r, self.backend.run(tasks, down, own), None)

    def _tasks(self, r: Round) -> list[Task]:
        """The cohort cut into micro-cohorts of consecutive clients: one client each, or for vectorised calls
        chunks of nearly equal size. Who works with whom follows from the cohort and the config, not from the
        number of workers.
        """
        count = len(r.cohort)
        pieces = count if self.backend.one_by_one else chunks(count, self.e.setup.runtime.micro_cohort)
        return [
            Task(
                r.index,
                tuple(int(c) for c in r.cohort[rows]),
                tuple(int(s) for s in r.steps[rows]),
                tuple(int(b) for b in r.batch_sizes[rows]),
                tuple(float(a) for a in r.a_norm[rows]),
                r.lr,
            )
            for rows in (np.array_split(np.arange(count), pieces) if count else [])
        ]

    def _train_pooled(self, r: Round, down: State) -> Collected:
        n = int(self.e.world.population.sizes.sum())
        batch = int(r.batch_sizes[0])
        task = Task(r.index, (POOL,), (int(r.steps[0]),), (0 if batch >= n else batch,), (float(r.a_norm[0]),), r.lr)
        outcome = self.backend.run([task], down, [[None]])[0]
        report = outcome.reports[0]
        events = self._refuse(r, [report])
        if events:
            r = dropped(r, set(map(int, r.cohort)))
        return Collected(r, {POOL: report}, outcome.up, [], 0, events)

    def _collect(self, r: Round, outcomes: list[Outcome], ring_last: State | None) -> Collected:
        """Uploads of those that arrived, in cohort order; failures by `runtime.on_client_error`, `on_nonfinite`."""
        reports = {report.client: report for outcome in outcomes for report in outcome.reports}
        events = self._refuse(r, list(reports.values()))
        bad = {c for c, report in reports.items() if report.error or not report.finite}
        r = dropped(r, bad) if bad else r
        arrived = {int(c) for c in r.arrived.cohort}
        own = [
            o for outcome in outcomes for c, o in zip(outcome.task.clients, outcome.own, strict=False) if c in arrived
        ]
        if ring_last is not None:
            return Collected(r, reports, ring_last, own, 0, events)
        rows: dict[str, list[Tensor]] = {}
        width = 0
        for outcome in outcomes:
            if not outcome.up:
                continue
            width = width or self._upload_floats(outcome.up)
            keep = [k for k, c in enumerate(outcome.task.clients) if c in arrived]
            for name, values in outcome.up.items():
                rows.setdefault(name, []).append(values if len(keep) == len(values) else values[keep])
        up = {name: torch.cat(pieces) for name, pieces in rows.items()}
        return Collected(r, reports, up, own, width, events)

    def _upload_floats(self, up: State) -> int:
        """Floats of one client's upload, without what the server knows already."""
        return floats_in({k: v[0] for k, v in up.items() if k not in self.e.algorithm.known})

    def _refuse(self, r: Round, reports: list[Report]) -> list[str]:
        """Raises for what `fail` says must end the run; otherwise one line for each upload dropped."""
        runtime, events = self.e.setup.runtime, []
        for report in reports:
            who = "everybody's data" if report.client == POOL else f"client {report.client}"
            if report.error:
                reason = report.error.strip().splitlines()[-1]
                text = f"{who} failed in round {r.index} after {1 + runtime.client_retries} attempts: {reason}"
                if runtime.on_client_error == "fail":
                    raise ClientFailed(f"{text} (runtime.on_client_error=drop goes on without it)\n{report.error}")
                events.append(text)
            elif not report.finite:
                last = report.last_loss if np.isfinite(report.last_loss) else self.state.last_finite_loss
                text = f"{who} sent a non-finite update in round {r.index}; last finite loss {last:.6g}"
                if runtime.on_nonfinite == "fail":
                    raise NonFinite(f"{text} (lower local.lr, set local.clip_norm, or runtime.on_nonfinite=drop)")
                events.append(text)
        return events

    def _probe(self, r: int, down: State) -> tuple[Round, Floats | None, Collected]:
        """Every available client computes and sends the norm of its update; then the server samples by them."""
        algorithm: Any = self.e.algorithm
        conditions = self.planner.conditions(r)
        everyone = np.flatnonzero(conditions.available)
        from raylfl.heterogeneity.participation.base import Draw

        probe = self.planner.round_of(r, Draw.once(everyone), None)
        all_arrive = Round(**{**vars(probe), "received": np.ones(len(everyone), dtype=bool)})
        tried = self._train(all_arrive, down)
        norms = np.full(self.e.world.count, np.nan)
        seen = tried.round.arrived.cohort
        if len(seen):
            norms[seen] = torch.linalg.vector_norm(tried.up["update"], dim=1).double().numpy()
        p = algorithm.probe_probabilities(self.state.server, conditions, norms)
        planned = self.planner.round_of(r, self.planner.sample(p, r), p)
        planned = dropped(planned, set(map(int, planned.cohort)) - set(map(int, seen)))
        where = {int(c): k for k, c in enumerate(seen)}
        keep = [where[int(c)] for c in planned.arrived.cohort]
        got = Collected(
            planned,
            tried.reports,
            {k: v[keep] for k, v in tried.up.items()},
            [tried.own[k] for k in keep] if tried.own else [],
            tried.up_floats,
            tried.events,
        )
        return planned, p, got

    # -- the server's half -----------------------------------------------------------------------------------

    def _server_step(self, got: Collected) -> tuple[ServerState, dict[str, float], State | None]:
        algorithm, server, r = self.e.algorithm, self.state.server, got.round
        arrived = r.arrived
        if not len(arrived.cohort):
            return algorithm.idle(server, r), {}, None
        up = {k: v for k, v in got.up.items() if k != BUFFERS}
        with self.blas.limit(limits=1):  # sums in a solver depend on its threads: the bits must not
            after, info = algorithm.server_step(server, up, arrived)
        if not finite_rows(after["x"][None]).all():
            raise NonFinite(
                f"the server's parameters are not finite after round {r.index}; last finite mean loss "
                f"{self.state.last_finite_loss:.6g} (lower algorithm.gamma or local.lr)"
            )
        return after, info, self._acknowledge(after, up, got)

    def _acknowledge(self, after: ServerState, up: State, got: Collected) -> State | None:
        from raylfl.algorithms.base import Algorithm

        if type(self.e.algorithm).acknowledge is Algorithm.acknowledge:
            return None
        states = self.backend.get(got.own)
        own = {k: torch.cat([s[k] for s in states]) for k in states[0]}
        buffers = {BUFFERS: own.pop(BUFFERS)} if BUFFERS in own else {}  # the algorithm knows nothing of them
        answered = self.e.algorithm.acknowledge(after, up, own, got.round.arrived)
        return None if answered is None else {**answered, **buffers}

    def _commit(self, got: Collected, after: ServerState, answered: State | None, down: State) -> None:
        state, r = self.state, got.round
        arrived = [int(c) for c in r.arrived.cohort]
        if answered is not None:
            handles = [self.backend.put({k: v[i : i + 1] for k, v in answered.items()}) for i in range(len(arrived))]
        else:
            handles = got.own
        if handles and self.keeps_client_state:
            state.clients.update(zip(arrived, handles, strict=True))
            state.changed.update(arrived)
        if BUFFERS in got.up and len(got.up[BUFFERS]):
            state.buffers = weighted_sum(got.up[BUFFERS], np.full(len(got.up[BUFFERS]), 1.0 / len(got.up[BUFFERS])))
        state.server = after
        costs = self._costs(got, down, answered is not None)
        state.costs = state.costs.add(costs)
        self._advance_clock(got, costs)
        heard = {POOL, *arrived}
        losses = [report.loss for c, report in got.reports.items() if c in heard]
        if losses and np.isfinite(np.mean(losses)):
            state.last_finite_loss = float(np.mean(losses))
        state.round += 1

    @property
    def keeps_client_state(self) -> bool:
        """Whether clients have a state of their own between rounds."""
        local_buffers = self.e.setup.local_buffers and len(self.state.buffers) > 0
        return bool(self.e.algorithm.init_clients(self.x0[:1], 1)) or local_buffers

    def _costs(self, got: Collected, down: State, answered: bool) -> Costs:
        """What this round really sent and computed."""
        algorithm, r = self.e.algorithm, got.round
        asked, steps = len(r.cohort), int(r.steps.sum())
        gradients = sum(report.gradients for report in got.reports.values())
        if algorithm.pooled:
            return Costs(0, 0, 0, int(r.steps[0]), gradients)
        down_floats, up_floats = floats_in(down), got.up_floats
        exchanged = sum(report.exchanged for report in got.reports.values())
        if algorithm.cut is not None:  # only the client's half of the model moves; activations one way, gradients back
            down_floats = up_floats = max((report.client_half or 0) for report in got.reports.values()) if asked else 0
        if algorithm.route == "ring":
            entering = min(asked, 1) * down_floats
            handed = max(asked - 1, 0) * down_floats
            return Costs(entering + exchanged, entering + exchanged, handed, steps, gradients)
        answer = floats_in(algorithm.answer(self.state.server)) * len(r.arrived.cohort) if answered else 0
        fetched, norms = asked, 0
        if algorithm.probes and self.planner.replayed is None:  # all available fetch, work, and send a norm each
            fetched = norms = len(got.reports)
            steps = self._probe_steps(got)
        up, downs = asked * up_floats + norms + exchanged, fetched * down_floats + answer + exchanged
        return Costs(up, downs, 0, steps, gradients)

    def _probe_steps(self, got: Collected) -> int:
        clients = np.array(sorted(got.reports), dtype=np.int64)
        return int(self.e.work.draw(got.round.index, clients, self.e.world)[0].sum())

    def _advance_clock(self, got: Collected, costs: Costs) -> None:
        clock, r = self.e.config.system, got.round
        if not len(r.cohort) or self.e.algorithm.pooled:
            return
        route = "ring" if self.e.algorithm.route == "ring" else "parallel"
        floats = np.full(
            len(r.cohort), (costs.uplink_floats + costs.downlink_floats + costs.peer_floats) / len(r.cohort)
        )
        self.state.seconds += clock.round_seconds(r.steps, floats, np.zeros(len(floats)), r.cohort, route, self.e.world)
        self.state.computation_seconds += clock.computation_seconds(r.steps, r.cohort, self.e.world)


def chunks(count: int, largest: int) -> int:
    """Into how many micro-cohorts of at most `largest` a cohort goes: a multiple of 4, which 1, 2 or 4 workers share
    evenly, or one client each where there are fewer.
    """
    return min(count, 4 * -(-count // (4 * largest)))
