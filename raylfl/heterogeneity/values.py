"""Values per client: the grammar of options such as `p`, `q`, `steps`, `epochs`, `batch_size` and `seconds_per_step`.

    0.2                                  every client the same             (also {value: 0.2})
    [0.1, 0.2, 0.4]                      client i has entry i              (also {list: [0.1, 0.2, 0.4]})
    {linspace: [lo, hi]}                 client i has lo + (hi - lo) i/(N-1)
    {uniform: [lo, hi]}                  a draw of U(lo, hi) for each client; integer options: U{lo..hi}, both included
    {lognormal: [mean, sigma]}           exp(mean + sigma z), z ~ N(0, 1); options without upper bound only
    {ranges: [{fraction: 0.9, ...}, {fraction: 0.1, ...}]}    parts of these sizes, members drawn at random
    {groups: [{count: 15, ...}, {count: 15, ...}]}            parts of these sizes, with consecutive clients
    {phases: [{until: 0.5, ...}, {...}]}                      phases that end at these fractions of the run's rounds

i is the client's id and N the number of clients; inside a part, i is the client's place 0, 1, ... in the part and N the
part's size. `...` stands for any of these forms. Part sizes are `fraction`s (sum 1, borders rounded) or `count`s (sum
N). Values are drawn once per run, or once per round with `dynamic: true` and inside `phases`. The members of the parts
of `ranges` are always drawn once per run.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Any

import numpy as np

from raylfl.components.options import Kind
from raylfl.core.arrays import Floats, Ints
from raylfl.heterogeneity.forms import MOST, ONCE, Form, Interval, Query, parse
from raylfl.heterogeneity.world import RunContext

ValuePerClient = Annotated[Any, Kind("a value per client")]


@dataclass(frozen=True)
class PerClient:
    """A parsed specification of one value per client; see the module's docstring for the grammar.

    interval: the accepted values. purpose: a name for the option, part of the key of its random draws. dynamic: whether
    random values are redrawn every round instead of once per run.
    """

    form: Form
    interval: Interval
    purpose: str
    dynamic: bool = False

    @staticmethod
    def parse(spec: object, key: str, interval: Interval, *, purpose: str, dynamic: bool = False) -> PerClient:
        """Parses a specification and checks that the interval accepts its values.

        spec: a number, list or mapping. key: the option's name, for messages. interval, purpose, dynamic: as in the
        class. Raises BadValue that names the innermost key: `q.groups[1].uniform=[0.4, 1.2], but must be ...`.
        """
        return PerClient(parse(spec, key, interval), interval, purpose, dynamic)

    @property
    def varies(self) -> bool:
        """Whether values can change from round to round: with `dynamic`, and for specifications that have `phases`."""
        return self.dynamic or self.form.varies

    def check(self, count: int) -> None:
        """Checks that lists and part sizes fit `count` clients; raises BadValue."""
        self.form.fit(count)

    def at(self, r: int, clients: Ints, world: RunContext, top: Floats | None = None) -> Floats:
        """The values of C clients (ids [C]) in round r, float64 [C]; whole numbers for an interval of whole numbers.

        Entry j depends on (seed, purpose, r, clients[j]) and the run's numbers of clients and rounds, not on the other
        entries of `clients`. top: the upper ends [C] of `uniform: [lo, null]`. Raises BadValue as `check` does.
        """
        self.check(world.count)
        key = r if self.dynamic else ONCE
        values = self.form.at(Query(world, self.purpose, r, key, clients, clients, world.count, top))
        if self.interval.integer:  # linspace and lognormal give values between whole numbers
            return np.clip(np.rint(values), self.interval.low, MOST)
        return values
