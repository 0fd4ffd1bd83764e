"""The metrics of a round: they are measured after the server step and have fixed names."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial

import numpy as np
import torch
from torch import Tensor

from raylfl.core.algorithm import Info, ServerState, State, normalise
from raylfl.core.arrays import Floats, Ints
from raylfl.core.chunked_matrix import ChunkedMatrix, as_matrix
from raylfl.core.client_rows import empty_matrix
from raylfl.core.deferred import Deferred
from raylfl.core.keyed import keyed
from raylfl.core.reduce import tree_sum, weighted_sum
from raylfl.core.threads import one_thread
from raylfl.core.transfer import begin_to_host, to_host
from raylfl.diagnostics.metric_names import OF_NODES
from raylfl.diagnostics.surrogate import chi2, surrogate_weights
from raylfl.diagnostics.updates import consensus_error, distance_metrics, drift, update_metrics
from raylfl.experiment.parts import BUFFERS, MEAN, Experiment
from raylfl.runtime.round.dispatch import Dispatch
from raylfl.runtime.round.plan import Planner
from raylfl.runtime.round.state import FederationState, Metrics, RoundResult
from raylfl.runtime.workers.backend import Backend
from raylfl.runtime.workers.logged import Logged
from raylfl.runtime.workers.task import Chunk
from raylfl.solvers.simplex import min_norm_point

GROUP = 16  # number of clients whose full gradients a worker adds up; fixed, because it determines the bits


class Measurements:
    """Measures the metrics of each round, as the config group `eval` selects them."""

    def __init__(self, experiment: Experiment, backend: Backend, planner: Planner, dispatch: Dispatch):
        self.experiment, self.backend, self.planner, self.dispatch = experiment, backend, planner, dispatch
        self.optimum = experiment.minimiser
        self._least: float | None = None  # F at the optimum, measured once
        # the last expected coefficients and |a_i|_1, and their metrics
        self._surrogate: tuple[Floats | None, Floats | None, dict[str, float]] = None, None, {}

    def of_round(
        self, result: RoundResult, state: FederationState, server_before: ServerState, info: Info, last: bool
    ) -> Deferred[Metrics]:
        """The metrics of a round, as a row of metrics.jsonl.

        state: the state after the round, which must not change before the row is awaited; server_before: the server
        state at the draw; info: the algorithm's metrics; last: whether it is the last round of the run.

        Evaluations are submitted at once; other metrics are computed when the row is awaited. Metrics of updates are
        also computed at once if the uploads are a `ChunkedMatrix` (the received tensors, not copied into one matrix),
        so that the memory of the uploads is free before the next round.
        """
        r, config = result.round, self.experiment.config.eval
        broadcast: State = {"x": state.server["x"]} | ({BUFFERS: state.buffers} if state.buffers.numel() else {})
        due = config.every > 0 and (r.index % config.every == 0 or last)
        submitted: list[Deferred[Metrics]] = []
        if due:
            submitted.append(self._evaluations(broadcast, r.index, r.received_view.cohort))
        if due and config.nodes:
            submitted.append(self._nodes(state.server, broadcast))
        if due and config.global_:
            submitted.append(self._objective(broadcast))
        if state.average is not None:
            submitted.append(self._average(state.average.x, broadcast, due))
        if due and config.diversity:  # at the broadcast model, from the clients' gradients over whole shards
            weights = self.experiment.setup.population.weights
            gradients = self.backend.objective(broadcast, [[i] for i in range(len(weights))])
            submitted.append(gradients.then(lambda results: diversity_metrics([g for _, g in results], weights)))
        mean = begin_to_host(result.sums[MEAN]) if result.sums and MEAN in result.sums else None
        updates = Deferred(partial(self._updates, result, mean))
        if any(isinstance(rows, ChunkedMatrix) for rows in result.uploads.values()):
            updates, result = Deferred.of(updates.result()), replace(result, uploads={})
        return Deferred(lambda: self._row(result, state, server_before, info, updates, submitted))

    def _row(
        self,
        result: RoundResult,
        state: FederationState,
        server_before: ServerState,
        info: Info,
        updates: Deferred[Metrics],
        submitted: Sequence[Deferred[Metrics]],
    ) -> Metrics:
        r, config = result.round, self.experiment.config.eval
        received = r.received_view
        metrics: Metrics = {"round": r.index}
        reports = result.reports
        for name, values in reports.logs(received.cohort).items():
            if len(finite := values[np.isfinite(values)]):
                metrics[f"train/{name}"] = float(finite.mean())
        metrics |= updates.result()
        if config.drift:
            step = to_host(state.server["x"]).double() - to_host(server_before["x"]).double()
            metrics["update/step"] = float(torch.linalg.vector_norm(step))
        distance = {} if self.optimum is None else distance_metrics(to_host(state.server["x"]), self.optimum)
        distance |= result.metrics
        inconsistency = self._inconsistency(r.index, server_before) if config.inconsistency else {}
        evaluated, single = Metrics(), dict[str, dict[str, float]]()
        for job in submitted:
            measured = job.result()
            single |= measured.pop("per_client", {})
            evaluated |= measured
        metrics |= evaluated | distance | inconsistency
        metrics["cohort/sampled"], metrics["cohort/received"] = len(r.cohort), len(received.cohort)
        metrics |= state.costs.metrics()
        metrics["time/virtual"] = state.seconds
        metrics["time/computation"] = state.computation_seconds
        for name, value in info.items():
            metrics[f"algo/{name}"] = value
        if config.per_client:
            single |= self._training_of_clients(result)
        else:
            single = {name: values for name, values in single.items() if name.startswith(OF_NODES)}
        if any(single.values()):
            metrics["per_client"] = single
        if result.events:
            metrics["events"] = result.events
        return metrics

    def _updates(self, result: RoundResult, summed: Deferred[Tensor] | None) -> Metrics:
        """The metrics of the received updates. summed: their mean, if workers have added them up."""
        received, config = result.round.received_view, self.experiment.config.eval
        if not (self.experiment.algorithm.uploads_update and len(received.cohort)):
            return {}
        squares = result.reports.squares(received.cohort)
        if summed is not None:  # of the received updates U_i with importance weights w_i: sum_R w_i U_i / sum_R w_i
            mean = summed.result()
        else:
            mean = weighted_sum(result.uploads["update"], normalise(received.weights))
        metrics: Metrics = {**update_metrics(mean, squares, received.weights)}
        if config.diversity or config.drift:
            metrics["update/drift"] = drift(result.uploads["update"], received.weights)
        if config.drift:
            metrics["update/consensus"] = consensus_error(result.uploads["update"], received.weights)
        return metrics

    def _training_of_clients(self, result: RoundResult) -> dict[str, dict[str, float]]:
        """The training metrics of single clients: metric -> client -> value, without non-finite values."""
        clients = [str(c) for c in result.reports.rows["client"]]
        return {
            f"train/{name}": {c: float(v) for c, v in zip(clients, values, strict=True) if np.isfinite(v)}
            for name, values in result.reports.logs(result.reports.rows["client"]).items()
        }

    def _evaluations(self, broadcast: State, r: int, cohort: Ints) -> Deferred[Metrics]:
        """Evaluates the broadcast model on the data that `eval` selects; returns the deferred metrics.

        The data are the test and validation sets, and the training data of the cohort, of random clients, and of each
        single client. cohort: the received clients of round r.
        """
        config, setup, seed = self.experiment.config.eval, self.experiment.setup, self.experiment.world.seed
        count, shards = setup.population.count, setup.shards
        chunks: list[Chunk] = []
        for kind, samples in (("test", setup.test), ("val", setup.val)):
            if samples is not None:
                chunks += self._chunks(kind, kind, np.arange(len(samples), dtype=np.int64))
        if config.participants and len(cohort):
            chunks += self._on_clients("participants", cohort, setup.trained_on)
        if config.random_clients:
            size = min(config.random_clients, count)
            chosen = keyed(seed, "evaluation", r).choice(count, size, replace=False)
            chunks += self._on_clients("random", chosen, shards.__getitem__)
        if config.clients:
            chunks += [chunk for c in range(count) for chunk in self._chunks(f"client {c}", "train", shards[c], c)]
        return self.backend.evaluate(broadcast, chunks).then(lambda logged: summary(by_name(chunks, logged)))

    def _nodes(self, server: ServerState, broadcast: State) -> Deferred[Metrics]:
        """The metrics of the nodes' models, for methods without a server; empty for other methods.

        On the test set: the mean, smallest and largest value over the nodes, and the value of each node. Per node: the
        distance of its model from x, the mean of the nodes' rows, and from the optimum x* (relative to |x*|) if that is
        known.
        """
        models, test = self.dispatch.models(server), self.experiment.setup.test
        if models is None:
            return Deferred.of({})
        apart = {"from_mean": _distances(models, server["x"])}
        if self.optimum is not None:
            scale = float(torch.linalg.vector_norm(self.optimum.double()))
            apart["distance"] = _distances(models, self.optimum) / (scale or 1.0)
        single = {OF_NODES + name: {str(i): d for i, d in enumerate(each.tolist())} for name, each in apart.items()}
        if test is None:
            return Deferred.of({"per_client": single})
        chunks = self._chunks("test", "test", np.arange(len(test), dtype=np.int64))
        jobs = [self.backend.evaluate({**broadcast, "x": x}, chunks) for x in models]

        def collect() -> Metrics:
            each = [by_name(chunks, job.result())["test"] for job in jobs]
            metrics: Metrics = {}
            for name in each[0]:
                values = np.array([measured[name] for measured in each])
                of_all = {"mean": values.mean(), "min": values.min(), "max": values.max()}
                metrics |= {f"{OF_NODES}{name}_{what}": float(value) for what, value in of_all.items()}
            evaluated = {OF_NODES + name: {str(i): m[name] for i, m in enumerate(each)} for name in each[0]}
            return {**metrics, "per_client": {**evaluated, **single}}

        return Deferred(collect)

    def _on_clients(self, name: str, clients: Ints, samples: Callable[[int], Ints]) -> list[Chunk]:
        """The chunks of an evaluation on these clients' samples, each client's apart if their workers evaluate them."""
        if not self.experiment.setup.assigned:
            return self._chunks(name, "train", np.concatenate([samples(c) for c in clients.tolist()]))
        return [chunk for c in clients.tolist() for chunk in self._chunks(name, "train", samples(c), c)]

    def _chunks(self, name: str, kind: str, ids: Ints, client: int | None = None) -> list[Chunk]:
        """The chunks of an evaluation: one per batch, or a single chunk if one worker must evaluate all samples.

        ids: sample indices; name, kind, client: as in `Chunk`.
        """
        size = max(len(ids), 1) if kind in self.backend.whole else self.experiment.config.eval.batch_size
        return [Chunk(kind, ids[k : k + size], k // size, client, name) for k in range(0, len(ids), size)]

    def _objective(self, broadcast: State) -> Deferred[Metrics]:
        """Metrics `global/loss` = F(x) and `global/grad_norm` = |grad F(x)| of the objective F = sum_i w_i f_i.

        x: the broadcast model. f_i is the mean loss over all samples of client i, w_i its importance weight.
        """
        count = self.experiment.setup.population.count
        groups = [list(range(k, min(k + GROUP, count))) for k in range(0, count, GROUP)]

        def reduce(results: Sequence[tuple[float, Tensor]]) -> Metrics:
            gradient = tree_sum(as_matrix([g[None] for _, g in results]))
            return {
                "global/loss": float(sum(loss for loss, _ in results)),
                "global/grad_norm": float(torch.linalg.vector_norm(gradient)),
            }

        return self.backend.objective(broadcast, groups).then(reduce)

    def _average(self, x: Tensor, broadcast: State, due: bool) -> Deferred[Metrics]:
        """Metrics of the mean xbar of the server's iterates (`Average`): average/distance, average/loss, average/gap.

        x: the mean [d].
        The loss is F(xbar), the gap F(xbar) - F*, where F* is the minimum of F. Distance and gap need data whose
        optimum is known. Loss and gap need `eval.global`. due: whether this round is evaluated; if not, only the
        distance is measured.
        """
        distance = {} if self.optimum is None else distance_metrics(x, self.optimum)
        metrics = {name.replace("global", "average"): value for name, value in distance.items()}
        if not (self.experiment.config.eval.global_ and due):
            return Deferred.of(metrics)
        loss = self._objective({**broadcast, "x": x.to(broadcast["x"])})
        at_optimum = None
        if self._least is None and self.optimum is not None:
            at_optimum = self._objective({**broadcast, "x": self.optimum.to(broadcast["x"])})

        def add_gap(of_average: Metrics) -> Metrics:
            if at_optimum is not None:
                self._least = at_optimum.result()["global/loss"]
            value = of_average["global/loss"]
            gap = {} if self._least is None else {"average/gap": value - self._least}
            return {**metrics, "average/loss": value, **gap}

        return loss.then(add_gap)

    def _inconsistency(self, r: int, server: ServerState) -> dict[str, float]:
        """Metric `inconsistency/chi2`: the chi-square divergence chi2(w || Omega) of round r (FedACS, Theorem 2).

        w: the importance weights. Omega: the weights of the objective that the method really minimises. If the data's
        optimum is known for arbitrary weights, so is `inconsistency/predicted_distance` = |x_Omega - x*| / |x*|
        (|x_Omega - x*| if x* = 0), where x_Omega = argmin sum_i Omega_i f_i and x* = argmin F: the limit of
        `global/distance` for small eta and constant Omega; not with weight decay, whose term F lacks. Empty in a
        replay, and if Omega is unknown. server: the server state at the draw.
        """
        if self.planner.replayed or not self.experiment.work_is_known:
            return {}
        system = self.planner.system(r)
        expected = self.planner.expected_coefficients(system, server)
        if expected is self._surrogate[0] and system.a_norm is self._surrogate[1]:
            return self._surrogate[2]
        metrics, optimum = dict[str, float](), self.experiment.optimum
        if expected is not None and expected.any():
            omega = surrogate_weights(expected, system.a_norm)
            metrics["inconsistency/chi2"] = chi2(self.experiment.world.population.weights, omega)
            decays = self.experiment.rule.weight_decay > 0
            if optimum is not None and optimum.of is not None and self.optimum is not None and not decays:
                limit = torch.from_numpy(optimum.of(omega))
                metrics["inconsistency/predicted_distance"] = distance_metrics(limit, self.optimum)["global/distance"]
        self._surrogate = expected, system.a_norm, metrics
        return metrics


def _distances(models: Tensor, point: Tensor) -> Floats:
    """The distance [N] of each row of `models` [N, d] from a point [d]."""
    distances: Floats = torch.linalg.vector_norm(models.double() - point.double(), dim=1).numpy()
    return distances


def summary(measured: Mapping[str, dict[str, float]]) -> Metrics:
    """The metrics of a round's evaluations as `evaluation/metric`, and `per_client`: metric -> client -> value.

    measured: name of an evaluation -> metric -> value. Evaluations on single clients (named `client i`) add the metrics
    of `fairness`, if all of them measure an accuracy.
    """
    metrics, single, count = Metrics(), dict[str, dict[str, float]](), 0
    for name, values in measured.items():
        client = name.removeprefix("client ")
        count += client != name
        for metric, value in values.items():
            if client == name:
                metrics[f"{name}/{metric}"] = value
            else:
                single.setdefault(f"clients/{metric}", {})[client] = value
    accuracies = list(single.get("clients/accuracy", {}).values())
    fair = fairness(np.array(accuracies)) if len(accuracies) == count > 0 else {}
    return {**metrics, **fair, "per_client": single}


def by_name(chunks: Sequence[Chunk], results: Sequence[Logged]) -> dict[str, dict[str, float]]:
    """The values logged in each evaluation, reduced over all of its chunks: name of the evaluation -> metric -> value.

    results: for each chunk, the values logged there.
    """
    parts: dict[str, list[Logged]] = {}
    for chunk, result in zip(chunks, results, strict=True):
        parts.setdefault(chunk.name, []).append(result)
    with one_thread():
        return {name: Logged.joined(chunks).results() for name, chunks in parts.items()}


def fairness(accuracy: np.ndarray) -> dict[str, float]:
    """Metrics `clients/accuracy_mean`, `clients/accuracy_std` and `clients/accuracy_p10`, from one accuracy per client.

    accuracy_p10 is the mean over the tenth of the clients with the lowest accuracy, at least one client.
    """
    worst = np.sort(accuracy)[: max(1, len(accuracy) // 10)]
    return {
        "clients/accuracy_mean": float(accuracy.mean()),
        "clients/accuracy_std": float(accuracy.std()),
        "clients/accuracy_p10": float(worst.mean()),
    }


def diversity_metrics(rows: Sequence[Tensor], weights: Floats) -> dict[str, float]:
    """The metrics of gradient diversity over N clients (FedAWARE, Definitions 3.1 and 3.2).

    rows: w_i grad f_i(x) [d] of each client i, where f_i is its local objective; weights: the importance weights w_i
    [N], sum 1. Clients of weight 0 are ignored.

    global/diversity            D(x) = sqrt(sum_i w_i |grad f_i|^2) / |sum_i w_i grad f_i| (eq. 3)
    global/surrogate_diversity  D's numerator over |sum_i l_i grad f_i| (eq. 6)
    global/surrogate_chi2       sum_i (l_i / w_i)^2 (Theorem 4.1)

    The weights l_i >= 0, sum 1, minimise |sum_i l_i grad f_i| (eq. 8). A metric whose denominator is (nearly) 0 is left
    out.
    """
    counted = weights > 0
    w = torch.from_numpy(weights[counted])
    gradients = empty_matrix(len(w), len(rows[0]), w)
    for k, i in enumerate(np.flatnonzero(counted)):
        torch.div(rows[int(i)].double().cpu(), w[k], out=gradients[k])
    with one_thread():
        square = float(w @ torch.cat([gradient.square().sum(dim=1) for gradient in gradients.split(1)]))
    norm = float(torch.linalg.vector_norm(w @ gradients))
    simplex_weights = min_norm_point(gradients @ gradients.T).weights
    least = float(torch.linalg.vector_norm(torch.from_numpy(simplex_weights) @ gradients))
    metrics = {"global/surrogate_chi2": float(np.square(simplex_weights / weights[counted]).sum())}
    if norm > 0:
        metrics["global/diversity"] = max(1.0, square**0.5 / norm)
    if least > 1e-12 * square**0.5:
        metrics["global/surrogate_diversity"] = square**0.5 / least
    return metrics
