"""Figures of our accuracy curves over those of FOCUS's authors."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
from matplotlib.figure import Figure

from papers.draw import label_beside_logs, styles
from papers.focus_logs import SHARED, Log
from papers.texts import ACCURACY
from raylfl.report.runs import Group
from raylfl.report.style import MUTED, rc


def overlay(
    panels: Mapping[str, Mapping[str, Group]], logs: Mapping[tuple[str, str], Log], looks: Mapping[str, str]
) -> Figure:
    """A figure with a panel per participation: our accuracy in full lines, the authors' dashed.

    If a method and a variant of it are compared with the same log, this log is drawn once, in the method's colour.

    panels: participation -> method -> our runs; logs: (participation, method) -> the authors' log, if known; looks:
    method -> the method whose colour it has.
    """
    lines = styles(looks)
    with rc():
        figure = Figure(figsize=(5.4 * len(panels), 3.2), layout="constrained", dpi=100)
        for ax, (panel, groups) in zip(figure.subplots(1, len(panels), squeeze=False)[0], panels.items(), strict=True):
            for name, group in groups.items():
                values, colour = group.runs[0].column(ACCURACY), lines[name].hex
                measured = np.flatnonzero(np.isfinite(values))
                ax.plot(group.runs[0].rounds[measured] + 1, 100 * values[measured], color=colour, lw=1.2, label=name)
                if SHARED.get(name) in groups:
                    continue
                last = 1 + group.runs[0].rounds[-1]
                log = {rounds: value for rounds, value in logs.get((panel, name), {}).items() if rounds <= last}
                ax.plot(list(log), [100 * v for v in log.values()], color=colour, lw=1.3, ls=(0, (4, 1.6)))
            ax.set_title(f"{panel} participation")
            ax.legend(fontsize=7, frameon=False, labelcolor=MUTED, loc="upper left", bbox_to_anchor=(1.0, 1.0))
        label_beside_logs(figure)
    return figure
