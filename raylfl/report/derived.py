"""Statistics of pooled seeds: costs to a target, means over the last rounds, best values, moving averages.

Conventions:
    std is the sample standard deviation (ddof 1), nan for a single value;
    rounds in `metrics.jsonl` are 0-based and values are measured after the server step: a target reached in the row
    of round r took r + 1 rounds;
    non-finite values are worse than any finite value and make a mean infinite; the best value of a run is the best of
    its finite values, if it has any;
    a diverged run is worse than any other: its last, final and best values are inf, and it reaches no target.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from raylfl.core.arrays import Floats
from raylfl.report.labels import canonical, distinct, is_scenario, labels, tell_apart, varying
from raylfl.report.runs import Group, RunRecord, more_is_better

BEST = 0  # in place of a number of final rounds: each run counts with its best round
MAIN_METRICS = (
    "test/accuracy",
    "global/distance",
    "test/loss",
    "val/accuracy",
    "val/loss",
    "train/loss",
    "global/loss",
)
MAX_LINES = 8  # more cannot be told apart by colour


@dataclass(frozen=True)
class Axis:
    """The cost on an x axis: the sum of the cumulative metrics `columns`, or the rounds if `columns` is empty.

    label: the label of the axis. head: the name of the cost in table headings.
    """

    label: str
    head: str
    columns: tuple[str, ...] = ()


PEER = "cost/peer_floats"
AXES = {
    "rounds": Axis("communication rounds", "rounds"),
    "floats": Axis("floats sent", "floats", ("cost/uplink_floats", "cost/downlink_floats", PEER)),
    "steps": Axis("local steps", "local steps", ("cost/local_steps",)),
    "virtual": Axis("virtual time (s)", "virtual s", ("time/virtual",)),
    "link": Axis("floats on each round's busiest link", "busiest link's floats", ("cost/busiest_link_floats",)),
    # FedACS's measure: the sum over all clients
    "computation": Axis("computation time (virtual s)", "computation s", ("time/computation",)),
}


@dataclass(frozen=True)
class Stat:
    """The mean and the sample standard deviation of `count` values.

    of: the expected number of values. It exceeds `count` if values are missing, such as those of seeds that never
    reached a target.
    """

    mean: float
    std: float
    count: int
    of: int

    @staticmethod
    def over(values: Sequence[float] | Floats, of: int | None = None) -> Stat:
        """The statistic of the values; its mean is nan without values, and inf if a value is not finite.

        of: the expected number of values (see `Stat`); None: the number of these values.

        >>> Stat.over([1.0, 3.0])
        Stat(mean=2.0, std=1.4142135623730951, count=2, of=2)
        """
        data = np.asarray(values, dtype=np.float64)
        count = len(data)
        of = count if of is None else of
        if not count:
            return Stat(math.nan, math.nan, 0, of)
        if not np.isfinite(data).all():
            return Stat(math.inf, math.nan, count, of)
        return Stat(float(data.mean()), float(data.std(ddof=1)) if count > 1 else math.nan, count, of)


def main_metric(runs: Sequence[RunRecord]) -> str:
    """The main metric of a report: the first metric that all runs have measured.

    MAIN_METRICS are tried before all other metrics. If no metric was measured by all runs, it is the first that some
    run has measured; `train/loss` if no run has measured any.
    """
    started = [run for run in runs if len(run.rounds)]
    others = dict.fromkeys(name for run in started for name in run.metrics)
    names = [*MAIN_METRICS, *others]
    for wanted in (all, any):
        for name in names:
            if started and wanted(run.measured(name) for run in started):
                return name
    return "train/loss"


def grows(groups: Sequence[Group], metric: str) -> bool:
    """Whether larger values of the metric are better in these settings, see `more_is_better`."""
    return more_is_better((run for group in groups for run in group.runs), metric)


def cost(run: RunRecord, axis: str) -> Floats | None:
    """The cumulative cost, a key of AXES, after each of the run's R recorded rounds [R]; None if not recorded."""
    if axis == "rounds":
        return run.rounds.astype(np.float64) + 1
    columns = [run.column(name) for name in AXES[axis].columns if run.measured(name)]
    return np.sum(columns, axis=0) if columns else None


def counted_axes(runs: Sequence[RunRecord]) -> list[str]:
    """The keys of AXES whose cost at least one run has recorded, without redundant costs.

    Computation time is redundant if it equals the local steps in all runs. The busiest link is redundant if clients
    send only to the server.
    """
    redundant = set() if between_clients(runs) else {"link"}
    pairs = [(cost(run, "computation"), cost(run, "steps")) for run in runs]
    if all(time is None or (steps is not None and np.array_equal(time, steps)) for time, steps in pairs):
        redundant.add("computation")
    return [axis for axis in AXES if axis not in redundant and any(cost(run, axis) is not None for run in runs)]


def between_clients(runs: Sequence[RunRecord]) -> bool:
    """Whether a client has sent floats to another client in one of the runs."""
    return any(np.nanmax(run.column(PEER), initial=0.0) > 0 for run in runs)


def to_target(run: RunRecord, metric: str, target: float, axis: str = "rounds") -> float | None:
    """The cost of the first measurement that reaches the target.

    None if none does, the run diverged, or the cost was not recorded.
    """
    values, spent = run.column(metric), cost(run, axis)
    better = more_is_better([run], metric)
    reached = np.isfinite(values) & (values >= target if better else values <= target)
    return None if run.diverged or spent is None or not reached.any() else float(spent[np.argmax(reached)])


def group_to_target(group: Group, metric: str, target: float, axis: str = "rounds") -> Stat:
    """Mean and std of `to_target` over the seeds that reach the target; its `of` counts all seeds."""
    costs = [to_target(run, metric, target, axis) for run in group.runs]
    return Stat.over([value for value in costs if value is not None], of=len(costs))


def recent(run: RunRecord, metric: str, last: int) -> npt.NDArray[np.intp]:
    """The indices in `run.rounds` of the rounds, among the last `last` ones, in which the metric was measured.

    If there are none, the index of the newest measurement alone; empty if the metric was never measured. last: BEST
    selects the round of the best finite value alone.
    """
    values = run.column(metric)
    seen = np.flatnonzero(~np.isnan(values))
    if last == BEST and np.isfinite(values).any():
        return np.flatnonzero(values == best_value(run, metric))[:1]
    chosen = seen[run.rounds[seen] > run.rounds[-1] - last] if len(seen) else seen
    return chosen if len(chosen) else seen[-1:]


def tail(run: RunRecord, metric: str, last: int) -> Floats:
    """The values in the rows of `recent`, empty if the metric was never measured; inf, at least one, if it diverged."""
    values = run.column(metric)[recent(run, metric, last)]
    return np.full(max(len(values), 1), np.inf) if run.diverged else values


def last_k(group: Group, metric: str, last: int) -> Stat:
    """Mean and std over all values that the seeds measured in their last `last` rounds, as in SFL's Table 3.

    A seed without a measurement in these rounds contributes its newest value. last: BEST gives mean and std over the
    seeds' best values.
    """
    return Stat.over(np.concatenate([tail(run, metric, last) for run in group.runs]))


def final(group: Group, metric: str) -> Stat:
    """Mean and std over seeds of each seed's newest measured value."""
    return Stat.over(np.concatenate([tail(run, metric, 1) for run in group.runs]), of=len(group.runs))


def best(group: Group, metric: str) -> Stat:
    """Mean and std over seeds of each seed's best value."""
    return Stat.over(np.concatenate([tail(run, metric, BEST) for run in group.runs]), of=len(group.runs))


def best_value(run: RunRecord, metric: str) -> float:
    """The run's best finite value (largest or smallest, depending on the metric); nan if it has none."""
    finite = run.column(metric)[np.isfinite(run.column(metric))]
    if not len(finite):
        return math.nan
    return float(finite.max() if more_is_better([run], metric) else finite.min())


def moving_average(values: npt.ArrayLike, window: int) -> Floats:
    """The trailing moving average: entry r is the mean of the finite values at positions r - window + 1 .. r.

    Non-finite entries stay unchanged: a smoothed curve has points only at measured values.

    >>> moving_average([1.0, 2.0, 6.0], 3).tolist()
    [1.0, 1.5, 3.0]
    """
    data = np.asarray(values, dtype=np.float64)
    seen = np.isfinite(data)
    padded = np.zeros((2, window + len(data)))  # a window before the first entry, so that empty data work
    padded[:, window:] = np.where(seen, data, 0.0), seen
    sums, counts = np.lib.stride_tricks.sliding_window_view(padded, window, axis=1).sum(axis=2)[:, 1:]
    return np.where(seen, sums / np.maximum(counts, 1), data)


def final_rounds(rounds: int) -> int:
    """A tenth of the rounds, at least 1 and at most 100 (the SFL paper: 100 of 4000), for means over a run."""
    return min(max(rounds // 10, 1), 100)


def longest(groups: Sequence[Group]) -> int:
    """The number of rounds of the longest run; 0 if no run has finished a round."""
    return max((int(run.rounds[-1]) + 1 for group in groups for run in group.runs if len(run.rounds)), default=0)


def default_last(groups: Sequence[Group]) -> int:
    """The default number of final rounds over which `last_k` averages, from the longest run."""
    return final_rounds(longest(groups))


def default_target(groups: Sequence[Group], metric: str) -> float | None:
    """The default target of a metric: the median of all settings' best values, rounded to be easier to reach.

    Accuracies are rounded down to a multiple of 0.05. Positive losses and distances are rounded up: values from 0.1
    to one significant digit, smaller values to a power of ten. None if no setting has a finite value.
    """
    bests = [value for group in groups if math.isfinite(value := best(group, metric).mean)]
    if not bests:
        return None
    middle = float(np.median(bests))
    if grows(groups, metric):
        return math.floor(middle * 20 + 1e-9) / 20
    if middle <= 0:
        return middle
    power = 10.0 ** math.floor(math.log10(middle) + 1e-9)
    digit = math.ceil(middle / power - 1e-9)
    return float(f"{(10 if digit > 1 and middle < 0.1 else digit) * power:.1g}")


def score(group: Group, metric: str, last: int) -> float:
    """The mean over the last `last` rounds, negated if smaller is better; -inf for diverged or unmeasured settings."""
    mean = last_k(group, metric, last).mean
    if not math.isfinite(mean):
        return -math.inf
    return mean if grows([group], metric) else -mean


def best_setting(groups: Sequence[Group], metric: str, last: int) -> Group:
    """The setting with the best mean over the last `last` rounds; the first one if several are equal."""
    return max(groups, key=lambda group: score(group, metric, last))


def by_method(groups: Sequence[Group]) -> dict[str, list[Group]]:
    """The settings of each method: method -> groups, in order of appearance."""
    methods: dict[str, list[Group]] = {}
    for group in groups:
        methods.setdefault(group.method, []).append(group)
    return methods


def profile(groups: Sequence[Group], key: str, metric: str, last: int) -> dict[str, list[tuple[float, Stat]]]:
    """Profiles over a numeric config key, such as the learning rate: method -> [(value, statistic)], sorted by value.

    The statistic is over the last `last` rounds (`last_k`). If several settings of a method share a value (because
    other options vary), the best of them is used. Settings with a non-numeric value are left out.
    """
    curves = {}
    for method, own in by_method(groups).items():
        by_value: dict[float, list[Group]] = {}
        for group in own:
            value = group.setting.get(key)
            if isinstance(value, int | float) and not isinstance(value, bool):
                by_value.setdefault(float(value), []).append(group)
        points = [(value, last_k(best_setting(own, metric, last), metric, last)) for value, own in by_value.items()]
        if points:
            curves[method] = sorted(points, key=lambda point: point[0])
    return curves


def tuned_keys(groups: Sequence[Group]) -> list[str]:
    """The keys of tuned options with several values for one method, in the order of the config."""
    return [key for key in _varying_within_methods(groups) if not is_scenario(key)]


@dataclass(frozen=True)
class Facet:
    """The settings of one scenario (the same data, partition and system), with the texts that name them in a figure.

    label: the values that distinguish this scenario from others; "" for a single scenario. names: for each setting, a
    text that distinguishes it from the other settings of this scenario.
    """

    label: str
    groups: list[Group]
    names: dict[Group, str]

    @staticmethod
    def of(label: str, groups: Sequence[Group]) -> Facet:
        """The facet of these settings with the given label; the settings get names that distinguish them."""
        names = labels([group.setting for group in groups])
        return Facet(label, list(groups), dict(zip(groups, names, strict=True)))

    def best(self, metric: str, last: int) -> tuple[Facet, str]:
        """The facet of the settings that one figure shows, and a sentence on their selection; "" if all are shown.

        Otherwise each method keeps the setting with the best mean over the last rounds, a single method its best ones.
        """
        total = len(self.groups)
        if total <= MAX_LINES:
            return self, ""
        methods = by_method(self.groups)
        if len(methods) > 1:
            chosen = [best_setting(own, metric, last) for own in methods.values()]
            note = f"Of {total} settings the best of each method is shown."
        else:
            ranked = sorted(self.groups, key=lambda group: -score(group, metric, last))[:MAX_LINES]
            chosen = [group for group in self.groups if group in ranked]
            note = f"Of {total} settings the best {MAX_LINES} are shown."
        return Facet(self.label, chosen, self.names), note


def scenario_keys(groups: Sequence[Group]) -> list[str]:
    """The config keys that distinguish scenarios: keys of the scenario that differ between settings of one method.

    A key that differs only between methods does not: FedACS draws with replacement and other methods do not.
    """
    return [key for key in _varying_within_methods(groups) if is_scenario(key)]


def _varying_within_methods(groups: Sequence[Group]) -> list[str]:
    within = {key for own in by_method(groups).values() for key in varying([group.setting for group in own])}
    return [key for key in varying([group.setting for group in groups]) if key in within]


def facets(groups: Sequence[Group]) -> list[Facet]:
    """The settings split by scenario, one facet each; one facet for up to MAX_LINES settings of a single method."""
    if len(by_method(groups)) == 1 and len(groups) <= MAX_LINES:
        return [Facet.of("", groups)]
    return split(groups, scenario_keys(groups))


def split(groups: Sequence[Group], keys: Sequence[str]) -> list[Facet]:
    """The settings split by their values of these config keys, in order of appearance."""
    parts: dict[str, list[Group]] = {}
    for group in groups:
        parts.setdefault(canonical([group.setting.get(key) for key in keys]), []).append(group)
    scenarios = [own[0].setting for own in parts.values()]
    texts = tell_apart(scenarios, keys, {key for group in groups for key in group.setting})
    return [Facet.of(label, own) for label, own in zip(distinct(texts), parts.values(), strict=True)]
