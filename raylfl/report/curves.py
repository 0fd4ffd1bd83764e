"""Curves of a metric against a cost, and profiles over a config key, on an Axes."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from matplotlib import ticker
from matplotlib.axes import Axes
from matplotlib.axis import Axis

from raylfl.core.arrays import Floats
from raylfl.diagnostics.metric_names import direction, is_percent
from raylfl.report.derived import AXES, Stat, cost, moving_average
from raylfl.report.labels import display, show_value
from raylfl.report.runs import Group, RunRecord
from raylfl.report.style import MUTED, LineStyle, LogTicks
from raylfl.report.wording import axis_name, number

LAST_ROUND = int(np.iinfo(np.int64).max)
ENDED = "×: a seed diverges, and the mean ends"
MAX_BAND = 400  # points of a band; more are invisible but enlarge every figure (matplotlib simplifies lines itself)
STEPS = (1, 2, 2.5, 5, 10)  # possible distances between ticks
FAR = 4  # ratio of the longest to the shortest curve above which the axis of costs is logarithmic
# last words of the names of metrics with a log scale
LOG = ("loss", "distance", "distance_abs", "grad_norm", "gap", "drift", "local_drift", "consensus", "step")
Profiles = Mapping[str, Sequence[tuple[float, Stat]]]  # method -> [(value of a config key, statistic of a metric)]
MAX_TICKS = 8  # largest number of ticks with a label


@dataclass(frozen=True)
class Curve:
    """A metric against a cost: the mean over seeds with a band around it.

    x: the cost. low, high: the bounds of the band. All arrays have one entry for each of P points [P], in the order of
    rounds. diverged: whether the curve ends because a seed diverges.
    """

    x: Floats
    mean: Floats
    low: Floats
    high: Floats
    diverged: bool = False


def curve(group: Group, metric: str, axis: str = "rounds", *, band: str = "minmax", window: int = 1) -> Curve | None:
    """The curve of a setting's metric against a cost; None if no seed measured the metric and recorded the cost.

    axis: a key of `AXES`. A point is one round: means over the seeds that measured the metric in it, after a trailing
    moving average over `window` measured values. The curve ends before a seed diverges: else the mean would jump. band:
    `minmax` (from the lowest to the highest seed) or `std` (mean -+ sample standard deviation).
    """
    seeds = [_series(run, metric, axis, window) for run in group.runs]
    rounds = np.unique(np.concatenate([rounds for rounds, _, _ in seeds]))
    end = min((_divergence(run, metric) for run in group.runs), default=LAST_ROUND)
    rounds = rounds[rounds < end]
    if not len(rounds):
        return None
    x, y = np.full((2, len(seeds), len(rounds)), np.nan)
    for row, (own, spent, values) in enumerate(seeds):
        kept = own < end
        at = np.searchsorted(rounds, own[kept])
        x[row, at], y[row, at] = spent[kept], values[kept]
    mean = np.nanmean(y, axis=0)
    low, high = np.nanmin(y, axis=0), np.nanmax(y, axis=0)
    if band == "std":
        count = (~np.isnan(y)).sum(axis=0)
        std = np.sqrt(np.nansum((y - mean) ** 2, axis=0) / np.maximum(count - 1, 1))
        low, high = mean - std, mean + std
    return Curve(np.nanmean(x, axis=0), mean, low, high, end < LAST_ROUND)


def _series(run: RunRecord, metric: str, axis: str, window: int) -> tuple[Floats, Floats, Floats]:
    """The curve of one seed: (rounds, costs, smoothed values) of rounds with a finite value and cost."""
    values, spent = run.column(metric), cost(run, axis)
    if spent is None:
        return np.empty(0), np.empty(0), np.empty(0)
    keep = np.isfinite(values) & np.isfinite(spent)
    return run.rounds[keep].astype(np.float64), spent[keep], moving_average(values[keep], window)


def _divergence(run: RunRecord, metric: str) -> int:
    """The round in which the run diverged, or from which on all measured values are infinite; LAST_ROUND if none."""
    values = run.column(metric)
    finite, infinite = np.flatnonzero(np.isfinite(values)), np.flatnonzero(np.isinf(values))
    after = infinite[infinite > (finite[-1] if len(finite) else -1)]
    if len(after):
        return int(run.rounds[after[0]])
    return int(max(run.rounds, default=-1)) + 1 if run.diverged else LAST_ROUND


def default_window(groups: Sequence[Group], metric: str) -> int:
    """The default window of the moving average, in measured points; 1: no smoothing.

    A fiftieth of the points of the longest run, for scores and losses of 200 points or more. An average would delay the
    decay of distances.
    """
    scores = any(direction(metric, run.directions) == "max" for group in groups for run in group.runs)
    noisy = scores or "accuracy" in metric or metric in {"train/loss", "test/loss", "val/loss"}
    points = max((int(np.isfinite(run.column(metric)).sum()) for group in groups for run in group.runs), default=0)
    return points // 50 if noisy and points >= 200 else 1


def draw(
    ax: Axes,
    curves: Sequence[tuple[Curve, LineStyle]],
    metric: str,
    axis: str = "rounds",
    *,
    target: float | None = None,
    promised: Sequence[tuple[Curve, LineStyle]] = (),
) -> None:
    """Draws the curves of one metric on `ax`, with bands, labels, scales, and the target as a horizontal line.

    axis: a key of `AXES`. promised: theorems' bounds. If a curve diverges, the top of a log scale is cut off.
    """
    data = [item for item, _ in curves]
    log = wants_log(metric, data)
    scale = 100.0 if is_percent(metric) else 1.0
    for order, (item, line) in enumerate(curves):
        _line(ax, item, line, scale, offset=order / len(curves), log=log)
    if any(item.diverged for item in data):
        ax.text(0.99, 0.02, ENDED, transform=ax.transAxes, ha="right", va="bottom", fontsize=7, color=MUTED)
    if target is not None:
        ax.axhline(target * scale, color=MUTED, linewidth=0.8, dashes=(2, 2), zorder=1)
    for item, line in promised:
        ax.plot(item.x, item.mean * scale, zorder=2, **line.options())
    ax.set(xlabel=AXES[axis].label, ylabel=axis_name(metric))
    _format_x(ax, axis, data)
    if log:
        ax.set_yscale("log")
        cap = 100 * max(item.mean[0] for item in data)
        if cap > 0 and max(item.mean.max() for item in data) > cap:
            ax.set_ylim(top=cap)
        log_axis(ax.yaxis, *ax.get_ylim())


def wants_log(metric: str, curves: Sequence[Curve]) -> bool:
    """Whether a log scale is used: the name's last part is in LOG, some value is positive, and none negative."""
    if metric.rpartition("/")[2] not in LOG:
        return False
    values = np.concatenate([item.mean for item in curves])
    return bool((values > 0).any() and not (values < 0).any())


def _line(ax: Axes, item: Curve, line: LineStyle, scale: float, offset: float, log: bool) -> None:
    keep = item.mean > 0 if log else np.isfinite(item.mean)
    x, mean = item.x[keep], item.mean[keep] * scale
    low, high = item.low[keep] * scale, item.high[keep] * scale
    if (high > low).any():
        floor = np.where(low > 0, low, mean / 10) if log else low  # mean - std may be negative
        ax.fill_between(*_thin_band(x, floor, high), color=line.hex, alpha=0.16, linewidth=0)
    step = max(len(x) // 7, 1)
    first = int(offset * step)  # shifted, so that the markers of coinciding curves do not hide each other
    ax.plot(x, mean, markevery=(first, step), zorder=3, **line.options())
    if item.diverged and len(x):
        ax.plot(x[-1:], mean[-1:], marker="x", markersize=8, markeredgewidth=2, color=line.hex, zorder=4)


def _thin_band(x: Floats, low: Floats, high: Floats) -> tuple[Floats, Floats, Floats]:
    """Reduces a band to at most MAX_BAND points (x, lowest, highest), the extremes of each bin."""
    if len(x) <= MAX_BAND:
        return x, low, high
    starts = np.unique(np.linspace(0, len(x) - 1, MAX_BAND).astype(int))
    return x[starts], np.minimum.reduceat(low, starts), np.maximum.reduceat(high, starts)


def _format_x(ax: Axes, axis: str, curves: Sequence[Curve]) -> None:
    """Formats the x axis: logarithmic for costs that differ by a factor over FAR, else linear from 0."""
    ends = [float(item.x.max()) for item in curves]
    if axis != "rounds" and min(ends) > 0 and max(ends) > FAR * min(ends):
        ax.set_xscale("log")
        ax.xaxis.set_major_formatter(LogTicks())
        ax.xaxis.set_minor_formatter(LogTicks())
        return
    ax.margins(x=0.02)
    ax.set_xlim(left=0)
    integer = axis in {"rounds", "steps"}
    ax.xaxis.set_major_locator(ticker.MaxNLocator(5, integer=integer, min_n_ticks=1, steps=STEPS))
    if ax.get_xlim()[1] >= 1e4:
        ax.xaxis.set_major_formatter(ticker.EngFormatter(sep=""))


def log_axis(axis: Axis, low: float, high: float) -> None:
    """Sets the ticks of a log axis: powers of ten; 1, 2 and 5 times these below two decades; equally spaced below 0.7.

    The labels of the latter two have at least 3 digits, and more if neighbouring labels would be equal.
    """
    decades = math.log10(high / low)
    axis.set_minor_formatter(ticker.NullFormatter())
    if decades >= 2:
        axis.set_major_locator(ticker.LogLocator(numticks=7))
        axis.set_major_formatter(LogTicks())
        return
    short = decades < 0.7
    axis.set_major_locator(
        ticker.MaxNLocator(5, steps=STEPS) if short else ticker.LogLocator(subs=(1, 2, 5), numticks=12)
    )
    step = max((1 - low / high) / 5, 1e-12)
    digits = max(3, 1 + math.ceil(-math.log10(step)))
    axis.set_major_formatter(ticker.FuncFormatter(lambda value, _: number(value, digits)))
    axis.set_minor_locator(ticker.NullLocator())


def draw_profile(
    ax: Axes, profiles: Profiles, lines: Mapping[str, LineStyle], metric: str, key: str, log: bool = False
) -> None:
    """Draws means (error bars: std) over a key, one line per method; log: on a log scale if all means are positive."""
    scale = 100.0 if is_percent(metric) else 1.0
    means = [stat.mean * scale for points in profiles.values() for _, stat in points if math.isfinite(stat.mean)]
    log = log and bool(means) and min(means) > 0
    for method, points in profiles.items():
        kept = [(value, stat) for value, stat in points if math.isfinite(stat.mean)]
        if not kept:
            continue
        line = lines[method]
        x = np.array([value for value, _ in kept])
        y = np.array([stat.mean for _, stat in kept]) * scale
        error = np.nan_to_num(np.array([stat.std for _, stat in kept])) * scale
        below = np.minimum(error, y * 0.9) if log else error  # a log axis cannot show an error bar that reaches 0
        ax.errorbar(x, y, yerr=[below, error], fmt="none", ecolor=line.hex, elinewidth=0.9, alpha=0.6, capsize=2)
        ax.plot(x, y, label=display(method), **line.options())
    ax.set_xlabel(key)
    ax.set_ylabel(axis_name(metric))
    ticks = sorted({value for points in profiles.values() for value, _ in points})
    if ticks[0] > 0 and ticks[-1] / ticks[0] >= 5:
        ax.set_xscale("log")
    ax.xaxis.set_major_locator(ticker.FixedLocator(ticks[:: math.ceil(len(ticks) / MAX_TICKS)]))
    ax.xaxis.set_minor_locator(ticker.NullLocator())
    ax.xaxis.set_major_formatter(ticker.FuncFormatter(lambda value, _: show_value(float(value))))
    if log:
        ax.set_yscale("log")
        log_axis(ax.yaxis, *ax.get_ylim())
