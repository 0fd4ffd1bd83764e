"""Texts for metrics and numbers, shared by tables, axes and captions."""

import math

from raylfl.diagnostics.metric_names import is_percent
from raylfl.report.derived import BEST, Stat

_SUFFIXES = ((1e12, 1e12, "T"), (1e9, 1e9, "G"), (1e6, 1e6, "M"), (1e4, 1e3, "k"))  # (from, divided by, suffix)
NAMES = {
    "test/accuracy": "test accuracy",
    "test/loss": "test loss",
    "val/accuracy": "validation accuracy",
    "val/loss": "validation loss",
    "train/loss": "training loss",
    "participants/loss": "loss on participants' data",
    "participants/accuracy": "accuracy on participants' data",
    "random/loss": "loss on random clients' data",
    "random/accuracy": "accuracy on random clients' data",
    "global/loss": "global loss",
    "global/grad_norm": "global gradient norm",
    "global/distance": "relative distance to optimum",
    "global/distance_abs": "distance to optimum",
    "average/loss": "loss of the mean iterate",
    "average/gap": "F − F* of the mean iterate",
    "average/distance": "relative distance of the mean iterate",
    "average/distance_abs": "distance of the mean iterate",
    "global/diversity": "gradient diversity of all clients",
    "global/surrogate_diversity": "largest surrogate diversity",
    "global/surrogate_chi2": "χ² of the min-norm weights",
    "train/local_drift": "client drift in all local steps",
    "update/drift": "client drift",
    "update/consensus": "consensus error of the clients",
    "update/step": "length of the server's step",
    "update/norm": "update norm",
    "update/diversity": "diversity of updates",
    "inconsistency/chi2": "inconsistency χ²(w‖Ω)",
    "inconsistency/predicted_distance": "predicted distance to optimum",
    "nodes/accuracy": "test accuracy of the node's model",
    "nodes/loss": "test loss of the node's model",
    "nodes/distance": "relative distance to optimum",
    "nodes/from_mean": "distance from the nodes' mean",
    "cohort/sampled": "clients sampled",
    "cohort/received": "uploads received",
}


def metric_name(metric: str) -> str:
    """The readable name of a metric; a metric without one in NAMES (`algo/support`) is unchanged."""
    return NAMES.get(metric, metric)


def axis_name(metric: str) -> str:
    """The readable name of a metric, with " (%)" if it is shown in per cent, for an axis."""
    return metric_name(metric) + (" (%)" if is_percent(metric) else "")


def number(value: float, digits: int = 4) -> str:
    """A number as text with `digits` significant digits: 0.1235, 1.2e-12; nan becomes `–`, inf becomes `∞`.

    Numbers from 10^digits to 10^6 are rounded to whole numbers instead: 12 346.

    >>> number(0.123456), number(1.234e-12), number(float("nan"))
    ('0.1235', '1.234e-12', '–')
    """
    if math.isnan(value):
        return "–"
    if math.isinf(value):
        return "∞"
    if abs(value) >= 10**digits and abs(value) < 1e6:
        return f"{value:,.0f}".replace(",", "\u2009")
    text = f"{value:.{digits}g}"
    mantissa, e, exponent = text.partition("e")
    return f"{mantissa}e{int(exponent)}" if e else text


def target_text(metric: str, target: float, higher: bool) -> str:
    """A target as text: `test accuracy ≥ 70 %` (a fraction), `relative distance to optimum ≤ 1e-6`."""
    sign = "≥" if higher else "≤"
    value = f"{number(100 * target)}\u202f%" if is_percent(metric) else number(target)
    return f"{metric_name(metric)} {sign} {value}"


def last_text(last: int) -> str:
    """The number of last rounds as text: `the last 20 rounds`, `the last round`; for BEST `each run's best round`."""
    if last == BEST:
        return "each run's best round"
    return f"the last {last} rounds" if last > 1 else "the last round"


def last_head(last: int) -> str:
    """The number of last rounds for the heading of a column: `last 20`; for BEST `best`."""
    return "best" if last == BEST else f"last {last}"


def stat_text(stat: Stat, metric: str = "") -> str:
    """A statistic of a metric as text: `78.43 ± 2.46` (accuracies in per cent), `diverged`, or `–` without values."""
    if not stat.count:
        return "–"
    if not math.isfinite(stat.mean):
        return "diverged"
    if is_percent(metric):
        mean, std = f"{100 * stat.mean:.2f}", f"{100 * stat.std:.2f}"
    else:
        mean, std = number(stat.mean), number(stat.std, 2)
    return mean if math.isnan(stat.std) else f"{mean} ± {std}"


def cost_text(stat: Stat) -> str:
    """A cost to the target as text: `9.75M ± 0.61M`, `68.0 (2 of 3)` if some seeds reached it, `–` if none."""
    if not stat.count:
        return "–"
    text = count_text(stat.mean)
    if not math.isnan(stat.std):
        text += f" ± {count_text(stat.std, like=stat.mean)}"
    return text if stat.count == stat.of else f"{text} ({stat.count} of {stat.of})"


def count_text(value: float, like: float | None = None) -> str:
    """A count or time as text of about three digits with a suffix: 68.5, 3550, 12.3k, 1.23M, 4.56G.

    like: the number that determines suffix and decimals, such as the mean for its std; None: `value` itself.
    """
    like = value if like is None else like
    scale, suffix = next(((by, text) for least, by, text in _SUFFIXES if abs(like) >= least), (1.0, ""))
    head = abs(like) / scale
    whole = value == 0 or (not suffix and value == int(value) and like == int(like))
    decimals = 0 if whole or head >= 100 else 1 if head >= 10 else 2
    return f"{value / scale:.{decimals}f}{suffix if value else ''}"
