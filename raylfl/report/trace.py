"""`raylfl trace`: writes and draws the participation of a config without training."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from raylfl.experiment.parts import Experiment
from raylfl.heterogeneity.trace import write_trace
from raylfl.report.participation_plot import participation_figure
from raylfl.runtime.trace_preview import draw_rows


def draw_trace(experiment: Experiment, out: Path) -> list[Path]:
    """Writes participation.jsonl and participation.png into `out`, which is created if missing; returns their paths."""
    rows, world = draw_rows(experiment), experiment.world
    out.mkdir(parents=True, exist_ok=True)
    trace, picture = out / "participation.jsonl", out / "participation.png"
    write_trace(trace, rows)
    known = [experiment.participation.marginals(world, r) for r in range(world.rounds)]
    nominal = None if not known or any(m is None for m in known) else np.mean(known, axis=0)  # type: ignore[arg-type]
    participation_figure(rows, world.count, nominal, experiment.config.top.name).savefig(picture)
    return [trace, picture]
