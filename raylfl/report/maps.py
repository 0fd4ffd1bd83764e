"""Heat-maps of scenario x method, and profiles over one config key: one number per setting instead of a curve."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import matplotlib
import numpy as np
from matplotlib.axes import Axes
from matplotlib.ticker import FixedLocator, FuncFormatter, NullLocator

from raylfl.core.arrays import Floats
from raylfl.report.curves import log_axis
from raylfl.report.derived import Stat, best_setting, by_method, grows, last_k
from raylfl.report.facets import Facet
from raylfl.report.labels import display, show_value
from raylfl.report.style import MUTED, PAPER, Line
from raylfl.report.wording import axis_name, is_percent, number

Profiles = Mapping[str, Sequence[tuple[float, Stat]]]  # method -> [(value of a config key, statistic of a metric)]
MAX_TICKS = 8  # largest number of ticks with a label


def heat_values(parts: Sequence[Facet], metric: str, last: int) -> tuple[list[str], list[str], Floats]:
    """The content of the heat-map: (labels of the S scenarios, names of the M methods, means [S, M]).

    The means are of each method's best setting; nan if the method was not run there, inf if its best setting diverged.
    """
    methods = list(by_method([group for part in parts for group in part.groups]))
    values = np.full((len(parts), len(methods)), math.nan)
    for row, part in enumerate(parts):
        for method, own in by_method(part.groups).items():
            values[row, methods.index(method)] = last_k(best_setting(own, metric, last), metric, last).mean
    return [part.label for part in parts], methods, values


def draw_heat_map(ax: Axes, parts: Sequence[Facet], metric: str, last: int) -> None:
    """Draws the heat-map of `heat_values` with its numbers, the best of each row in bold; light colours are better."""
    scenarios, methods, values = heat_values(parts, metric, last)
    scaled = values * (100 if is_percent(metric) else 1)
    shade = _shades(values, grows([group for part in parts for group in part.groups], metric))
    colors = matplotlib.colormaps["cividis"]
    ax.pcolormesh(np.ma.masked_invalid(shade), cmap=colors, vmin=0, vmax=1, edgecolors=PAPER, linewidth=1.5)
    for (row, column), value in np.ndenumerate(scaled):
        if math.isnan(value):
            continue
        level = shade[row, column]
        text = "div." if math.isinf(value) else f"{value:.1f}" if is_percent(metric) else number(value, 2)
        ink = MUTED if math.isnan(level) else "#ffffff" if level < 0.55 else "#111111"
        top = level == np.nanmax(shade[row]) and np.isfinite(shade[row]).sum() > 1
        weight = "bold" if top else "normal"
        ax.text(column + 0.5, row + 0.5, text, ha="center", va="center", color=ink, fontweight=weight)
    ax.set_xticks(np.arange(len(methods)) + 0.5, [display(name) for name in methods])
    ax.set_yticks(np.arange(len(scenarios)) + 0.5, scenarios)
    ax.tick_params(length=0)
    ax.tick_params(axis="x", labeltop=True, labelbottom=False)
    ax.invert_yaxis()
    ax.grid(False)
    ax.spines[:].set_visible(False)


def _shades(values: Floats, higher: bool) -> Floats:
    """Shades from 0 (worst) to 1 (best), nan for non-finite values; logarithmic for positive values to minimise."""
    finite = np.where(np.isfinite(values), values, math.nan)
    if higher:
        good = finite
    elif np.nanmin(finite) > 0:
        good = -np.log10(finite)
    else:
        good = -finite
    low, high = np.nanmin(good), np.nanmax(good)
    return (good - low) / (high - low) if high > low else np.where(np.isnan(good), math.nan, 0.5)


def draw_profile(
    ax: Axes, profiles: Profiles, lines: Mapping[str, Line], metric: str, key: str, *, higher: bool, best: bool = True
) -> None:
    """Draws the means (error bars: std) over a key, one line per method; best: with rings around the best values."""
    scale = 100.0 if is_percent(metric) else 1.0
    means = [stat.mean * scale for points in profiles.values() for _, stat in points if math.isfinite(stat.mean)]
    log = not higher and bool(means) and min(means) > 0
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
        if not best:
            continue
        at = int(np.argmax(y) if higher else np.argmin(y))
        ax.plot(x[at], y[at], "o", markersize=10, markerfacecolor="none", markeredgecolor=line.hex, alpha=0.8)
    ax.set_xlabel(key)
    ax.set_ylabel(axis_name(metric))
    ticks = sorted({value for points in profiles.values() for value, _ in points})
    if ticks[0] > 0 and ticks[-1] / ticks[0] >= 5:
        ax.set_xscale("log")
    ax.xaxis.set_major_locator(FixedLocator(ticks[:: math.ceil(len(ticks) / MAX_TICKS)]))
    ax.xaxis.set_minor_locator(NullLocator())
    ax.xaxis.set_major_formatter(FuncFormatter(lambda value, _: show_value(float(value))))
    if log:
        ax.set_yscale("log")
        log_axis(ax.yaxis, *ax.get_ylim())
