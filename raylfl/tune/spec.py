"""A sweep file: a config plus the keys of `SweepConfig`.

    base: digits                    # any experiment; other config keys may follow: rounds: 50
    space: {local.lr: {grid: [0.01, 0.03, 0.1]}}
    seeds: [0, 1, 2]                # a setting's seeds are pooled

The whole file is checked before Ray starts: a mistake is reported within seconds.
"""

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Annotated, Any, Literal

from raylfl.components.options import Doc, Ge, Gt, Kind, Options
from raylfl.config.components import keys_of, make_typed, unknown_key
from raylfl.config.find import conf_roots, find_config
from raylfl.config.groups.top import TopConfig
from raylfl.config.json_schema import Schema, config_schema, keys_schema
from raylfl.config.layers import GROUPS, content_of, file_layers, merge_layer, override, override_layers
from raylfl.config.load import Config, compose, load_config, resolve_interpolations
from raylfl.config.text import FORMAT, KEY, refuse_other
from raylfl.diagnostics.metric_names import stated_directions
from raylfl.errors import BadConfig, BadValue
from raylfl.report.derived import BEST
from raylfl.report.runs import is_run, readable
from raylfl.tune.score import Score
from raylfl.tune.space import LISTS, RANGES, Space, Values

REDUCTION = 3.0
CHECKED = 200  # largest number of settings that are checked before anything starts


@dataclass
class SchedulerConfig(Options):
    """`asha` is Ray Tune's ASHAScheduler: at rounds grace, grace * reduction, ... the best settings so far continue.

    Li et al., "A System for Massively Parallel Hyperparameter Tuning", MLSys 2020. Settings are compared by their mean
    scores over seeds, and only with settings of the same algorithm in the same scenario (data, model, participation,
    ...).
    """

    name: Annotated[Literal["fifo", "asha"], Doc("fifo: every setting runs to its last round")] = "fifo"
    grace: Annotated[int | None, Ge(1), Doc("rounds before a setting may be stopped; null: a tenth of the rounds")] = (
        None
    )
    reduction: Annotated[float, Gt(1), Doc("the best 1 / reduction of the settings continue")] = REDUCTION

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.name == "fifo" and (self.grace is not None or self.reduction != REDUCTION):
            raise BadValue("name", got="fifo", need="asha, to which grace and reduction belong")

    def first(self, rounds: int) -> int:
        return min(self.grace or max(rounds // 10, 1), rounds)

    def rungs(self, rounds: int) -> list[int]:
        """The numbers of rounds, below `rounds`, at which a setting may be stopped."""
        if self.name == "fifo":
            return []
        count = math.ceil(math.log(rounds / self.first(rounds), self.reduction) - 1e-9)
        return [math.ceil(self.first(rounds) * self.reduction**k - 1e-9) for k in range(count)]


@dataclass
class SweepConfig(Score):
    """The keys of a sweep file that are not keys of a config."""

    space: Annotated[dict[str, Any], Doc("the values to try, by config key: `{local.lr: {grid: [0.01, 0.1]}}`")] = (
        field(default_factory=dict)
    )
    seeds: Annotated[list[int] | None, Doc("seeds of every setting, judged by their mean; null: the config's seed")] = (
        None
    )
    scheduler: Annotated[Any, Kind("a name, or a group of keys"), Doc("`fifo` or `asha`; options beside it")] = "fifo"
    search: Annotated[Literal["random", "optuna"], Doc("optuna: a study for each point of the grids")] = "random"
    samples: Annotated[int, Ge(1), Doc("draws of the keys without a grid, at each point of the grids")] = 1
    concurrent: Annotated[int | None, Ge(1), Doc("settings at once; null: as many as fit")] = None
    retries: Annotated[
        int, Ge(0), Doc("further attempts at a setting that failed, each from its newest checkpoints")
    ] = 1

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.seeds is not None and (not self.seeds or len(set(self.seeds)) < len(self.seeds)):
            raise BadValue("seeds", got=self.seeds, need="a list of different seeds")


SWEEP_KEYS = tuple(keys_of(SweepConfig))
LATER = ("concurrent", "retries", "samples")  # keys that may change when a sweep continues, like all of `runtime`


@dataclass(frozen=True)
class Sweep:
    """A checked sweep.

    options: the keys of the sweep. base: the merged config, with unresolved interpolations, because `${seed}` differs
    between runs. rounds: the length of the runs.
    """

    name: str
    options: SweepConfig
    base: dict[str, Any]
    space: Space
    scheduler: SchedulerConfig
    rounds: int

    @property
    def score(self) -> Score:
        return self.options

    @property
    def content(self) -> dict[str, Any]:
        """The whole sweep as plain values: the content of sweep.yaml, from which it is resumed."""
        return {"name": self.name, **asdict(self.options), "base": self.base}

    @property
    def plain(self) -> dict[str, Any]:
        """The base config as plain values, with the first seed: the conditions `when` are tested on it."""
        return compose(self.base, [f"seed={self.seeds[0]}"])

    @property
    def seeds(self) -> list[int]:
        return list(self.options.seeds or [self.draws_from])

    @property
    def draws_from(self) -> int:
        """The seed of the random draws of values: the config's seed."""
        return int(self.base.get("seed", 0))

    def overrides(self, values: Values, seed: int) -> list[str]:
        """The values and the seed of a run as `key=value` overrides; a group comes before keys inside it."""
        items = {"seed": seed, **values}
        return [f"{key}={json.dumps(items[key])}" for key in sorted(items, key=lambda key: key.count("."))]

    def config(self, values: Values, seed: int, folder: Path, url: str | None = None) -> Config:
        """The config of the run of a setting with a seed, in the sweep's folder; url: to which this is copied."""
        where = str(folder.parent) if url is None else url.rpartition("/")[0]
        records = {"name": folder.name, "logging.dir": where, "logging.report": False}
        overrides = self.overrides(values, seed)
        return load_config(self.base, [*overrides, *(f"{key}={json.dumps(value)}" for key, value in records.items())])

    def points(self) -> list[Values]:
        """All grid points, each with `samples` random draws; with Optuna, examples of settings that it may propose."""
        return self.space.points(self.options.samples, self.draws_from, self.plain)

    def cells(self) -> list[Values]:
        """The points of the grids; search=optuna makes a study for each of them. Raises BadConfig as `Space.cells`."""
        return self.space.cells(self.plain)


def load_sweep(source: str | Path, overrides: Sequence[str] = ()) -> Sweep:
    """The checked sweep of a file, given by its path or its name (`digits_lr` for conf/sweep/digits_lr.yaml).

    overrides: `key=value` for keys of the sweep (samples=20, scheduler.grace=5, space.local.lr={grid: [1]}) and of the
    config (rounds=20). Raises BadConfig that lists all mistakes, also for a sweep with nothing to vary.
    """
    path, merged = find_sweep(source), dict[str, Any]()
    layers = file_layers(path)
    for layer in layers:
        merge_layer(merged, layer)
    name = layers[-1].get("name", path.stem)  # of the file itself, not of its bases
    sweep = make_sweep(apply_overrides({"name": name, "base": merged}, overrides))
    if not sweep.space.keys and len(sweep.seeds) == 1:
        raise BadConfig(
            f"{source} has no space and one seed, so there is nothing to sweep: use raylfl run {source}, or add values "
            "to try: 'space.local.lr={grid: [0.01, 0.1]}' or 'seeds=[0, 1, 2]'"
        )
    return sweep


def find_sweep(source: str | Path) -> Path:
    """The path of a sweep file, given by a path or a name under conf/sweep/. Raises BadConfig if there is no file."""
    for option in (Path("sweep") / source, source):
        try:
            return find_config(option)
        except BadConfig:
            continue
    names = sorted({path.stem for root in conf_roots() for path in (root / "sweep").glob("*.yaml")})
    raise BadConfig(f"no sweep {source}: not a file, nor a name under conf/sweep/; there are {', '.join(names)}")


def apply_overrides(content: Mapping[str, Any], overrides: Sequence[str]) -> dict[str, Any]:
    """The content of a sweep.yaml after overrides; keys of the sweep leave `base`, which may have those of a file."""
    own = [item for item in overrides if item.partition("=")[0].partition(".")[0] in SWEEP_KEYS]
    base, layers = dict(content["base"]), override_layers([item for item in overrides if item not in own])
    for layer in layers:
        merge_layer(base, layer)
    part = {**content, **{key: base.pop(key) for key in SWEEP_KEYS if key in base}}
    for item in sorted(own, key=lambda item: "." in item.partition("=")[0]):  # scheduler=asha before .grace=5
        _override(part, item)
    return {**part, "name": layers[-1].get("name", part["name"]), "base": base}


def _override(part: dict[str, Any], item: str) -> None:
    """Applies an override, such as `samples=4` or `space.local.lr={grid: [1]}`, to keys of the sweep, in place."""
    (key, *inner), value = override(item)
    if not inner:
        part[key] = value
        return
    group = part.get(key) or {}
    group = {"name": group} if isinstance(group, str) else group
    if not isinstance(group, Mapping):
        raise BadConfig(f"override {item!r}: {key} is not a group of keys")
    part[key] = {**group, ".".join(inner): value}


def make_sweep(content: Mapping[str, Any]) -> Sweep:
    """The checked sweep with this content of sweep.yaml (see `Sweep.content`). Raises BadConfig with all mistakes."""
    options_part = {key: value for key, value in content.items() if key in SWEEP_KEYS and value is not None}
    base = dict(content["base"])
    config_keys = (*keys_of(TopConfig), *GROUPS)
    problems = [
        unknown_key(str(k), (*config_keys, *SWEEP_KEYS, "base")).problems[0] for k in base if k not in config_keys
    ]
    plain = resolve_interpolations({"seed": 0, **base})
    top = {key: value for key, value in plain.items() if key in keys_of(TopConfig)}
    try:
        rounds = make_typed(TopConfig, top).rounds
        options = make_typed(SweepConfig, options_part)
        chosen = {"name": options.scheduler} if isinstance(options.scheduler, str) else options.scheduler
        if not isinstance(chosen, Mapping):
            raise BadValue("scheduler", got=chosen, need="fifo, asha, or {name: asha, options}")
        scheduler = make_typed(SchedulerConfig, chosen, "scheduler")
        space = Space.parse(options.space)
    except BadConfig as error:
        raise BadConfig([*problems, *error.problems]) from None
    if problems:
        raise BadConfig(problems)
    options.set_mode(stated := stated_directions(plain))
    # so that the reports of the runs have the same direction
    base["metrics"] = {**(base.get("metrics") or {}), **stated, options.metric: options.mode}
    sweep = Sweep(str(content["name"]), options, base, space, scheduler, rounds)
    check_together(sweep)
    return sweep


def read_content(path: Path) -> dict[str, Any]:
    """The content of a sweep.yaml. Raises BadConfig if the file is missing, damaged or of another format version."""
    if not path.is_file():
        raise BadConfig(f"{path.parent} is not a sweep's directory: it has no sweep.yaml")
    content = content_of(path)
    refuse_other(content.pop(KEY, FORMAT), path)
    if not isinstance(content.get("base"), dict) or "name" not in content:
        raise BadConfig(f"{path} is damaged: a sweep has a name, and its config under base (start the sweep again)")
    return content


def shown_choices(folder: Path) -> dict[str, Any]:
    """The choices with which a report (`content_of`) on a sweep's directory ranks settings as the sweep does.

    Empty for another directory, and if no run has measured the sweep's metric yet.
    """
    if not (folder / "sweep.yaml").is_file():
        return {}
    sweep = make_sweep(read_content(folder / "sweep.yaml"))
    runs = [readable(path) for path in folder.iterdir() if is_run(path)]
    measured = any(run is not None and run.measured(sweep.score.metric) for run in runs)
    if not measured:
        return {}
    score = sweep.score
    last = BEST if score.score == "best" else score.window(sweep.rounds)
    return {"metric": score.metric, "target": score.target, "last": last}


def check_together(sweep: Sweep) -> None:
    """Checks that the keys of a sweep are consistent with each other; raises BadConfig for the first conflict."""
    options = sweep.options
    drawn = any(domain.kind != "grid" for domains in sweep.space.keys.values() for domain in domains)
    if options.samples > 1 and not drawn:
        raise BadValue(
            "samples", got=options.samples, need="1", hint="the space holds only grids, which run every value"
        )
    if options.search == "optuna" and not drawn:
        raise BadValue(
            "search", got="optuna", need="random, or a space with keys to draw", hint="write choice for grid"
        )
    sweep.cells()  # raises BadConfig if the grids depend on drawn keys
    if (sweep.base.get("logging") or {}).get("id") is not None:
        raise BadConfig("logging.id: every run of a sweep has an id of its own")
    if "seed" in sweep.space.keys:
        raise BadConfig("space.seed: seeds are pooled, not compared: write seeds: [0, 1, 2]")
    if "rounds" in sweep.space.keys:
        raise BadConfig("space.rounds: runs of different length are not compared: write scheduler: asha")


def check_settings(sweep: Sweep, points: Sequence[Values]) -> Config:
    """Checks settings, an even choice of at most CHECKED, and returns the config of the first one.

    Raises BadConfig with all mistakes; one that only some of the settings have is shown with one of them.
    """
    chosen = points[:: max(1, -(-len(points) // CHECKED))]
    problems: dict[str, list[Values]] = {}
    first: Config | None = None
    for values in chosen:
        try:
            config = load_config(sweep.base, sweep.overrides(values, sweep.seeds[0]))
            first = first or config
        except BadConfig as error:
            for problem in error.problems:
                problems.setdefault(problem, []).append(values)
    if problems or first is None:
        everywhere = [text for text, failing in problems.items() if len(failing) == len(chosen)]
        raise BadConfig([t if t in everywhere else f"{t} [with {show(failing[0])}]" for t, failing in problems.items()])
    return first


def show(values: Values) -> str:
    """The values of a setting as text: `local.lr=0.1, algorithm.name=focus`."""
    return ", ".join(f"{key}={value if isinstance(value, str) else json.dumps(value)}" for key, value in values.items())


# -- JSON schema ----------------------------------------------------------------------------------------------------


def sweep_schema() -> Schema:
    """The JSON schema of a sweep file. It requires no key, because files are merged."""
    config = config_schema()
    scheduler = {"anyOf": [{"enum": ["fifo", "asha"]}, keys_schema(SchedulerConfig)]}
    keys = keys_schema(SweepConfig, space=_space(), scheduler=scheduler)
    return {**config, "title": "raylfl sweep", "properties": {**config["properties"], **keys["properties"]}}


def _space() -> Schema:
    values = {kind: {"type": "array", "minItems": 1} for kind in LISTS}
    ranges = {kind: {"type": "array", "items": {"type": "number"}, "minItems": 2, "maxItems": 2} for kind in RANGES}
    when = {"type": "object", "description": "config keys, and the values for which this alternative counts"}
    domain = {
        "type": "object",
        "properties": {**values, **ranges, "when": when},
        "oneOf": [{"required": [kind]} for kind in (*LISTS, *RANGES)],
        "additionalProperties": False,
    }
    alternatives = {"type": "array", "items": domain, "minItems": 1}
    description = "the values of each config key: {local.lr: {grid: [0.01, 0.1]}}"
    return {"type": "object", "description": description, "additionalProperties": {"anyOf": [domain, alternatives]}}
