"""The search space of a sweep: config keys, their values, and conditions on other keys.

    space:
      algorithm.name: {grid: [focus, fedavg]}
      local.lr:                                  # the first alternative whose `when` holds
        - {grid: [0.003, 0.01], when: {algorithm.name: focus}}
        - {loguniform: [0.01, 1]}
      algorithm.gamma: {uniform: [0.1, 1], when: {algorithm.name: [focus]}}   # else unchanged
      partition: {grid: [{name: iid}, {name: dirichlet, alpha: 0.1}]}         # a whole group

`grid` runs every value. Values of the other domains are drawn: `choice` from a list; `uniform` and `loguniform` [low,
high] give real numbers, rounded to four digits for legibility; `randint` [low, high] gives whole numbers below high, as
in Ray Tune. A condition `when` lists config keys, in the space or not, and the values for which it holds.
"""

from __future__ import annotations

import json
import sys
import zlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from raylfl.config.components import unknown_key
from raylfl.config.identity import flatten
from raylfl.core.keyed import keyed
from raylfl.errors import BadConfig, BadValue
from raylfl.report.labels import METHOD, canonical, is_scenario

Values = dict[str, Any]  # dotted config key -> value
Draw = Callable[[str, "Domain"], Any]
LISTS = ("grid", "choice")
RANGES = ("uniform", "loguniform", "randint")


@dataclass(frozen=True)
class Domain:
    """The values that a key may take: all in `args` for a grid or a choice, else the range from args[0] to args[1].

    kind: one of LISTS or RANGES; `randint` excludes args[1]. when: config key -> values of this key for which the
    domain applies; empty: always.
    """

    kind: str
    args: list[Any]
    when: dict[str, list[Any]] = field(default_factory=dict)

    @staticmethod
    def parse(key: str, content: Any) -> Domain:
        """The domain of `key` from file content such as {grid: [0.1, 0.3]}. Raises BadConfig for another form."""
        path = f"space.{key}"
        kinds = [*LISTS, *RANGES]
        if not isinstance(content, Mapping):
            raise BadValue(path, got=content, need=f"one of {', '.join(kinds)}", hint="such as {grid: [0.1, 0.3]}")
        for name in content:
            if name not in (*kinds, "when"):
                raise unknown_key(str(name), (*kinds, "when"), path)
        chosen = [kind for kind in kinds if kind in content]
        if len(chosen) != 1:
            raise BadValue(path, got=dict(content), need=f"exactly one of {', '.join(kinds)}")
        kind, args = chosen[0], content[chosen[0]]
        if not isinstance(args, list) or not args:
            raise BadValue(
                f"{path}.{kind}", got=args, need="a list of values" if kind in LISTS else "a list [low, high]"
            )
        when = content.get("when") or {}
        if not isinstance(when, Mapping):
            raise BadValue(f"{path}.when", got=when, need="config keys and the values that they must have")
        if kind in RANGES:
            _check_range(f"{path}.{kind}", kind, args)
        return Domain(kind, args, {str(k): v if isinstance(v, list) else [v] for k, v in when.items()})

    def draw(self, rng: np.random.Generator) -> Any:
        """A random value of the domain, which must not be a grid."""
        assert self.kind != "grid"
        if self.kind == "choice":
            return self.args[int(rng.integers(len(self.args)))]
        low, high = self.args
        if self.kind == "randint":
            return int(rng.integers(int(low), int(high)))
        if self.kind == "loguniform":
            return self.round_value(float(np.exp(rng.uniform(np.log(low), np.log(high)))))
        return self.round_value(float(rng.uniform(low, high)))

    def round_value(self, value: float) -> float:
        """A real number rounded to four digits, then clipped to the domain's range."""
        return float(min(max(float(f"{value:.4g}"), self.args[0]), self.args[1]))


def _check_range(path: str, kind: str, args: list[Any]) -> None:
    numbers = all(isinstance(a, (int, float)) and not isinstance(a, bool) for a in args)
    most = 2**63 - 1 if kind == "randint" else sys.float_info.max
    if len(args) != 2 or not numbers or not -most <= args[0] < args[1] <= most:
        raise BadValue(path, got=args, need="[low, high], finite numbers with low < high")
    if kind == "loguniform" and args[0] <= 0:
        raise BadValue(path, got=args, need="[low, high] with 0 < low")
    if kind == "randint" and any(a != int(a) for a in args):
        raise BadValue(path, got=args, need="[low, high] of whole numbers; high itself is never drawn")


@dataclass(frozen=True)
class Space:
    """A search space: for each config key its domains, each with the condition under which it applies.

    The keys are ordered: a condition refers only to earlier keys. base: in methods, the config, for conditions on its
    values.
    """

    keys: dict[str, list[Domain]]

    @staticmethod
    def parse(content: Mapping[str, Any]) -> Space:
        """The space from the key `space` of a sweep file. Raises BadConfig that lists every mistake."""
        keys: dict[str, list[Domain]] = {}
        problems: list[str] = []
        for key, alternatives in content.items():
            try:
                entries = alternatives if isinstance(alternatives, list) and alternatives else [alternatives]
                keys[str(key)] = [Domain.parse(str(key), entry) for entry in entries]
            except BadConfig as error:
                problems += error.problems
        if problems:
            raise BadConfig(problems)
        return Space(_order(keys))

    def points(self, samples: int, seed: int, base: Mapping[str, Any]) -> list[Values]:
        """All points of the grids, each with `samples` draws of the other domains, without repetitions.

        Draw k from a domain is the same at all grid points: all algorithms get the same learning rates.
        """
        points: dict[str, Values] = {}
        cells = self.cells(base)
        for k in range(samples):

            def draw(key: str, domain: Domain, k: int = k) -> Any:
                alternative = self.keys[key].index(domain)
                return domain.draw(keyed(seed, "sweep", k, zlib.crc32(key.encode()), alternative))

            for point in (self.point(cell, draw, base) for cell in cells):
                points.setdefault(json.dumps(point, sort_keys=True), point)
        return list(points.values())

    def cells(self, base: Mapping[str, Any]) -> list[Values]:
        """All points of the grids alone; [{}] without grids. Raises BadConfig if a grid depends on a drawn key."""
        for key, domains in self.keys.items():
            conditions = {name for domain in domains for name in domain.when}
            drawn_keys = sorted(name for name in conditions if self._is_drawn(name))
            if drawn_keys and any(domain.kind == "grid" for domain in domains):
                raise BadConfig(
                    f"space.{key}: the grid depends on {', '.join(drawn_keys)}, which is drawn: write choice for grid, "
                    "or grid for that key"
                )
        cells: list[Values] = [{}]
        for key in self.keys:
            longer: list[Values] = []
            for cell in cells:
                domain = self.active(key, cell, base)
                grid = domain is not None and domain.kind == "grid"
                longer += [{**cell, key: value} for value in domain.args] if domain is not None and grid else [cell]
            cells = longer
        return cells

    def _is_drawn(self, name: str) -> bool:
        domains = [self.keys[key] for key in self.keys if name == key or name.startswith(f"{key}.")]
        return any(domain.kind != "grid" for alternatives in domains for domain in alternatives)

    def point(self, cell: Values, draw: Draw, base: Mapping[str, Any]) -> Values:
        """One point of the space in a cell, a point of the grids; draw: chooses the value of a key from its domain."""
        values: Values = {}
        for key in self.keys:
            domain = self.active(key, values, base)
            if key in cell:
                values[key] = cell[key]
            elif domain is not None and domain.kind != "grid":
                values[key] = draw(key, domain)
        return values

    def active(self, key: str, values: Values, base: Mapping[str, Any]) -> Domain | None:
        """The first domain of `key` whose condition holds; None: the key keeps its value in the config."""
        for domain in self.keys[key]:
            if all(look_up(k, values, base) in allowed for k, allowed in domain.when.items()):
                return domain
        return None


def look_up(key: str, values: Values, base: Mapping[str, Any]) -> Any:
    """The value of a dotted key at a point of the space (`values`), or else in the config `base`, or else None."""
    parts = key.split(".")
    for cut in range(len(parts), 0, -1):
        head = ".".join(parts[:cut])
        if head in values:
            return _inside(values[head], parts[cut:])
    return _inside(base, parts)


def comparable(values: Values) -> str:
    """The algorithm and the scenario (data, model, ...) of a setting; only settings with equal strings are compared."""
    flat = flatten(values)
    return canonical({k: v for k, v in flat.items() if is_scenario(k) or k in (METHOD, METHOD.partition(".")[0])})


def _inside(value: Any, parts: Sequence[str]) -> Any:
    for part in parts:
        if isinstance(value, str) and part == "name":  # `partition: iid`
            return value
        value = value.get(part) if isinstance(value, Mapping) else None
    return value


def _order(keys: dict[str, list[Domain]]) -> dict[str, list[Domain]]:
    """The keys, each behind those in its conditions. Raises BadConfig if conditions depend on each other."""
    done: dict[str, list[Domain]] = {}

    def add(key: str, chain: tuple[str, ...]) -> None:
        if key in done:
            return
        if key in chain:
            raise BadConfig(f"space: the conditions depend on each other: {' -> '.join((*chain, key))}")
        for name in {w: None for domain in keys[key] for w in domain.when}:
            for other in keys:
                if other != key and (name == other or name.startswith(f"{other}.")):
                    add(other, (*chain, key))
        done[key] = keys[key]

    for key in keys:
        add(key, ())
    return done
