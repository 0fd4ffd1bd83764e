"""A run in the process of the round loop, from its first round or its newest checkpoint to summary.json.

`rows_in_process` is a whole run without Ray; on Ray, the server actor has the `Session`.
"""

import hashlib
import io
import json
import os
import threading
import time
from collections.abc import Callable, Generator, Iterator
from pathlib import Path
from typing import Any

import torch

from raylfl.config.identity import fingerprint_of_config
from raylfl.core.costs import end_name
from raylfl.diagnostics.metric_names import names_of
from raylfl.errors import RaylflError, did_you_mean, exits_as_errors, note_own_code
from raylfl.experiment.parts import Experiment, WorkerSetup
from raylfl.heterogeneity.partition.base import Samples
from raylfl.heterogeneity.partition.given import as_text
from raylfl.heterogeneity.partition.stats import class_counts
from raylfl.heterogeneity.trace import encode_row
from raylfl.runtime.faults import Fault, kill_point
from raylfl.runtime.records import sources
from raylfl.runtime.records.checkpoint import Checkpoints
from raylfl.runtime.records.files import read_plain
from raylfl.runtime.records.lines import metrics_line
from raylfl.runtime.records.loggers import Loggers
from raylfl.runtime.records.run_dir import CLIENT_NAMES, DIRECTIONS, RunDirectory
from raylfl.runtime.records.summary import environment, step_line, step_summary, summarise
from raylfl.runtime.round.early_stop import LATE, BestRound, EarlyStop
from raylfl.runtime.round.loop import Federation, RoundRecord
from raylfl.runtime.round.state import Metrics
from raylfl.runtime.stopping import stop_on_signals
from raylfl.runtime.workers.backend import Backend, LocalBackend

EDGES, BEST = "edges.csv", "best.pt"
MOST_SAMPLES = 2_000_000  # with more samples, partition.json is left out: config.yaml determines the partition
MOST_CLIENTS = 10_000  # with more clients, partition_counts.json is left out
Row = tuple[Metrics, list[str], torch.Tensor | None]  # of a round; messages for the user; the server's parameters [d]
Rows = Generator[Row, str | None, None]


class Interrupted(RaylflError):
    """Raised after a run was stopped on request; its state is in a checkpoint."""


class Session:
    """Executes the run of an experiment, and writes its records and checkpoints into a run directory.

    fault: a function of (phase, round), called at each kill point; by default `kill_point()`.
    """

    def __init__(self, experiment: Experiment, backend: Backend, run_dir: RunDirectory, fault: Fault | None = None):
        self.experiment, self.backend, self.run_dir = experiment, backend, run_dir
        self.fault = fault or kill_point()
        self.federation = Federation.of(experiment, backend, self.fault)
        self.checkpoints = Checkpoints(run_dir, experiment, self.say)
        self.messages: list[str] = []
        self.early = EarlyStop(experiment.config.stop, experiment.directions)
        self.best = BestRound(experiment.config.checkpoint.best, experiment.directions)
        self._best_model: dict[str, Any] | None = None  # not yet written to best.pt
        self._stop = threading.Event()

    def say(self, text: str) -> None:
        """Adds a line to log.txt and to the messages, which the user sees with the next round."""
        self.run_dir.log(text)
        self.messages.append(text)

    def stop(self) -> None:
        """Requests, also from another thread, that `rows` saves the state and raises Interrupted."""
        self._stop.set()

    @property
    def params(self) -> torch.Tensor:
        """A copy of the server's parameters [d] after the newest round that `rows` has yielded, on the CPU."""
        params: torch.Tensor = self.federation.state.server["x"].detach().to("cpu", copy=True)
        return params

    def end(self, reason: str | None) -> None:
        """Ends the run after the newest round that `rows` has yielded, as early stopping does; None: no effect."""
        if self.early.reason is None:
            self.early.reason = reason

    def _unsaid(self) -> list[str]:
        """The messages since the last call."""
        messages, self.messages = self.messages, []
        return messages

    def save(self) -> None:
        """Saves the state after the newest complete round as a checkpoint; before that, writes a new best model."""
        if self._best_model is not None:
            self._write_tensors(BEST, self._best_model)
            self._best_model = None
        self.checkpoints.save(self.federation.collect(), self.backend)

    def rows(self, resume: bool, paced: bool = False) -> Rows:
        """Executes the run; yields (metrics, messages, parameters) of each round after it is recorded.

        A reason (text) sent to the generator ends the run after the yielded round, as early stopping does. resume:
        whether to start from the newest checkpoint; the metrics of the rounds before it are yielded first. paced:
        whether parameters are yielded, and a checkpoint is saved if the generator is closed early; without `paced`, and
        for rounds before a resume, parameters are None. Raises Interrupted.
        """
        config = self.experiment.config
        started = time.perf_counter()
        self.run_dir.claim()
        self.run_dir.log(f"{config.top.rounds} rounds on {config.runtime.backend}, process {os.getpid()}")
        if (line := self.backend.location()) is not None:
            self.say(line)
        if (line := gpu_note(config.runtime.gpus)) is not None:
            self.say(line)
        for warning in self.experiment.warnings:
            self.say(f"warning: {warning}")
        if resume:
            self._resume()
            for metrics in self.run_dir.metrics():
                self.early.update(metrics)
                self.best.update(metrics)
                self.end((yield metrics, self._unsaid(), None))
            self._say_lost_model()
        self.run_dir.copy_to_url(self.say)
        loggers = Loggers(config, self.run_dir, self.say)
        try:
            rounds = self.federation.rounds(config.top.rounds)
            while self.early.reason is None and (record := self._next(rounds)) is not None:
                metrics = record.metrics
                self._write_down(record)
                self.early.update(metrics)
                if self.best.update(metrics):
                    self._best_model = self._model() | {"round": self.best.round, "value": self.best.value}
                for event in metrics.get("events", ()):
                    self.say(event)
                if metrics["round"] == 0:
                    self._say_unmatched(metrics)
                if metrics["round"] + 1 == config.top.rounds:
                    self._say_unmeasured()
                loggers.log(metrics)
                self.fault("log", metrics["round"])
                self._checkpoint_if_due()
                self.run_dir.request_copy(self.say, seldom=True)
                self.fault("checkpoint", metrics["round"])
                try:
                    self.end((yield metrics, self._unsaid(), self.params if paced else None))
                except GeneratorExit:
                    if paced:
                        self.save()
                    raise
                if self.early.reason is not None:
                    self._checkpoint_if_due()  # `end` may have been called meanwhile
            if self.early.reason is not None:
                self.run_dir.log(f"stopped early: {self.early.reason}")
            self._finish(time.perf_counter() - started)
        finally:
            loggers.close()
            self.run_dir.copy_to_url(self.say)
        self.run_dir.require_copied()

    def _say_lost_model(self) -> None:
        """Reports that best.pt does not hold the model of the best round before a resume."""
        content = read_plain(self.run_dir.path / BEST) if self.best.round >= 0 else b""
        held = torch.load(io.BytesIO(content), weights_only=True)["round"] if content else -1
        if held != self.best.round:
            self.say(f"checkpoint.best: the model of round {self.best.round}, the best so far, is not in {BEST}")

    def _say_unmatched(self, row: Metrics) -> None:
        """Reports entries of the config key `metrics` that belong to no metric of the first row, nor to groups LATE."""
        recorded = {name for metric in row for name in names_of(metric)}
        for name in self.experiment.config.top.metrics:
            if name not in recorded and name.partition("/")[0] not in LATE:
                hint = f" ({near})" if (near := did_you_mean(name, recorded)) else ""
                self.say(f"warning: metrics.{name} has no effect: it is not recorded{hint}")

    def _say_unmeasured(self) -> None:
        """Reports with the last row that no round has measured the metric of `checkpoint.best` or `stop.metric`."""
        for rule in (self.best, self.early):
            if rule.metric is not None and rule.round < 0:
                self.say(f"warning: {rule.key}={rule.metric} was never measured, and has no effect")

    def _next(self, rounds: Iterator[RoundRecord]) -> RoundRecord | None:
        """Carries out the next round, unless a stop was requested; None after the last round.

        If the round raises an error, saves the state unless the round had already begun to change it.
        """
        state = self.federation.state
        if self._stop.is_set() and state.round < self.experiment.config.top.rounds:
            self.save()
            raise Interrupted(f"stopped before round {state.round}: raylfl resume {self.run_dir.address}")
        try:
            with exits_as_errors():
                return next(rounds, None)
        except Exception as error:
            note_own_code(error)
            if self.federation.committed:
                try:
                    self.save()
                except Exception as another:
                    self.say(f"the state before this round could not be saved: {another}")
            raise

    def _write_down(self, record: RoundRecord) -> None:
        self.run_dir.append("participation.jsonl", encode_row(record.row))
        if record.graph_line is not None:
            self.run_dir.append("topology.jsonl", record.graph_line)
        self.run_dir.append("metrics.jsonl", metrics_line(record.metrics))
        self.run_dir.check()

    def _resume(self) -> None:
        saved = sources.read(self.run_dir.path)
        if changed := ", ".join(sources.changed_names(saved, self.experiment.sources)):
            line = f"warning: the source of {changed} has changed since this run began"
            self.say(f"{line}: the rest may differ from an undisturbed run")
        state = self.checkpoints.newest(self.backend, self.federation.collect())
        if state is None:
            self.run_dir.truncate({})
            self.say("there is no intact checkpoint: starting from round 0")
        else:
            self.federation.resume(state)
            self.say(f"resumed at round {state.round}")
        if self.federation.state.round < self.experiment.config.top.rounds:
            (self.run_dir.path / "summary.json").unlink(missing_ok=True)  # the mark of a finished run

    def _checkpoint_if_due(self) -> None:
        state, every = self.federation.state, self.experiment.config.checkpoint.every
        last = self.early.reason is not None or state.round == self.experiment.config.top.rounds
        if last or (every and state.round % every == 0):
            self.save()

    def _finish(self, seconds: float) -> None:
        """Writes final.pt, edges.csv and summary.json after a run of so many seconds in this process."""
        self.run_dir.check()
        state = self.federation.state
        final = self._model()
        params = final["params"]
        nodes = self.experiment.algorithm.node_parameters(self.federation.collect().server)
        if nodes is not None:
            final["nodes"] = nodes.cpu()
        self._write_tensors("final.pt", final)
        links = self.federation.state.links
        busiest: dict[str, Any] = {}
        if (link := links.busiest()) is not None:
            self.run_dir.write(EDGES, links.csv())
            busiest = {"busiest_link": {"between": [end_name(link[0]), end_name(link[1])], "floats": link[2]}}
        steps = step_summary(self.federation.dispatch.ways)
        summary = {
            "name": self.experiment.config.top.name,
            "seed": self.experiment.config.top.seed,
            "algorithm": self.experiment.config.resolved["algorithm"]["name"],
            "status": "finished",
            **({} if self.early.reason is None else {"stopped_early": self.early.reason}),
            **summarise(self.run_dir.metrics(), self.experiment.directions),
            **busiest,
            **({} if self.best.round < 0 else {"best_round": self.best.round}),
            "wall_seconds": seconds,
            "local_steps": steps,
            "clients": self.experiment.clients,
            "parameters": params.numel(),
            "samples_dropped": self.experiment.split.dropped,
            "params_sha256": fingerprint(params),
            "config_sha256": fingerprint_of_config(self.experiment.config.resolved),
            "runtime": self.backend.describe(),
            **environment(one["file"] for one in self.experiment.sources.values()),
        }
        self.run_dir.write_summary(summary)
        self.run_dir.log(f"local steps: {step_line(steps)}")
        if (place := self.federation.dispatch.on_device.place) is not None:
            self.run_dir.log(place)
        self.run_dir.log(f"finished after {state.round} rounds")

    def _model(self) -> dict[str, Any]:
        """The server's model after the newest round, as in final.pt: its parameters, buffers and state dict."""
        state = self.federation.state
        params = self.params
        state_dict = self.backend.state_dict(params, state.buffers)
        return {"state_dict": state_dict, "params": params, "buffers": state.buffers.clone()}

    def _write_tensors(self, name: str, content: dict[str, Any]) -> None:
        buffer = io.BytesIO()
        torch.save(content, buffer)
        self.run_dir.write(name, buffer.getvalue())


def rows_in_process(
    experiment: Experiment,
    run_dir: RunDirectory,
    resume: bool,
    fault: Fault | None = None,
    paced: bool = False,
    make: Callable[[WorkerSetup], LocalBackend] = LocalBackend,
) -> Rows:
    """Executes a run in the calling process, without Ray; yields and receives what `Session.rows` does.

    resume, paced: as in `Session.rows`. fault: as in `Session`. make: creates the backend.
    """
    experiment = experiment.on(torch.cuda.device_count())
    backend = make(experiment.setup)
    try:
        session = Session(experiment, backend, run_dir, fault)
        with stop_on_signals(session.stop):
            yield from session.rows(resume, paced)
    finally:
        backend.close()


def gpu_note(share: float) -> str | None:
    """A sentence for the user about a GPU that is left idle, or whose processes take turns; share: of each worker."""
    if not share and torch.cuda.is_available():
        return "local steps on CPUs, though there is a GPU (runtime.gpus_per_worker=auto uses it)"
    mps = Path(os.environ.get("CUDA_MPS_PIPE_DIRECTORY", "/tmp/nvidia-mps"), "control")  # NVIDIA's defaults
    if 0 < share < 1 and not mps.exists():
        return "processes share this GPU and take turns: `nvidia-cuda-mps-control -d` before a run lets them overlap"
    return None


def fingerprint(params: torch.Tensor) -> str:
    """The sha256 of the bytes of the parameters, which is equal for runs with the same bits."""
    return hashlib.sha256(params.numpy().tobytes()).hexdigest()


def write_records(experiment: Experiment, run_dir: RunDirectory) -> None:
    """Writes the files of a run directory before the first round (docs/formats.md)."""
    run_dir.write_config(experiment.config.resolved)
    if experiment.sources:
        run_dir.write(sources.FILE, json.dumps(experiment.sources, indent=2) + "\n")
    if experiment.logged_directions:
        run_dir.write(DIRECTIONS, json.dumps(experiment.logged_directions))
    if experiment.client_names is not None and experiment.clients <= MOST_CLIENTS:
        run_dir.write(CLIENT_NAMES, json.dumps(experiment.client_names))
    split, labels = experiment.split, experiment.labels
    if sum(len(c) for c in split.clients) <= MOST_SAMPLES:
        run_dir.write("partition.json", as_text(split.clients))
    if labels is not None and experiment.clients <= MOST_CLIENTS:
        samples = Samples(len(labels), labels, None)
        content = {"classes": samples.classes.tolist(), "counts": class_counts(split, samples).tolist()}
        run_dir.write("partition_counts.json", json.dumps(content))
