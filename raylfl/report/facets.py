"""Facets: settings with the same scenario (data, model, participation, ...; see `labels`), shown in one figure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from raylfl.report.derived import best_setting, by_method, score
from raylfl.report.labels import canonical, distinct, is_scenario, labels, tell_apart, varying
from raylfl.report.runs import Group

MAX_LINES = 8  # more cannot be told apart by colour


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
    keys = [key for key in varying([group.setting for group in groups]) if is_scenario(key)]
    methods = by_method(groups).values()
    return [key for key in keys if any(len({canonical(g.setting.get(key)) for g in own}) > 1 for own in methods)]


def facets(groups: Sequence[Group]) -> list[Facet]:
    """The settings split by scenario, one facet each; one facet for up to MAX_LINES settings of a single method."""
    if len(by_method(groups)) == 1 and len(groups) <= MAX_LINES:
        return [Facet.of("", groups)]
    return split(groups, scenario_keys(groups))


def split(groups: Sequence[Group], keys: Sequence[str]) -> list[Facet]:
    """The settings split by their values of these config keys; facets are in order of appearance."""
    parts: dict[str, list[Group]] = {}
    for group in groups:
        parts.setdefault(canonical([group.setting.get(key) for key in keys]), []).append(group)
    scenarios = [own[0].setting for own in parts.values()]
    texts = tell_apart(scenarios, keys, {key for group in groups for key in group.setting})
    return [Facet.of(label, own) for label, own in zip(distinct(texts), parts.values(), strict=True)]
