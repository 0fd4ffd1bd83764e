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

import math
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache, partial
from typing import Annotated, Any, NamedTuple

import numpy as np

from raylfl.components.options import Kind
from raylfl.core.arrays import Floats, Ints
from raylfl.core.keyed import keyed, keyed_uniform
from raylfl.errors import BadValue
from raylfl.heterogeneity.world import RunContext

ONCE = -1  # the round key of values that are drawn once per run
MOST = 10**9  # largest whole number accepted


@dataclass(frozen=True)
class Interval:
    """The values that an option accepts: numbers low..high; `text` completes the sentence "must be ...".

    integer: whole numbers only, at most MOST. open_low, open_high: low and high themselves are excluded. open_top:
    `uniform: [lo, null]` is allowed, and `PerClient.at` then needs its argument `top`. phases: `phases` are allowed.
    """

    text: str
    low: float
    high: float = math.inf
    integer: bool = False
    open_low: bool = False
    open_high: bool = False
    open_top: bool = False
    phases: bool = True

    def __contains__(self, number: object) -> bool:
        if isinstance(number, bool) or not isinstance(number, (int, float, np.integer, np.floating)):
            return False
        finite = abs(number) <= sys.float_info.max if isinstance(number, int) else math.isfinite(number)
        if not finite or (self.integer and (number != int(number) or number > MOST)):
            return False
        above = number > self.low if self.open_low else number >= self.low
        return bool(above and (number < self.high if self.open_high else number <= self.high))


PROBABILITY = Interval("a probability in [0, 1]", 0.0, 1.0)
FAILURE = Interval("a failure probability in [0, 1)", 0.0, 1.0, open_high=True)
COUNT = Interval("a whole number, at least 1 and at most 1e9", 1, integer=True)
POSITIVE = Interval("a number above 0", 0.0, open_low=True)


class Query(NamedTuple):
    """A request for the values of C clients of a part: their ids `clients` [C] and their places in it [C], 0..size-1.

    size: the number of clients of the part. purpose: a name for the option, part of the key of its random draws. r: the
    round.
    """

    world: RunContext
    purpose: str
    r: int
    key: int  # r if values are redrawn every round, else ONCE
    clients: Ints
    place: Ints
    size: int
    top: Floats | None = None  # [C], the upper ends of `uniform: [lo, null]`

    def uniform(self) -> Floats:
        """One draw of U(0, 1) for each of the C clients [C], a function of (seed, purpose, key, client)."""
        return keyed_uniform(self.world.seed, self.purpose, self.key, self.clients)


@dataclass(frozen=True)
class Form:
    """A parsed form.

    at: returns the values of the C clients in a query, float64 [C]. fit: raises BadValue if the form's lists and counts
    do not fit a part of so many clients. varies: whether its values change from round to round, as those of `phases`.
    random: whether its values are drawn.
    """

    at: Callable[[Query], Floats]
    fit: Callable[[int], None] = lambda size: None  # most forms fit any number of clients
    varies: bool = False
    random: bool = False


def parse(spec: object, key: str, interval: Interval) -> Form:
    """The form of a number, list or mapping, as in `PerClient`."""
    if isinstance(spec, Mapping):
        forms = [name for name in spec if name in _FORMS]
        if len(forms) != 1 or len(spec) != 1:
            hint = "one may come from a base file" if len(forms) > 1 else ""
            raise BadValue(key, got=dict(spec), need=f"exactly one of {', '.join(_FORMS)}", hint=hint)
        return _FORMS[forms[0]](spec[forms[0]], f"{key}.{forms[0]}", interval)
    if isinstance(spec, Sequence) and not isinstance(spec, str):
        return _list(spec, key, interval)
    return _value(spec, key, interval)


def _value(spec: object, key: str, interval: Interval) -> Form:
    if spec not in interval:
        hint = "or a list, or a mapping, in quotes: '{uniform: [lo, hi]}'" if isinstance(spec, str) else ""
        raise BadValue(key, got=spec, need=interval.text, hint=hint)
    value = float(spec)  # type: ignore[arg-type]
    return Form(lambda query: np.full(len(query.clients), value))


def _list(spec: object, key: str, interval: Interval) -> Form:
    entries = _sequence(spec, key, "a list with one entry per client")
    for place, entry in enumerate(entries):
        if entry not in interval:
            raise BadValue(f"{key}[{place}]", got=entry, need=interval.text)
    values = np.array(entries, dtype=np.float64)

    def fit(size: int) -> None:
        if len(values) != size:
            raise BadValue(key, got=f"{len(values)} entries", need=f"{size}, one per client")

    return Form(lambda query: values[query.place], fit)


def _linspace(spec: object, key: str, interval: Interval) -> Form:
    low, high = _sequence(spec, key, "two numbers", 2)
    if low not in interval or high not in interval:
        raise BadValue(key, got=spec, need=f"[first, last], each {interval.text}")
    return Form(lambda query: low + (high - low) * query.place / max(query.size - 1, 1))


def _uniform(spec: object, key: str, interval: Interval) -> Form:
    low, high = _sequence(spec, key, "two numbers", 2)
    ends = [low] if interval.open_top and high is None else [low, high]
    if any(end not in interval for end in ends) or ends != sorted(ends):
        raise BadValue(key, got=spec, need=f"[lo, hi] with lo <= hi, each {interval.text}")

    def at(query: Query) -> Floats:
        u, top = query.uniform(), query.top if high is None else float(high)
        assert top is not None, "this option allows no open upper end"
        top = np.maximum(top, low)
        if not interval.integer:
            return np.asarray(low + (top - low) * u)
        return np.asarray(np.minimum(low + np.floor(u * (top - low + 1)), top))

    return Form(at, random=True)


def _lognormal(spec: object, key: str, interval: Interval) -> Form:
    mean, sigma = _sequence(spec, key, "two numbers", 2)  # of the logarithm, as in numpy: the median is exp(mean)
    finite = Interval("", -math.inf)
    if math.isfinite(interval.high):
        raise BadValue(key, got=spec, need=f"another form: values are {interval.text}", hint="lognormal has no bound")
    if mean not in finite or sigma not in finite or sigma < 0:
        raise BadValue(key, got=spec, need="[mean, sigma] of the logarithm, sigma >= 0")

    def at(query: Query) -> Floats:
        from scipy.special import ndtri  # a slow import, needed here only

        values: Floats = np.exp(mean + sigma * ndtri(query.uniform()))
        return values

    return Form(at, random=True)


def _parts(spec: object, key: str, interval: Interval, shuffled: bool) -> Form:
    """`ranges` (shuffled: members at random) and `groups` (consecutive members)."""
    entries = _mappings(spec, key, "a list of parts")
    kinds = [{"fraction", "count"} & set(part) for part in entries]
    if not kinds or len(kinds[0]) != 1 or kinds != kinds[:1] * len(kinds):
        raise BadValue(key, got=spec, need="a list whose parts all have `fraction`, or all have `count`")
    kind = kinds[0].pop()
    allowed = COUNT if kind == "count" else Interval("a fraction in (0, 1]", 0.0, 1.0, open_low=True)
    shares, forms = [], []
    for j, part in enumerate(entries):
        share = part.pop(kind)
        if share not in allowed:
            raise BadValue(f"{key}[{j}].{kind}", got=share, need=allowed.text)
        shares.append(float(share))
        forms.append(parse(part, f"{key}[{j}]", interval))
    if kind == "fraction" and abs(sum(shares) - 1) > 1e-9:
        raise BadValue(key, got=f"fractions that sum to {sum(shares):g}", need="fractions with sum 1")
    ends = np.cumsum((0.0, *shares))

    def edges(size: int) -> Ints:  # part j has the places edges[j]..edges[j + 1] - 1
        return np.floor(ends * (1 if kind == "count" else size) + 0.5).astype(np.int64)

    def fit(size: int) -> None:
        if (last := edges(size)[-1]) != size:
            raise BadValue(key, got=f"counts that sum to {last}", need=f"{size}, all clients")
        for form, members in zip(forms, np.diff(edges(size)), strict=True):
            form.fit(int(members))

    def at(query: Query) -> Floats:
        place = query.place
        if shuffled:
            place = _shuffle(query.world.seed, f"{query.purpose}/{key}", query.size)[place]
        borders, values = edges(query.size), np.empty(len(place))
        for form, low, high in zip(forms, borders[:-1], borders[1:], strict=True):
            mask = (place >= low) & (place < high)
            if mask.any():
                top = None if query.top is None else query.top[mask]
                clients, size = query.clients[mask], int(high - low)
                values[mask] = form.at(query._replace(clients=clients, place=place[mask] - low, size=size, top=top))
        return values

    return Form(at, fit, any(form.varies for form in forms), any(form.random for form in forms))


@lru_cache(maxsize=8)
def _shuffle(seed: int, purpose: str, size: int) -> Ints:
    """A random permutation of 0..size-1, a function of the arguments; cached, therefore read-only."""
    order = keyed(seed, purpose, ONCE).permutation(size)
    order.flags.writeable = False
    return order


def _phases(spec: object, key: str, interval: Interval) -> Form:
    entries = _mappings(spec, key, "a list of phases")
    until = [part.pop("until", None) for part in entries]
    inner = Interval("", 0.0, 1.0, open_low=True, open_high=True)
    rising = all(end in inner for end in until[:-1]) and all(np.diff(until[:-1]) > 0)
    if not interval.phases:
        raise BadValue(key, got=spec, need="another form: this value cannot change during a run")
    if not until or until[-1] is not None or not rising:
        need = "phases that end at rising fractions `until` of the rounds, in (0, 1), the last without `until`"
        raise BadValue(key, got=spec, need=need)
    forms, ends = [parse(part, f"{key}[{j}]", interval) for j, part in enumerate(entries)], np.array(until[:-1])

    def at(query: Query) -> Floats:
        borders = np.floor(ends * query.world.rounds + 0.5)
        phase = int(np.searchsorted(borders, query.r, side="right"))
        return forms[phase].at(query._replace(key=query.r))

    def fit(size: int) -> None:
        for form in forms:
            form.fit(size)

    return Form(at, fit, True, any(form.random for form in forms))


def _sequence(spec: object, key: str, need: str, length: int | None = None) -> Sequence[Any]:
    if not isinstance(spec, Sequence) or isinstance(spec, str) or length not in (None, len(spec)):
        raise BadValue(key, got=spec, need=need)
    return spec


def _mappings(spec: object, key: str, need: str) -> list[dict[str, Any]]:
    for j, part in enumerate(entries := _sequence(spec, key, need)):
        if not isinstance(part, Mapping):
            raise BadValue(f"{key}[{j}]", got=part, need="a mapping, such as {fraction: 0.5, value: 3}")
    return [dict(part) for part in entries]


_FORMS: dict[str, Callable[[object, str, Interval], Form]] = {
    "value": _value,
    "list": _list,
    "linspace": _linspace,
    "uniform": _uniform,
    "lognormal": _lognormal,
    "ranges": partial(_parts, shuffled=True),
    "groups": partial(_parts, shuffled=False),
    "phases": _phases,
}


ValuePerClient = Annotated[Any, Kind("a value per client")]


class PerClient:
    """One value per client, from a specification; see the module's docstring for the grammar."""

    def __init__(self, spec: object, key: str, interval: Interval, purpose: str, dynamic: bool = False):
        """Parses a specification and checks that the interval accepts its values.

        spec: a number, list or mapping. key: the option's name, for messages. purpose: a name for the option, part of
        the key of its random draws. dynamic: whether random values are redrawn every round instead of once per run.
        Raises BadValue that names the innermost key: `q.groups[1].uniform=[0.4, 1.2], but must be ...`.
        """
        self.form, self.interval, self.purpose, self.dynamic = parse(spec, key, interval), interval, purpose, dynamic

    @property
    def varies(self) -> bool:
        """Whether values can change from round to round: with `dynamic`, and for specifications that have `phases`."""
        return self.dynamic or self.form.varies

    def at(self, r: int, clients: Ints, world: RunContext, top: Floats | None = None) -> Floats:
        """The values of C clients (ids [C]) in round r, float64 [C]; whole numbers for an interval of whole numbers.

        Entry j depends on (seed, purpose, r, clients[j]) and the run's numbers of clients and rounds, not on the other
        entries of `clients`. top: the upper ends [C] of `uniform: [lo, null]`. Raises BadValue if lists or part sizes
        do not fit the number of clients.
        """
        count, key = len(world.population.sizes), r if self.dynamic else ONCE
        self.form.fit(count)
        values = self.form.at(Query(world, self.purpose, r, key, clients, clients, count, top))
        if self.interval.integer:  # linspace and lognormal give values between whole numbers
            return np.clip(np.rint(values), self.interval.low, MOST)
        return values
