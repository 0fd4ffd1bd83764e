"""`raylfl trace`: writes and draws the participation of a config without training."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any, NoReturn, cast

import numpy as np

from raylfl.core.algorithm import ServerState
from raylfl.errors import BadConfig
from raylfl.experiment.parts import Experiment
from raylfl.heterogeneity.trace import Row, write_trace
from raylfl.report.participation_plot import participation_figure
from raylfl.runtime.round.plan import Planner, check_sampling


def draw_trace(experiment: Experiment, out: Path) -> tuple[str, list[Path]]:
    """Writes participation.jsonl and participation.png into `out`, created if missing.

    Returns a summary, `100 rounds, 4.97 of 20 clients sampled in each, ...`, and the paths.
    """
    rows, world = draw_rows(experiment), experiment.world
    out.mkdir(parents=True, exist_ok=True)
    trace, picture = out / "participation.jsonl", out / "participation.png"
    write_trace(trace, rows)
    planner, untrained = Planner(experiment), cast(ServerState, _Untrained())
    known = [planner.expected_draws(planner.system(r), untrained)[0] for r in range(world.rounds)]
    nominal = None if not known or any(m is None for m in known) else np.mean(known, axis=0)  # type: ignore[arg-type]
    participation_figure(rows, world.count, nominal, experiment.config.top.name).savefig(picture)
    sampled = sum(len(row["cohort"]) for row in rows)
    lost = sum(not arrived for row in rows for arrived in row["received"])
    empty = sum(not row["cohort"] for row in rows)
    return (
        f"{len(rows)} rounds, {sampled / max(len(rows), 1):.3g} of {world.count} clients sampled in each, "
        f"{lost / max(sampled, 1):.0%} of uploads lost, {empty} empty rounds"
    ), [trace, picture]


def draw_rows(experiment: Experiment) -> list[Row]:
    """The rows of participation.jsonl that a run of this experiment would write if no client failed.

    Raises BadConfig for an algorithm whose choice of clients depends on updates or on earlier rounds. Also raises
    BadConfig, as a run does, if the algorithm samples clients itself and the config gives no number of draws.
    """
    check_sampling(experiment)
    planner, untrained = Planner(experiment), cast(ServerState, _Untrained())
    if experiment.algorithm.samples_by_norm:
        _refuse()
    return [planner.row(planner.plan(r, untrained)) for r in range(experiment.world.rounds)]


def _refuse(*_: object) -> NoReturn:
    raise BadConfig(
        "algorithm: its choice of clients depends on their updates or on earlier rounds, which a trace does not compute"
    )


class _Untrained(Mapping[str, Any]):
    """A server state that cannot be read, because no round has been carried out."""

    __getitem__ = __iter__ = __len__ = _refuse
