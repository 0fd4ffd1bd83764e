"""`raylfl.plot`: one metric of some runs as a matplotlib figure, for notebooks and scripts."""

from __future__ import annotations

from dataclasses import replace

from matplotlib.figure import Figure

from raylfl.errors import BadValue, did_you_mean
from raylfl.report.derived import AXES, by_method, main_metric
from raylfl.report.facets import Facet
from raylfl.report.figures import PANEL, Block, Look, composed, curves_panel, legend_of, measured_in
from raylfl.report.runs import Runs, group_runs, paths_of, read_runs
from raylfl.report.style import method_styles, rc


def plot(runs: Runs, metric: str | None = None, axis: str = "rounds") -> Figure:
    """The curves of one metric, with seeds of one setting pooled, as a matplotlib figure.

    A notebook shows the figure if it is the last value of a cell; `figure.savefig("name.pdf")` writes it. runs: one run
    or several: directories, results or loaded runs. metric: a name in metrics.jsonl; None: the main metric. axis: the
    cost on the x axis: rounds, floats, steps, virtual, link or computation. Raises BadConfig if there is no readable
    run, and BadValue for a metric that was not measured, or an unknown axis.
    """
    groups = group_runs(read_runs(paths_of(runs))[0])
    metric = metric or main_metric([run for group in groups for run in group.runs])
    if axis not in AXES:
        raise BadValue("axis", got=axis, need=f"one of {', '.join(AXES)}")
    measured = measured_in(groups)
    if metric not in measured:
        hint = did_you_mean(metric, measured)
        raise BadValue("metric", got=metric, need=f"one that was measured: {', '.join(measured)}", hint=hint)
    part = Facet("", groups, {group: group.label for group in groups})
    look = Look(metric, 1, None, method_styles(list(by_method(groups))))
    if (panel := curves_panel(part, look, metric, axis)) is None:
        raise BadValue("axis", got=axis, need="a cost that the runs recorded")
    panel = replace(panel, size=(PANEL[0] * 1.4, PANEL[1] * 1.4))
    with rc():
        return composed(Block("", "", "", [panel], legend_of(part, look, [metric]) if len(groups) > 1 else []))
