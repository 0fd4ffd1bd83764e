"""FOCUS [1] (Ying, Li & Yang, NeurIPS 2025): ridge regression, figure 4."""

import math
from collections.abc import Mapping
from functools import partial
from typing import Any, ClassVar

import numpy as np

from papers.base import EXPERIMENTS, Claim
from papers.lines import Lines, Values
from papers.texts import cost_or_dash, listing
from raylfl.core.arrays import Floats
from raylfl.report.derived import to_target
from raylfl.report.runs import Group
from raylfl.report.tables import Column
from raylfl.report.wording import number

DISTANCE = "global/distance"
METHODS = {name: name.lower() for name in ("FOCUS", "FedAvg", "FedAU", "MIFA", "SCAFFOLD")} | {"ProxSkip": "scaffnew"}
EXACT = 1e-12  # relative distance that counts as exact; rounding allows about 1e-15
# Fig. 4 counts ProxSkip's variates as sent; our clients compute them from the next x, so that a run counts half
COUNTED = {"ProxSkip": 2.0}
COUNTED_NOTE = (
    "floats as the paper counts them: 2d in each direction for SCAFFOLD and ProxSkip (our ProxSkip sends d); d is "
    "the number of parameters"
)
REMARKS = {
    "MIFA": "it diverges in the paper's fig. 4, whose notebook measures updates from the client's own last model",
    "ProxSkip": "in ours, idle clients keep their variates, so that the variates sum to 0 and x* is a fixed point; if "
    "idle clients also renew theirs, ProxSkip diverges, as in fig. 4",
}
SAME = (("FedAvg", "FedAU", "MIFA"), ("SCAFFOLD", "ProxSkip"))  # identical under full participation
COSTS = {f"{axis} to {goal:g}": (axis, goal) for goal in (1e-6, EXACT) for axis in ("rounds", "floats")}


@EXPERIMENTS.register("focus/fig4", paper="FOCUS [1] fig. 4")
class Fig4(Lines):
    """Ridge regression under full, uniform and arbitrary participation: six methods by floats sent."""

    scales, base, cells = (), ("reproduce/focus_fig4",), "label"
    axes: ClassVar = {
        "participation": {  # with the rounds to run, until SCAFFOLD is exact
            "full": {"rounds": 450},
            "uniform": {"base": ["preset/focus_fig4_uniform"], "rounds": 600},
            "arbitrary": {"base": ["preset/focus_fig4_arbitrary"], "rounds": 1000},
        },
        "method": {name: {"algorithm.name": key} for name, key in METHODS.items()},
    }
    within: ClassVar = {"full": 200, "uniform": 500, "arbitrary": 3000}  # rounds after which FOCUS is exact
    measures: ClassVar = {
        cost: partial(to_target, metric=DISTANCE, target=goal, axis=axis) for cost, (axis, goal) in COSTS.items()
    } | {
        "level": lambda run: level(run.column(DISTANCE)),
        "straightness": lambda run: straightness(run.column(DISTANCE)),
        "stalls": lambda run: float(is_stalled(run.column(DISTANCE))),
    }
    curves = ("cost/uplink_floats", "cost/downlink_floats")

    panel, heading, metrics, stem = "participation", "{} participation", (DISTANCE,), "fig4"
    looks, notes = METHODS, [COUNTED_NOTE]
    caption = "Relative distance |x - x*|/|x*|; floats are the sum of both directions."
    plot: ClassVar = {"axis": "floats", "limits": (1e-16, 10), "factors": COUNTED, "start": 1.0}
    columns = (
        Column("end", "ends at", partial(number, digits=2), "min", True),
        *(Column(cost.replace(" to ", ""), cost, cost_or_dash, "min", True) for cost in COSTS),
    )

    def values(self, panel: str, line: str, group: Group) -> dict[str, Any]:
        values = {}
        for key in self.measures:
            value, factor = self.measure(group.runs[0], key), COUNTED.get(line, 1.0)
            values[key] = math.inf if value is None else value * (factor if key.startswith("floats") else 1.0)
        costs = {cost.replace(" to ", ""): values[cost] for cost in COSTS}
        return values | costs | {"end": values["level"], "curve": group.runs[0].column(DISTANCE)}

    def claims(self, values: Values) -> list[Claim]:
        allowed = ", ".join(f"{rounds} ({panel} participation)" for panel, rounds in self.within.items())

        def of(name: str, key: str) -> dict[str, float]:
            return {panel: lines[name][key] for panel, lines in values.items()}

        spent, straight = of("FOCUS", f"rounds to {EXACT:g}"), of("FOCUS", "straightness")
        ends = {name: of(name, "level") for name in METHODS}
        full, partial = ends["ProxSkip"]["full"], {k: end for k, end in ends["ProxSkip"].items() if k != "full"}
        near = f"FOCUS comes within a relative distance of {EXACT:g} of x*, after at most {allowed} rounds"
        within = all(spent[panel] <= self.within[panel] for panel in values)
        linear = "FOCUS converges linearly: log distance against rounds is a straight line"
        r2 = "R^2 " + listing(straight, "{:.3f}".format)
        text = "ProxSkip is exact under full participation"
        fails = "ProxSkip does not converge under partial participation"
        return [
            Claim(near, within, listing(spent, "{:.0f}".format) + " rounds"),
            Claim(linear, all(value > 0.95 for value in straight.values()), r2),
            _first_in_floats(values),
            Claim("SCAFFOLD is exact", max(ends["SCAFFOLD"].values()) < EXACT, _ends(ends["SCAFFOLD"])),
            *(
                Claim(f"{name} stalls", all(of(name, "stalls").values()), _ends(ends[name]), REMARKS.get(name, ""))
                for name in ("FedAvg", "FedAU", "MIFA")
            ),
            Claim(text, full < EXACT, f"relative distance at the end: {full:.2g}"),
            Claim(fails, min(partial.values()) > 1e-3, _ends(partial), REMARKS["ProxSkip"]),
            *(_same(values["full"], *names) for names in SAME),
        ]


def level(distance: Floats) -> float:
    """The distance at which a method ends: the median of its relative distance over the last tenth of the rounds."""
    return float(np.median(distance[-max(len(distance) // 10, 1) :]))


def straightness(distance: Floats) -> float:
    """The R^2 of a straight line through log |x_r - x*| over rounds; 1 for exactly linear convergence.

    distance: |x_r - x*| by round; rounds after EXACT is reached are left out.
    """
    until = int(np.argmax(distance <= EXACT)) or len(distance)
    logs = np.log10(distance[:until])
    return float(np.corrcoef(np.arange(until), logs)[0, 1] ** 2)


def is_stalled(distance: Floats) -> bool:
    """Whether a method stalls: it ends closer than it started but not near x*, and hardly moves in the last quarter.

    Hardly: the median distance of the last quarter of the rounds is more than half the median of the third quarter.
    distance: the relative distance to x* by round, 1 at the start.
    """
    third, last = (np.median(part) for part in np.array_split(distance, 4)[2:])
    return bool(1e-6 < last < 1 and last > third / 2)


def _first_in_floats(values: Values) -> Claim:
    evidence, holds = [], True
    for panel, lines in values.items():
        costs = {name: results[f"floats to {EXACT:g}"] for name, results in lines.items()}
        other, name = min((cost, name) for name, cost in costs.items() if name != "FOCUS")
        evidence.append(f"{panel} {cost_or_dash(costs['FOCUS'])} (next: {name}, {cost_or_dash(other)})")
        holds &= costs["FOCUS"] < other
    return Claim(f"FOCUS reaches a relative distance of {EXACT:g} with the fewest floats", holds, "; ".join(evidence))


def _same(lines: Mapping[str, Mapping[str, Any]], *names: str) -> Claim:
    """The claim in the caption of fig. 4 that the named methods are identical under full participation."""
    first, *others = (lines[name]["curve"] for name in names)
    apart = max(float(np.nanmax(np.abs(other - first))) for other in others)
    text = f"under full participation {', '.join(names)} are identical"
    return Claim(text, apart < 1e-12, f"their distances differ by at most {apart:.1g}")


def _ends(values: Mapping[str, float]) -> str:
    return "relative distance at the end: " + listing(values, "{:.2g}".format)
