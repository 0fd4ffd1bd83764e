"""Theorems' bounds, drawn as lines beside the curves of a report (`raylfl report --theory`, `logging.theory`)."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from raylfl.errors import RaylflError
from raylfl.experiment.parts import Experiment
from raylfl.report.curves import Curve
from raylfl.report.labels import labels
from raylfl.report.runs import Group, RunRecord
from raylfl.report.style import DASHES, LineStyle
from raylfl.report.wording import metric_name
from raylfl.theory.facts import facts_of, plain_sgd
from raylfl.theory.statements import Line
from raylfl.theory.summary import theory_of

POINTS = 200  # points of a line
OF_F = ("global/", "average/")  # beginnings of the names of metrics of the objective F


@dataclass(frozen=True)
class Promises:
    """Theorems' bounds on the metrics of each setting.

    lines: setting -> pairs (name of the theorem, bound on a metric as a function of rounds). refused: one sentence for
    each setting without bounds, with the reason.
    """

    lines: Mapping[Group, Sequence[tuple[str, Line]]]
    refused: Sequence[str]

    def drawn(self, group: Group, metric: str, style: LineStyle) -> list[tuple[str, Curve, LineStyle]]:
        """The bounds on a metric over rounds as (legend text, curve, style), in the colour of `style`."""
        own = [(theorem, line) for theorem, line in self.lines.get(group, ()) if line.metric == metric]
        end = max((run.rounds[-1] for run in group.runs if run.measured(metric)), default=-1)
        if not own or end < 0:
            return []
        rounds = np.unique(np.linspace(1, end + 1, POINTS).round())
        found = []
        for k, (theorem, line) in enumerate(own, 1):
            values = np.broadcast_to(np.asarray(line.of(rounds), dtype=np.float64), rounds.shape)
            look = LineStyle(style.color, (style.dash + k) % len(DASHES), thin=True)
            found.append((f"{theorem}: {line.what}", Curve(rounds, values, values, values), look))
        return found


def promises_of(groups: Sequence[Group], measured: Sequence[str]) -> Promises:
    """Theorems' bounds on the measured metrics for each setting, computed from the config of its first run."""
    lines: dict[Group, list[tuple[str, Line]]] = {}
    refused = []
    for group, name in zip(groups, labels([g.setting for g in groups]), strict=True):
        try:
            found, reason = _of_group(group, set(measured))
        except RaylflError as error:
            found, reason = [], str(error)
        lines[group] = found
        if not found:
            refused.append(f"No theorem's line for {name}: {reason}.")
    return Promises(lines, refused)


def _of_group(group: Group, measured: set[str]) -> tuple[list[tuple[str, Line]], str]:
    """Returns pairs (theorem, bound on a measured metric) for a setting, and the reason if there are none."""
    run = group.runs[0]
    experiment = _experiment(run)
    if (broken := next(plain_sgd(experiment), None)) is not None:
        return [], broken
    theory = theory_of(experiment)
    every = [(promise.theorem, line) for promise in theory.promises for line in promise.lines]
    if experiment.rule.weight_decay and every:  # metrics of F are measured without the decay
        every = [(theorem, line) for theorem, line in every if not line.metric.startswith(OF_F)]
        if not every:
            return [], "its theorems are about F with the term of local.weight_decay, but F is measured without it"
    of_seed = ""
    if every and any(_system(_experiment(other)) != _system(experiment) for other in group.runs[1:]):
        of_seed = f" (seed {run.config['seed']})"  # whose system is another one than that of the other seeds
    found = [(f"{theorem}{of_seed}", line) for theorem, line in every if line.metric in measured]
    if every:
        wanted = ", ".join(sorted({metric_name(line.metric) for _, line in every}))
        return found, f"its theorems are about {wanted}, which was not measured"
    if theory.steps and not any(bound.admits(theory.eta) for bound in theory.steps):
        most = max(theory.steps, key=lambda bound: bound.largest)
        return found, f"local.lr={theory.eta:g} is above what {most.theorem} admits, {most.largest:.3g}"
    return found, "; ".join(theory.notes) or "its theorems give no bound that can be computed for this model"


def _experiment(run: RunRecord) -> Experiment:
    """The experiment of a run, whose classes must be trusted."""
    from raylfl.config.load import load_config
    from raylfl.experiment.assemble import assemble
    from raylfl.runtime.records.mirror import address
    from raylfl.runtime.records.provenance import require_trust

    way = "`raylfl resume` the run with --trust first"
    require_trust(run.path / "config.yaml", run.config, (), way, address(run.path))
    return assemble(load_config(run.config))


def _system(experiment: Experiment) -> tuple[Any, ...]:
    """What theorems know of clients: samples, local steps, losses, participation, and weights in the server step."""
    from raylfl.runtime.records.checkpoint import sha256_of_shards

    facts = facts_of(experiment)
    known = (facts.steps, facts.system.failure, facts.takes_part, facts.coefficients)
    return sha256_of_shards(experiment.setup.shards), *(None if part is None else part.tolist() for part in known)
