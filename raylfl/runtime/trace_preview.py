"""The rounds of a config drawn without training: who is asked, who arrives, how much they work."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from raylfl.errors import BadConfig
from raylfl.experiment import Experiment
from raylfl.heterogeneity.trace import Row, write_trace
from raylfl.runtime.round.plan import Planner


def draw_rows(experiment: Experiment) -> list[Row]:
    """The rows of participation.jsonl that a run of this config would write.

    Raises BadConfig for a method whose choice of clients depends on their updates.
    """
    planner, algorithm = Planner(experiment), experiment.algorithm
    if algorithm.samples_by_norm:
        raise BadConfig(
            "algorithm.name: its choice of clients depends on their updates, which a trace does not compute"
        )
    import torch

    server = algorithm.init_server(torch.zeros(1), experiment.world.population)
    rows = []
    for r in range(experiment.world.rounds):
        rows.append(planner.row(*planner.plan(r, server)))
    return rows


def draw_trace(experiment: Experiment, out: Path) -> list[Path]:
    """Write participation.jsonl and participation.png to `out`; the paths of both."""
    from raylfl.report.participation_plot import participation_figure

    rows, world = draw_rows(experiment), experiment.world
    out.mkdir(parents=True, exist_ok=True)
    trace, picture = out / "participation.jsonl", out / "participation.png"
    write_trace(trace, rows)
    known = [experiment.participation.marginals(world, r) for r in range(world.rounds)]
    nominal = None if not known or any(m is None for m in known) else np.mean(known, axis=0)  # type: ignore[arg-type]
    participation_figure(rows, world.count, nominal, experiment.config.top.name).savefig(picture)
    return [trace, picture]
