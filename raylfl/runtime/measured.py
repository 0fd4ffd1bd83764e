"""A check, before a run or a sweep starts, that its runs will measure a metric that its config names."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import fields
from typing import TYPE_CHECKING

from raylfl.core.algorithm import overrides
from raylfl.core.costs import Costs
from raylfl.errors import BadConfig, BadValue, did_you_mean

if TYPE_CHECKING:
    from raylfl.experiment.parts import Experiment

EVALUATION = ("loss", "accuracy")  # metrics of shipped models; other models may log others
NAMES: dict[str, tuple[str, ...]] = {  # docs/metrics.md
    "train": ("loss", "local_drift"),
    "test": EVALUATION,
    "participants": EVALUATION,
    "random": EVALUATION,
    "clients": ("accuracy_mean", "accuracy_std", "accuracy_p10"),
    "nodes": tuple(f"{name}_{what}" for name in EVALUATION for what in ("mean", "min", "max")),
    "global": (
        *("loss", "grad_norm", "distance", "distance_abs", "worst_distance"),
        *("diversity", "surrogate_diversity", "surrogate_chi2"),
    ),
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


def require_measured(metric: str, experiment: Experiment, key: str = "metric") -> None:
    """Checks that runs of the experiment measure the metric.

    experiment: its `Experiment.logged` is known. key: the config key that names the metric. Raises BadConfig that names
    the missing condition, such as a config key, and BadValue for an unknown metric. Every metric `algo/...` is
    accepted, because an algorithm may log it in later rounds only.
    """
    group, _, name = metric.partition("/")
    names = names_of(experiment)
    measured = names.get(group, ())
    if measured is not None and name not in measured:
        raise unknown_metric(key, metric, [f"{of}/{each}" for of in names for each in names[of] or NAMES.get(of, ())])
    config, optimum, algorithm = experiment.config.eval, experiment.optimum, experiment.algorithm
    due, updates, average = config.every, algorithm.uploads_update, config.average is not None
    of_clients = "accuracy" in experiment.logged.get("clients", EVALUATION)
    of_nodes = config.nodes and algorithm.pattern.peers and experiment.setup.test is not None
    diversity = (config.diversity and due, "eval.diversity=true, and eval.every > 0")
    chi2 = config.inconsistency and overrides(algorithm, "expected_coefficients")
    distance = (optimum is not None, "data with a known optimum")
    needs: dict[str, tuple[object, str]] = {  # group, or metric -> whether it is measured, and what it needs
        "test": (experiment.setup.test is not None and due, "a test set, and eval.every > 0"),
        "val": (experiment.setup.val is not None and due, "a validation set, and eval.every > 0"),
        "participants": (config.participants and due, "eval.participants=true, and eval.every > 0"),
        "random": (config.random_clients and due, "eval.random_clients > 0, and eval.every > 0"),
        "clients": (
            config.clients and due and of_clients,
            "eval.clients=true, eval.every > 0, and a model that logs accuracy",
        ),
        "nodes": (of_nodes and due, "a method without a server, a test set, eval.nodes=true, and eval.every > 0"),
        "global": (config.global_ and due, "eval.global=true, and eval.every > 0"),
        "global/diversity": diversity,
        "global/surrogate_diversity": diversity,
        "global/surrogate_chi2": diversity,
        "global/distance": distance,
        "global/distance_abs": distance,
        "global/worst_distance": (
            optimum is not None and algorithm.pattern.peers,
            "a method without a server, and data with a known optimum",
        ),
        "average": (average and optimum is not None, "eval.average, and data with a known optimum"),
        "average/loss": (average and config.global_ and due, "eval.average, eval.global=true, and eval.every > 0"),
        "average/gap": (
            average and config.global_ and due and optimum is not None,
            "eval.average, eval.global=true, eval.every > 0, and data with a known optimum",
        ),
        "train/local_drift": (config.drift, "eval.drift=true"),
        "update": (updates, "a method whose clients send updates U_i"),
        "update/drift": (
            updates and (config.drift or config.diversity),
            "eval.drift=true or eval.diversity=true, and a method whose clients send updates U_i",
        ),
        "update/consensus": (
            updates and config.drift,
            "eval.drift=true, and a method whose clients send updates U_i",
        ),
        "update/step": (config.drift, "eval.drift=true"),
        "inconsistency": (chi2, "eval.inconsistency=true, and a method with expected coefficients in closed form"),
        "inconsistency/predicted_distance": (
            chi2 and optimum is not None and optimum.of is not None,
            "eval.inconsistency=true, a method with expected coefficients in closed form, and data whose optimum is "
            "known for any weights",
        ),
    }
    met, need = needs.get(metric) or needs.get(group, (True, ""))
    if not met:
        raise BadConfig(f"{key}={metric} is never measured here: it needs {need}")


def unknown_metric(key: str, metric: str, names: Sequence[str]) -> BadValue:
    """The error for a metric that is none of `names`; its message has the names of its group, and the nearest name."""
    group_names = [name for name in names if name.startswith(f"{metric.partition('/')[0]}/")]
    need = f"one of {', '.join(group_names)}" if group_names else "the name of a metric in metrics.jsonl"
    return BadValue(key, got=metric, need=need, hint=did_you_mean(metric, names, f"such as {', '.join(METRICS[:3])}"))
