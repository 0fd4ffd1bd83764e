"""The expected duration of an experiment's runs (`raylfl reproduce --estimate`), from short runs of each kind."""

import copy
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import suppress
from statistics import median
from typing import Any

from torch import Tensor

from papers.base import PaperResult
from papers.ledger_rows import Enough, Lacking
from raylfl.errors import NonFinite
from raylfl.execution.executor import room
from raylfl.execution.several import run
from raylfl.python.console import say
from raylfl.python.control import Callback
from raylfl.report.labels import canonical
from raylfl.runtime.records.summary import cpu_model

LONG = 24.0  # hours above which a line calls this machine too slow
SHORT = 10.0  # seconds after which a short run ends, but not before its second round


def estimate_missing(experiment: PaperResult, options: Sequence[Any]) -> None:
    """Say how long the runs take that an experiment lacks and that come first; options: of the cache."""
    cache = Lacking(experiment, (), *options)
    with suppress(Enough):
        experiment.run(cache)
    if not (runs := list(cache.plans())):
        say("nothing to do: all runs are done")
        return
    say(f"estimate of the {len(runs)} runs that come first (searches and further seeds follow them)")
    _, processes = room(runs[0].load().runtime, len(runs), cache.jobs)
    together = 0.0
    for expected, line in hours([each.config for each in runs]):
        together += expected / len(processes)
        say(line)
    say(f"{together:8.2f} h  in all, {len(processes)} at a time on {cpu_model()}")
    if together > LONG:
        say("this machine is too slow for all of it: --only chooses cells, a GPU helps (runtime.backend=ray)")


def hours(configs: Sequence[dict[str, Any]]) -> Iterator[tuple[float, str]]:
    """Yield the expected hours of each kind of run, and a line with them, as soon as they are measured.

    Of each kind, the run with the least local work and the smallest learning rate is measured for a few rounds (no time
    if it diverges); the time of the others is assumed to be proportional to their local steps or epochs.
    """
    kinds: dict[str, list[dict[str, Any]]] = {}
    for config in configs:
        kind = {key: config[key] for key in ("data", "model", "algorithm", "num_clients", "participation", "runtime")}
        local = {key: config["local"][key] for key in ("epochs", "steps")}  # a number, or a specification by client
        kind["local"] = {key: isinstance(amount, (int, float)) or amount for key, amount in local.items()}
        kinds.setdefault(canonical(kind), []).append(config)
    for of_kind in kinds.values():
        least = min(of_kind, key=lambda config: (work(config), config["local"]["lr"]))
        try:
            each, note = _per_round(least), ""
        except NonFinite as error:
            each, note = 0.0, f" (diverges: {error})"
        expected = sum(each * config["rounds"] * work(config) / work(least) for config in of_kind) / 3600
        names = [least[group].get("name") or least[group]["class_path"] for group in ("data", "model", "algorithm")]
        yield expected, f"{expected:8.2f} h  {len(of_kind)} runs: {', '.join(names)}{note}"


class _Clock(Callback):
    def __init__(self) -> None:
        self.seconds: list[float] = []

    def on_round_end(self, round: int, metrics: dict[str, Any], params: Tensor) -> bool:
        self.seconds.append(float(metrics["time/round"]))
        return round > 0 and sum(self.seconds) > SHORT


def work(config: dict[str, Any]) -> float:
    """The number of local steps or epochs; 1 if it is specified by client."""
    amount = config["local"]["epochs"] or config["local"]["steps"]
    return float(amount) if isinstance(amount, (int, float)) else 1.0


def _per_round(config: dict[str, Any]) -> float:
    """Seconds per round of a short run that evaluates every second round."""
    short, clock = copy.deepcopy(config), _Clock()
    every = max(int(config["eval"]["every"]), 1)
    short["rounds"], short["checkpoint"]["every"], short["eval"]["every"] = max(2, min(every, 24)), 0, 2
    with tempfile.TemporaryDirectory() as folder:
        short["logging"] |= {"dir": folder, "id": "short"}
        run(short, callbacks=[clock])
    plain, evaluated = median(clock.seconds[2::2] or clock.seconds[:1]), median(clock.seconds[1::2])
    return plain + max(evaluated - plain, 0.0) / every
