"""Values per edge: one number for all edges between clients, or a draw for each.

    0.2                          every edge the same
    {uniform: [lo, hi]}          U(lo, hi) of each edge
    {lognormal: [mean, sigma]}   exp(mean + sigma z), z ~ N(0, 1)

An edge's value is drawn once per run and is the same in both directions. It depends on the seed, the number of clients
and the edge's two clients, not on the other edges of the graph. The file `topology.links` sets values of single edges.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Any

import numpy as np

from raylfl.components.options import Kind
from raylfl.core.arrays import Floats, Ints
from raylfl.errors import BadValue
from raylfl.heterogeneity.values import Interval, PerClient
from raylfl.heterogeneity.world import RunContext

FORMS = ("value", "uniform", "lognormal")
ValuePerEdge = Annotated[Any, Kind("a number, {uniform: [lo, hi]} or {lognormal: [mean, sigma]}")]


@dataclass(frozen=True)
class PerEdge:
    """A parsed specification of one value per edge; see the module's docstring for its forms."""

    values: PerClient

    @staticmethod
    def parse(spec: object, key: str, interval: Interval) -> PerEdge:
        """Parses `spec`; raises BadValue for a form that the module does not list, and for values outside `interval`.

        key: the option's name, for messages and as a key of the random draws. interval: the accepted values.
        """
        if not (isinstance(spec, (int, float)) or (isinstance(spec, Mapping) and set(spec) <= set(FORMS))):
            hint = "topology.links names a file with values of single edges"
            raise BadValue(key, got=spec, need="a number, {uniform: [lo, hi]} or {lognormal: [mean, sigma]}", hint=hint)
        return PerEdge(PerClient.parse(spec, key, interval, purpose=f"topology/{key}"))

    def at(self, ends: Ints, world: RunContext) -> Floats:
        """The values of M edges, float64 [M].

        ends: the two client ids of each edge [M, 2], in either order.
        """
        numbers = np.sort(ends, axis=1) @ np.array([world.count, 1])
        return self.values.at(0, numbers, world)
