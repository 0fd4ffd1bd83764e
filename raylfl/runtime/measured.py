"""A check, before the first trial, that the runs of a sweep will measure its metric."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import fields
from typing import TYPE_CHECKING

from raylfl.core.costs import Costs
from raylfl.errors import BadConfig, BadValue, did_you_mean

if TYPE_CHECKING:
    from raylfl.experiment.parts import Experiment

EVALUATION = ("loss", "accuracy")  # metrics of shipped models; other models may log others
NAMES: dict[str, tuple[str, ...]] = {  # docs/heterogeneity.md, "What is measured"
    "train": ("loss", "local_drift"),
    "test": EVALUATION,
    "participants": EVALUATION,
    "random": EVALUATION,
    "clients": ("accuracy_mean", "accuracy_std", "accuracy_p10"),
    "nodes": tuple(f"{name}_{what}" for name in EVALUATION for what in ("mean", "min", "max")),
    "global": ("loss", "grad_norm", "distance", "distance_abs", "diversity", "surrogate_diversity", "surrogate_chi2"),
    "average": ("distance", "distance_abs", "loss", "gap"),
    "update": ("norm", "diversity", "drift", "consensus", "step"),
    "inconsistency": ("chi2", "predicted_distance"),
    "cohort": ("sampled", "received"),
    "cost": tuple(field.name for field in fields(Costs)),
    "time": ("round", "virtual", "computation"),
    "traffic": ("sent_bytes", "received_bytes", "between_nodes_bytes"),
}
METRICS = [f"{group}/{name}" for group, names in NAMES.items() for name in names]


def names_of(experiment: Experiment) -> dict[str, tuple[str, ...] | None]:
    """The metrics that runs of the experiment can measure: group -> names, or None if the names are not known.

    The names that the user's model logs are those in `Experiment.logged`: the check before a run records them while it
    tries a training step and the evaluations.
    """
    logged = experiment.logged
    evaluated = {"test": "test", "val": "val", "participants": "clients", "random": "clients"}
    of_model = {group: tuple(logged[kind]) if kind in logged else None for group, kind in evaluated.items()}
    nodes = tuple(f"{name}_{what}" for name in logged.get("test", EVALUATION) for what in ("mean", "min", "max"))
    return {**NAMES, **of_model, "train": (*NAMES["train"], *logged["train"]), "nodes": nodes, "algo": None}


def require_measured(metric: str, experiment: Experiment) -> None:
    """Checks that runs of the experiment measure the metric.

    experiment: already checked, so that `Experiment.logged` is known. Raises BadConfig that names the missing
    condition, such as a config key, and BadValue for an unknown metric. Every metric `algo/...` is accepted, because an
    algorithm may log it in later rounds only.
    """
    group, _, name = metric.partition("/")
    names = names_of(experiment)
    measured = names.get(group, ())
    if measured is not None and name not in measured:
        raise unknown_metric(metric, [f"{key}/{each}" for key in names for each in names[key] or NAMES.get(key, ())])
    config = experiment.config.eval
    needs: dict[str, tuple[object, str]] = {
        "test": (experiment.setup.test is not None and config.every, "a test set, and eval.every > 0"),
        "val": (experiment.setup.val is not None and config.every, "a validation set, and eval.every > 0"),
        "participants": (config.participants and config.every, "eval.participants=true, and eval.every > 0"),
        "random": (config.random_clients and config.every, "eval.random_clients > 0, and eval.every > 0"),
        "clients": (
            config.clients and config.every and "accuracy" in experiment.logged.get("clients", EVALUATION),
            "eval.clients=true, eval.every > 0, and a model that logs accuracy",
        ),
        "nodes": (
            config.nodes and config.every and experiment.algorithm.pattern.peers,
            "a method without a server, eval.nodes=true, and eval.every > 0",
        ),
        "global": (config.global_ and config.every, "eval.global=true, and eval.every > 0"),
        "average": (config.average and config.every, "eval.average, and eval.every > 0"),
        "inconsistency": (config.inconsistency, "eval.inconsistency=true"),
    }
    if metric in ("global/diversity", "global/surrogate_diversity", "global/surrogate_chi2"):
        needs[group] = (config.diversity and config.every, "eval.diversity=true, and eval.every > 0")
    if metric in ("train/local_drift", "update/drift", "update/consensus", "update/step"):
        needs[group] = (config.drift, "eval.drift=true")
    if group == "global" and name.startswith("distance"):
        needs["global"] = (experiment.optimum is not None, "data with a known optimum")
    met, need = needs.get(group, (True, ""))
    if not met:
        raise BadConfig(f"metric={metric} is never measured here: it needs {need}")


def unknown_metric(metric: str, names: Sequence[str]) -> BadValue:
    """The error for a metric that is none of `names`; its message has the names of its group, and the nearest name."""
    group_names = [name for name in names if name.startswith(f"{metric.partition('/')[0]}/")]
    need = f"one of {', '.join(group_names)}" if group_names else "the name of a metric in metrics.jsonl"
    return BadValue(
        "metric", got=metric, need=need, hint=did_you_mean(metric, names, f"such as {', '.join(METRICS[:3])}")
    )
