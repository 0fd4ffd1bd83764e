"""Several algorithms on one config, `raylfl.compare`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Unpack

from raylfl.config.load import Config, Source, load_configs
from raylfl.config.objects import ObjectLayer, Objects, object_layer
from raylfl.errors import BadConfig
from raylfl.execution.several import run_all
from raylfl.python.api import Watch
from raylfl.python.control import Callback
from raylfl.python.result import Result


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
    the same meaning as in `raylfl.run` for a list. Raises BadConfig for mistakes, or if another run has this id.
    """
    if seeds and (given_seed := next((text for text in overrides if text.startswith("seed=")), None)):
        raise BadConfig(f"{given_seed} and seeds={list(seeds)}: give one of them")
    worlds = [[*overrides, f"seed={seed}"] for seed in seeds] or [list(overrides)]
    variants = [_variant(world, algorithm, objects) for world in worlds for algorithm in algorithms]
    configs = load_configs(source, variants)
    _name_runs(configs, bool(seeds))
    return run_all(configs, watch, progress, callbacks, jobs)


def _variant(overrides: Sequence[str], algorithm: Any, objects: Objects) -> tuple[list[str], ObjectLayer]:
    """The overrides and the converted objects of the run with this algorithm (a name, a class or an instance)."""
    if isinstance(algorithm, str):
        return [*overrides, f"algorithm.name={algorithm}"], object_layer(objects)
    return list(overrides), object_layer({**objects, "algorithm": algorithm})


def _name_runs(configs: Sequence[Config], seeds: bool) -> None:
    """Appends the algorithm's name to the `logging.id` of each config, in place, if the id is set.

    seeds: whether the seed is appended as well. Raises BadConfig if two configs have the same algorithm and seed.
    """
    runs = [(config.resolved["algorithm"]["name"], config.top.seed) for config in configs]
    for k, (name, seed) in enumerate(runs):
        if (name, seed) in runs[:k]:
            raise BadConfig(f"algorithm {name} with seed {seed} is there twice: each can be compared only once")
    for config, (name, seed) in zip(configs, runs, strict=True):
        if config.logging.id is not None:
            config.logging.id = f"{config.logging.id}-{name}" + f"-s{seed}" * seeds
