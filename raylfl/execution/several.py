"""The Python interface to runs: `raylfl.run` on one config or a list, and `raylfl.compare`."""

from collections.abc import Sequence
from typing import Any, Unpack, overload

from raylfl.config.identity import identity
from raylfl.config.load import Config, Source, as_python, load_config
from raylfl.config.objects import ObjectLayer, Objects, object_layer
from raylfl.errors import BadConfig, SomeDiverged, require_lists
from raylfl.execution.planned import PlannedRun, prepare
from raylfl.python import api
from raylfl.python.api import Watch
from raylfl.python.control import Callback, interactive
from raylfl.python.result import Result, result_of
from raylfl.runtime.records.run_dir import DIVERGED


@overload
def run(
    source: Source,
    overrides: Sequence[str] = (),
    watch: Watch | None = None,
    *,
    progress: bool | None = None,
    callbacks: Sequence[Callback] = (),
    **objects: Unpack[Objects],
) -> Result: ...
@overload
def run(
    source: list[Source],
    overrides: Sequence[str] = (),
    watch: Watch | None = None,
    *,
    progress: bool | None = None,
    callbacks: Sequence[Callback] = (),
    jobs: int | None = 1,
    **objects: Unpack[Objects],
) -> list[Result]: ...
def run(
    source: Source | list[Source],
    overrides: Sequence[str] = (),
    watch: Watch | None = None,
    *,
    progress: bool | None = None,
    callbacks: Sequence[Callback] = (),
    jobs: int | None = 1,
    **objects: Unpack[Objects],
) -> Result | list[Result]:
    """Executes one run of a config (a path, a bare name, a dict or a DictConfig) with `key=value` overrides.

    watch: called with the progress after each round. progress: whether the progress is printed; None: if there is no
    `watch`, in a terminal and in a notebook. callbacks: hooks of the run, which may end it early. objects:
    components that replace the config's, such as `model=Net`, `data=Data()`, `algorithm=FedCM(mu=0.1)`; overrides also
    change the options of these objects.

    For a list of configs, the result is a list. A run that exists is not made again: without `logging.id` its folder is
    `<algorithm>-s<seed>-<digest>`, with a digest of its config and of raylfl's source. An interrupted run is resumed.
    Callbacks are called for new rounds only. jobs: the number of runs at the same time, each in a process; None: as
    many as there is room for. With `watch`, `callbacks`, or objects of this process that others cannot import, runs
    are made in turn; with such objects, they are always new ones.

    Raises BadConfig for mistakes, before anything is started, and NonFinite if a run has diverged; for a list, when the
    others are complete: the error has their `results`, and the `run_dirs` of all runs.
    """
    require_lists(callbacks=callbacks)
    if isinstance(source, list):
        configs = [load_config(each, overrides, object_layer(objects)) for each in source]
        return run_all(configs, watch, progress, callbacks, jobs)
    if jobs != 1:
        raise BadConfig(f"jobs={jobs}: it is for a list of configs; one run has runtime.workers")
    config = load_config(source, overrides, object_layer(objects), api.check_runtime)
    with api.watching(watch, progress) as shown:
        return api.begin(prepare(config), shown, callbacks)


def compare(
    source: Source,
    overrides: Sequence[str],
    algorithms: Sequence[Any],
    watch: Watch | None = None,
    *,
    seeds: Sequence[int] = (),
    progress: bool | None = None,
    callbacks: Sequence[Callback] = (),
    jobs: int | None = 1,
    **objects: Unpack[Objects],
) -> list[Result]:
    """Runs one config with several algorithms (names, classes or instances); existing runs are not made again.

    Returns the results of all algorithms for the first seed, then for the next. Runs of the same seed have the same
    partition, initial weights, links and batch order. They also have the same cohorts, unless an algorithm has its own
    sampling probabilities. If the config sets `logging.id`, the id of each run is `<id>-<algorithm>`, or with `seeds`
    `<id>-<algorithm>-s<seed>`.

    seeds: each algorithm is run with each of these seeds; empty: with the config's seed only. The other arguments have
    the same meaning as in `raylfl.run` for a list. Raises BadConfig for mistakes, or if another run has this id, and
    NonFinite, as `raylfl.run` for a list, if runs have diverged.
    """
    require_lists(overrides=overrides, algorithms=algorithms, seeds=seeds, callbacks=callbacks)
    seeds = as_python(list(seeds))
    if seeds and (given_seed := next((text for text in overrides if text.startswith("seed=")), None)):
        raise BadConfig(f"{given_seed} and seeds={seeds}: give one of them")
    worlds = [[*overrides, f"seed={seed}"] for seed in seeds] or [list(overrides)]
    variants = [
        ([*world, f"algorithm.name={algorithm}"], object_layer(objects))
        if isinstance(algorithm, str)
        else (world, object_layer({**objects, "algorithm": algorithm}))
        for world in worlds
        for algorithm in algorithms
    ]
    configs = [load_config(source, changes, layer) for changes, layer in variants]
    settings = [(identity(config.resolved, of="digest"), config.top.seed) for config in configs]
    for k, (setting, seed) in enumerate(settings):
        name = setting["algorithm"]["name"]
        if (setting, seed) in settings[:k]:
            raise BadConfig(f"algorithm {name} with seed {seed} is there twice: each setting can be compared only once")
        if (id_ := configs[k].logging.id) is not None:
            configs[k].logging.id = f"{id_}-{name}" + f"-s{seed}" * bool(seeds)
    return run_all(configs, watch, progress, callbacks, jobs)


def run_all(
    configs: Sequence[Config],
    watch: Watch | None,
    progress: bool | None,
    callbacks: Sequence[Callback],
    jobs: int | None,
) -> list[Result]:
    """Makes the missing runs of these configs; returns the results of all. The arguments are those of `run`.

    Before the first run, the missing ones are checked, of those that differ in their seeds only one. Raises
    SomeDiverged after the last run if runs have diverged.
    """
    if not configs:
        return []
    from raylfl.execution.executor import complete
    from raylfl.execution.store import plan
    from raylfl.report.labels import canonical

    runs = [plan(config) for config in configs]
    unique: dict[Any, PlannedRun] = {}  # folder -> run
    for run in runs:
        if unique.setdefault(run.path, run).identity != run.identity:
            raise BadConfig(f"logging.id={run.path.name} is the id of two runs: without an id, each has its own")
    missing = [config for config, run in zip(configs, runs, strict=True) if not run.complete]
    unchecked = {canonical(identity(config.resolved, of="group")): config for config in missing}
    for config in unchecked.values():
        api.check_runtime(vars(config))
        prepare(config)
    show = watch is None and (interactive() if progress is None else progress)
    shared = configs[0].logging.url is not None or jobs is not None
    complete(list(unique.values()), jobs, watch, callbacks, show=show, shared=shared)
    results = {path: read(run) for path, run in unique.items() if not run.diverged}
    if lost := [run for run in unique.values() if run.diverged]:
        reasons = "; ".join(f"{run.label}: {(run.path / DIVERGED).read_text().strip()}" for run in lost)
        others = ", the others are complete" if results else ""
        raise SomeDiverged(
            f"{len(lost)} of {len(unique)} runs diverged{others}: {reasons}",
            run_dirs=[run.path for run in runs],
            results=[results[run.path] for run in runs if run.path in results],
        )
    return [results[run.path] for run in runs]


def read(run: PlannedRun) -> Result:
    """The result of a complete run; its config has the options that the run inferred from its data."""
    from raylfl.runtime.records.mirror import local_view
    from raylfl.runtime.records.run_dir import RunDirectory

    path = run.path
    if run.url is not None and not (path / "final.pt").is_file():  # made on another machine
        path = local_view(run.url, complete=True)
    config = load_config(path / "config.yaml", (), ObjectLayer({}, run.objects))
    return result_of(config, RunDirectory(path))
