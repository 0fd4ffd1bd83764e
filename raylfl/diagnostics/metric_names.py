"""Metric names: the prefix of nodes' metrics, and whether larger or smaller values of a metric are better."""

import re
from collections.abc import Mapping
from typing import Any, Literal

from raylfl.errors import BadValue

Better = Literal["min", "max"]
BETTER = ("min", "max")
OF_NODES = "nodes/"  # prefix of the metrics of the nodes of a graph
DISTANCES = ("global/distance", "global/distance_abs", "average/distance", "average/distance_abs", "average/gap")
KNOWN: dict[str, Better] = {  # metric, or its name without the part before the slash -> the better direction
    "accuracy": "max",
    "loss": "min",
    "clients/accuracy_std": "min",
    "global/grad_norm": "min",
    "inconsistency/chi2": "min",
    "inconsistency/predicted_distance": "min",
    **dict.fromkeys((*DISTANCES, "nodes/distance", "nodes/from_mean"), "min"),
}
STATISTIC = re.compile(r"_(mean|min|max|p10)$")  # of a metric over clients or nodes: better in the same direction


def direction(metric: str, stated: Mapping[str, Better] | None = None) -> Better | None:
    """The better direction of a metric: `max`, `min`, or None if it is neither stated nor known.

    metric: a name in metrics.jsonl. stated: name -> direction, from `stated_directions` and the metric objects that the
    module logs. A stated name is that of a metric (`test/dice`), or the name that the module logs (`dice`), which holds
    for the test set, the validation set and clients. Losses, accuracies and raylfl's own distances are known. Nothing
    else is inferred from the name.

    >>> direction("clients/accuracy_p10"), direction("test/loss"), direction("test/dice_loss")
    ('max', 'min', None)
    >>> direction("test/dice_loss", {"dice_loss": "min"})
    'min'
    """
    names = names_of(metric)
    return next((known[name] for known in (stated or {}, KNOWN) for name in names if name in known), None)


def is_percent(metric: str) -> bool:
    """Whether a metric is a fraction that is shown in per cent: an accuracy."""
    return "accuracy" in metric


def check_target(target: float | None, metric: str) -> None:
    """Raises BadValue for a target above 1 of a metric that is a fraction."""
    if target is not None and target > 1 and is_percent(metric):
        need = f"a fraction, at most 1, for {metric}"
        raise BadValue("target", got=target, need=need, hint=f"{target:g} % is {target / 100:g}")


def names_of(metric: str) -> tuple[str, ...]:
    """The names by which a direction may be stated for this metric, most specific first."""
    plain = STATISTIC.sub("", metric)
    return metric, plain, metric.rpartition("/")[2], plain.rpartition("/")[2]


def higher_is_better(metric: str, stated: Mapping[str, Better] | None = None, key: str = "metric") -> bool:
    """Whether larger values of this metric are better, see `direction`.

    key: the config key or option that chose the metric. Raises BadValue if the direction is neither stated nor known.
    """
    better = direction(metric, stated)
    if better is None:
        raise BadValue(
            key,
            got=metric,
            need="a metric that is known to be better high or low",
            hint=f"state it in the config: metrics={{{metric}: max}}, or min",
        )
    return better == "max"


def stated_directions(config: Mapping[str, Any]) -> dict[str, Better]:
    """The directions that a config states: name of a metric -> `max` or `min`.

    They are the entries of `metrics`, and `stop.mode` for `stop.metric`. config: a config as plain values, possibly one
    saved by an older version or damaged. Raises BadValue if the two contradict each other.
    """
    given, stop = config.get("metrics"), config.get("stop")
    stated: dict[str, Better] = {
        str(name): better for name, better in (given if isinstance(given, Mapping) else {}).items() if better in BETTER
    }
    metric, mode = (stop.get("metric"), stop.get("mode")) if isinstance(stop, Mapping) else (None, None)
    if isinstance(metric, str) and mode in BETTER and stated.setdefault(metric, mode) != mode:
        raise BadValue("stop.mode", got=mode, need=f"auto or {stated[metric]}, as metrics.{metric} states")
    return stated
