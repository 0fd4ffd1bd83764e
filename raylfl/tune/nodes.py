"""A check of the cluster's nodes before the first trial of a sweep: each must be able to read the data.

Trials run on any node. Without this check, a data folder that some nodes lack would fail one trial after the other.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from typing import Any

from raylfl.config.load import load_config
from raylfl.errors import BadConfig
from raylfl.execution.resources import Bundle
from raylfl.runtime.ray.resources import node_text
from raylfl.startup import process
from raylfl.tune.space import Values
from raylfl.tune.spec import Sweep, make_sweep


def check_nodes(sweep: Sweep, trial: Sequence[Bundle]) -> None:
    """Builds the experiment of the first setting on the other nodes of the cluster that have room for a trial's worker.

    trial: the resource bundles of one trial. Raises BadConfig with the reason for each node on which this fails.
    """
    import ray
    from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

    this_node, values = ray.get_runtime_context().get_node_id(), sweep.points()[0]
    remote = ray.remote(num_cpus=0, max_retries=0)(build_fault)
    answers = {}
    for node in ray.nodes():
        has_room = all(node["Resources"].get(key, 0.0) >= amount for key, amount in trial[-1].items())
        if node["Alive"] and node["NodeID"] != this_node and has_room:
            on_node = remote.options(scheduling_strategy=NodeAffinitySchedulingStrategy(node["NodeID"], soft=False))
            answers[on_node.remote(sweep.content, values, os.getcwd())] = node_text(node)
    problems = []
    for answer, name in answers.items():
        try:
            problem = ray.get(answer)
        except ray.exceptions.RayError:  # the node was lost meanwhile: no trial is placed there
            continue
        if problem is not None:
            problems.append(
                f"a trial on {name} could not start: {problem}\n"
                "every node of a sweep needs the data and modules at the same path, or in a folder that all nodes share"
            )
    if problems:
        raise BadConfig(problems)


def build_fault(content: Mapping[str, Any], values: Values, folder: str) -> str | None:
    """The reason why the experiment of a setting cannot be built on this node; None if it can.

    content: the content of sweep.yaml. values: the values of the setting. folder: the working directory of the sweep.
    """
    process.set_up()
    process.work_in(folder)
    from raylfl.experiment.assemble import assemble
    from raylfl.theory.rate import resolve_rate

    try:
        sweep = make_sweep(content)
        config = load_config(sweep.base, sweep.overrides(values, sweep.seeds(0)[0], sweep.stages[0].rounds))
        resolve_rate(config)
        assemble(config)
    except Exception as error:
        text = str(error) if isinstance(error, BadConfig) else f"{type(error).__name__}: {error}"
        return text.strip().partition("\n")[0]
    return None
