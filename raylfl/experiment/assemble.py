"""The parts of a run, built from its config as plain objects: data, partition, algorithm, participation, links."""

from __future__ import annotations

import inspect
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np

from raylfl.components.options import without_effect
from raylfl.config.components import check_arguments
from raylfl.config.groups.runtime import RuntimeConfig
from raylfl.config.groups.top import ModelConfig
from raylfl.config.load import Config, escape
from raylfl.core.mixing import DOUBLY
from raylfl.core.pattern import Ring, Star
from raylfl.core.population import ClientShards, Population
from raylfl.errors import BadConfig, BadValue, placed
from raylfl.experiment.data_source import LoadedData, class_of, load_data, makes
from raylfl.experiment.parts import Experiment, Optimum, WorkerSetup
from raylfl.heterogeneity.links.bernoulli import Perfect
from raylfl.heterogeneity.participation.availability import Full
from raylfl.heterogeneity.partition.base import Split
from raylfl.heterogeneity.world import RunContext

if TYPE_CHECKING:
    from raylfl.core.algorithm import Algorithm

DEFAULT_CLIENTS = 10  # N if neither the config nor the partition gives it


def known_optimum(data: Any, weights: np.ndarray, natural: bool) -> Optimum | None:
    """The optimum from `data.optimum(weights)`, or from `data.optimum()` if it takes no weights; None if undefined.

    weights: of the clients [N]. natural: whether the data define the clients; an optimum that depends on weights needs
    that.
    """
    optimum = getattr(data, "optimum", None)
    if optimum is None:
        return None
    takes_weights = len(inspect.signature(optimum).parameters) > 0
    if takes_weights and not natural:
        return None

    def of(*given: np.ndarray) -> np.ndarray:
        return np.asarray(optimum(*given), dtype=np.float64).reshape(-1)

    return Optimum(of(weights), of) if takes_weights else Optimum(of(), None)


def fitted_model(config: Config, data: Any) -> ModelConfig:
    """The config of the model; a shipped one gets missing arguments (in_shape, dim, ...) from the data, in place."""
    if config.model.name is None:
        return config.model
    from raylfl.models.base import fitted_args

    init_args = fitted_args(class_of(config, "model"), config.model.init_args, data)
    plain = {k: list(v) if isinstance(v, tuple) else v for k, v in init_args.items()}
    config.model.init_args, config.resolved["model"]["init_args"] = plain, escape(plain)
    return config.model


def check_without_data(config: Config) -> None:
    """Checks classes and arguments of model and data without creating the data. Raises BadConfig."""
    for group in ("model", "data"):
        component = getattr(config, group)
        complete = group == "data" or component.class_path is not None  # a shipped model gets shapes from the data
        cls = class_of(config, group)
        if makes(cls):
            check_arguments(cls, component.init_args, group, complete)
        elif component.init_args:
            raise BadValue(f"{group}.init_args", got=component.init_args, need=f"left out: {group} is made already")


def assemble(config: Config) -> Experiment:
    """The experiment of a config: all parts of the run. Raises BadConfig if the parts cannot work together."""
    check_without_data(config)
    local = config.local
    assert local.lr_by_theory is None, "`raylfl.theory.summary.resolve_rate` computes local.lr"
    own_step = config.algorithm.own_step
    if own_step:
        rule = replace(local, momentum=0.0, optimizer="sgd", optimizer_state="fresh")
    else:  # adamw applies weight decay itself
        rule = local if local.optimizer == "sgd" else replace(local, weight_decay=0.0)
    source = load_data(config)
    split = make_split(config, source)
    population = Population.of(np.array([len(c) for c in split.clients]), config.top.weights)
    merged = config.algorithm.pattern.merged
    nodes, partition = source.client_nodes, config.resolved["partition"]["name"]
    if nodes is not None and partition != "natural":
        raise BadConfig(
            f"partition.name={partition}, but must be natural: the data name the nodes of their own clients"
        )
    trained = Population.of(population.sizes.sum(keepdims=True)) if merged else population
    world = RunContext(config.top.seed, trained, config.top.rounds)
    participation, link = (Full(), Perfect()) if merged else (config.participation, config.link)
    for place, part in (
        ("local", local),
        ("participation", participation),
        ("link", link),
        ("topology", config.topology),
        ("system", config.system),
    ):
        with placed(place):
            part.check(world)
    warnings = [*source.warnings, *check_algorithm(config, world, merged), *check_topology(config, world)]
    setup = WorkerSetup(
        seed=config.top.seed,
        dtype=config.top.dtype,
        model=fitted_model(config, source.data),
        algorithm=config.algorithm,
        rule=rule,
        sampling=local.sampling,
        optimizer=local.optimizer,
        inner=rule.inner if own_step else local.inner,
        optimizer_state=rule.optimizer_state,
        buffers=local.buffers,
        population=population,
        shards=ClientShards.of(split.clients),
        train=source.train,
        test=source.test,
        eval_batch_size=config.eval.batch_size,
        runtime=config.runtime,
        batch_size=int(local.draw(0, np.arange(min(trained.count, 1000)), world)[1].max(initial=1)),
        accumulate=local.accumulate,
        val=source.val,
        drift=config.eval.drift,
        merged=merged,
        assigned=assigns_clients(
            config.runtime, source.train.by_index, nodes is not None, obstacle(config.algorithm, merged)
        ),
        nodes=nodes,
    )
    return Experiment(
        config=config,
        labels=source.samples.labels,
        split=split,
        optimum=known_optimum(source.data, population.weights, partition == "natural"),
        world=world,
        algorithm=config.algorithm,
        participation=participation,
        link=link,
        topology=config.topology,
        work=local,
        rule=rule,
        setup=setup,
        warnings=warnings,
        client_names=source.client_names if partition == "natural" else None,
    )


def make_split(config: Config, source: LoadedData) -> Split:
    """The partition of the training samples over clients. Raises BadConfig if it is impossible."""
    samples, partition = source.samples, config.partition
    with placed("partition"):
        count = config.top.num_clients or partition.fixed_clients(samples) or DEFAULT_CLIENTS
        split: Split = partition.split(samples, count, config.top.seed)
    return split


def check_algorithm(config: Config, world: RunContext, merged: bool) -> list[str]:
    """Warnings about violated assumptions of the algorithm and options without effect; BadConfig if it cannot run."""
    algorithm, name = config.algorithm, config.resolved["algorithm"]["name"]
    participation, link = config.resolved["participation"]["name"], config.resolved["link"]["name"]
    warnings = []
    if algorithm.assumes_full and (participation != "full" or link != "perfect"):
        warnings.append(f"{name} is defined for full participation over perfect links; here {participation}, {link}")
    if merged and (participation != "full" or link != "perfect"):
        warnings.append(f"{name} trains on all data at once: participation {participation}, link {link} do not apply")
    if algorithm.assumes_equal_steps:
        clients = np.arange(min(world.count, 1000))
        steps, _ = config.local.draw(0, clients, world)
        if len(np.unique(steps)) > 1:
            warnings.append(f"{name} is defined for equal local steps; here K_i is {steps.min()}..{steps.max()}")
    usual = {"optimizer": "sgd", "optimizer_state": "fresh"}
    given = {key: getattr(config.local, key) for key in usual}
    options = [f"local.{key}={value}" for key, value in given.items() if value != usual[key]]
    warnings += without_effect(config.local, "local")
    warnings += without_effect(config.local.lr_schedule, "local.lr_schedule")
    if algorithm.own_step:
        unused = ["local.momentum"] * bool(config.local.momentum) + options
        warnings += [f"{name} defines its own local step, so {option} is not used" for option in unused]
    elif options and (algorithm.weighs_by_work or algorithm.calibrate):
        warnings.append(
            f"{name} weighs by |a_i|_1, the work of SGD from fresh moments; with {' and '.join(options)} that is not "
            "the work of the local steps"
        )
    if algorithm.cut is not None and config.local.optimizer_state == "averaged":
        raise BadConfig(
            f"local.optimizer_state=averaged, but {name} sends one half of the model only: use kept or fresh"
        )
    return warnings


def check_topology(config: Config, world: RunContext) -> list[str]:
    """Warnings if the algorithm does not use the graph, or does not minimise F on it; BadConfig if it cannot run."""
    algorithm, graph = config.algorithm, config.topology
    name, chosen = config.resolved["algorithm"]["name"], config.resolved["topology"]["name"]
    if not algorithm.pattern.peers:
        if graph.links is not None:
            raise BadConfig(
                f"topology.links={graph.links}, but must be null: {name} sends nothing along the edges of a graph "
                "(topology.latency and topology.bandwidth describe a client's link)"
            )
        own = {Star: "star", Ring: "ring"}.get(type(algorithm.pattern), "auto")
        if chosen in ("auto", own):
            return []
        return [f"{name} does not run on a graph: topology {chosen} does not apply; its own is {own}"]
    for key, usual in (("buffers", "average"), ("optimizer_state", "fresh")):
        if (given := getattr(config.local, key)) != usual and not (key == "optimizer_state" and algorithm.own_step):
            raise BadConfig(
                f"local.{key}={given}, but must be {usual}: {name} has no server, and its nodes keep its own rows only"
            )
    allowed = {"doubly": DOUBLY, "column": (*DOUBLY, "column_stochastic"), "pair": (*DOUBLY, "pair")}[algorithm.family]
    allowed = ("auto", *allowed, *(("row_stochastic",) if algorithm.biased_by_rows else ()))
    if graph.weights not in allowed:
        raise BadConfig(f"topology.weights={graph.weights}, but must be one of {', '.join(allowed)} with {name}")
    doubly = graph.weights in DOUBLY or (graph.weights == "auto" and algorithm.family == "doubly")
    if doubly and graph.directed and not graph.balanced(world):
        raise BadConfig(
            f"topology.name={chosen}, but must be undirected, or have as many edges into each node as out of it: "
            f"{name} needs doubly stochastic weights (sgp, push_diging and push_pull do not)"
        )
    if graph.weights == "row_stochastic":
        return [f"with row-stochastic weights {name} minimises another weighted sum of the f_i than F"]
    return []


def obstacle(algorithm: Algorithm, merged: bool) -> str | None:
    """The reason why clients cannot be pinned; None if they can. merged: whether one client trains on all data."""
    if algorithm.pattern.peers:
        return "the nodes of a graph work in blocks, and each block has a worker of its own"
    return "a single client trains on all data" if merged else None


def assigns_clients(runtime: RuntimeConfig, by_index: bool, apart: bool, impossible: str | None) -> bool:
    """Whether each client is pinned to one worker, whatever their number. Raises BadConfig if this is impossible.

    `placement: auto` pins clients whose samples are read by index, which are trained one by one, pinned or not: it does
    not change the bits of a run. apart: whether the samples are on certain nodes only. impossible: the `obstacle`.
    """
    chosen = runtime.placement
    if chosen == "pinned":
        if impossible:
            raise BadConfig(f"runtime.placement=pinned, but {impossible}: use auto or shared")
        if runtime.vectorize == "always":
            raise BadConfig("runtime.placement=pinned runs clients one by one: runtime.vectorize must be auto or never")
        return True
    if apart and runtime.backend == "ray" and (chosen == "shared" or impossible):
        what = impossible or "runtime.placement=shared"
        raise BadConfig(f"{what}, but the clients' data are on certain nodes only: they must be pinned")
    return chosen == "auto" and by_index and not impossible and runtime.vectorize != "always"
