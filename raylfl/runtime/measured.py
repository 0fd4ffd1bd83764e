"""A check, before a run or a sweep starts, that its runs will measure a metric that its config names."""

from __future__ import annotations

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
EVERY, GLOBAL, AVERAGE, DRIFT = "eval.every > 0", "eval.global=true", "eval.average", "eval.drift=true"
PEERS, UPDATES = "a method without a server", "a method whose clients send updates U_i"
EXPECTED, OPTIMUM = "a method with expected coefficients in closed form", "data with a known optimum"
ANY = "data whose optimum is known for any weights"
WORK, NO_DECAY = "local steps of SGD without clip_norm and kept moments", "local.weight_decay=0"
NEEDS: dict[str, tuple[str, ...]] = {  # group, or metric -> the conditions under which it is measured
    "test": ("a test set", EVERY),
    "val": ("a validation set", EVERY),
    "participants": ("eval.participants=true", EVERY),
    "random": ("eval.random_clients > 0", EVERY),
    "clients": ("eval.clients=true", EVERY, "a model that logs accuracy"),
    "per_client": ("eval.clients=true", "rows with eval.per_client", EVERY),  # metrics on each client's data
    "nodes": (PEERS, "a test set", "eval.nodes=true", EVERY),
    "global": (GLOBAL, EVERY),
    "global/diversity": ("eval.diversity=true", EVERY),
    "global/surrogate_diversity": ("eval.diversity=true", EVERY),
    "global/surrogate_chi2": ("eval.diversity=true", EVERY),
    "global/distance": (OPTIMUM,),
    "global/distance_abs": (OPTIMUM,),
    "global/worst_distance": (PEERS, OPTIMUM),
    "average": (AVERAGE, OPTIMUM),
    "average/loss": (AVERAGE, GLOBAL, EVERY),
    "average/gap": (AVERAGE, GLOBAL, EVERY, OPTIMUM),
    "train/local_drift": (DRIFT,),
    "update": (UPDATES,),
    "update/drift": ("eval.drift=true or eval.diversity=true", UPDATES),
    "update/consensus": (DRIFT, UPDATES),
    "update/step": (DRIFT,),
    "inconsistency": ("eval.inconsistency=true", EXPECTED, WORK),
    "inconsistency/predicted_distance": ("eval.inconsistency=true", EXPECTED, WORK, ANY, NO_DECAY),
}
METRICS = [f"{group}/{name}" for group, names in NAMES.items() for name in names]


def names_of(experiment: Experiment) -> dict[str, tuple[str, ...] | None]:
    """The metrics that runs of the experiment can measure: group -> names, or None if the names are not known."""
    logged = experiment.logged
    evaluated = {"test": "test", "val": "val", "participants": "clients", "random": "clients"}
    of_model = {group: tuple(logged[kind]) if kind in logged else None for group, kind in evaluated.items()}
    nodes = tuple(f"{name}_{what}" for name in logged.get("test", EVALUATION) for what in ("mean", "min", "max"))
    return {**NAMES, **of_model, "train": (*NAMES["train"], *logged["train"]), "nodes": nodes, "algo": None}


def require_measured(metric: str, experiment: Experiment, key: str = "metric") -> None:
    """Checks that runs of the experiment, whose `logged` is known, measure the metric that the config key `key` names.

    Raises BadConfig that names the missing condition, such as a config key, and BadValue for an unknown metric. Every
    metric `algo/...` is accepted, because an algorithm may log it in later rounds only.
    """
    group, _, name = metric.partition("/")
    names = names_of(experiment)
    measured = names.get(group, ())
    if measured is not None and name not in measured:
        known = [f"{of}/{each}" for of in names for each in names[of] or NAMES.get(of, ())]
        of_group = [each for each in known if each.startswith(f"{group}/")]
        need = f"one of {', '.join(of_group)}" if of_group else "the name of a metric in metrics.jsonl"
        raise BadValue(
            key, got=metric, need=need, hint=did_you_mean(metric, known, f"such as {', '.join(METRICS[:3])}")
        )
    conditions = _conditions(experiment)
    if missing := [need for need in _needs(metric) if not conditions[need]]:
        raise BadConfig(f"{key}={metric} is never measured here: it needs {' and '.join(missing)}")


def measurements_without_effect(experiment: Experiment) -> list[str]:
    """A line for each option of `eval` that is set and switches on no metric of runs of the experiment."""
    conditions, lines = _conditions(experiment), []
    for option in fields(experiment.config.eval):
        key, value = f"eval.{option.name.rstrip('_')}", getattr(experiment.config.eval, option.name)
        needs = [each for each in map(_needs, [*METRICS, "per_client"]) if any(need.startswith(key) for need in each)]
        missing = [[need for need in each if not conditions[need]] for each in needs]
        if value and value != option.default and needs and all(missing):
            least = min(map(len, missing))
            ways = dict.fromkeys(" and ".join(each) for each in missing if len(each) == least)
            lines.append(f"{key}={str(value).lower()} has no effect: it needs {' or '.join(ways)}")
    return lines


def _conditions(experiment: Experiment) -> dict[str, object]:
    """Each condition of NEEDS -> whether it is met."""
    config, optimum, algorithm = experiment.config.eval, experiment.optimum, experiment.algorithm
    return {
        **{f"eval.{option.name.rstrip('_')}=true": getattr(config, option.name) for option in fields(config)},
        EVERY: config.every,
        AVERAGE: config.average is not None,
        PEERS: algorithm.pattern.peers,
        UPDATES: algorithm.uploads_update,
        EXPECTED: overrides(algorithm, "expected_coefficients"),
        WORK: experiment.work_is_known,
        NO_DECAY: experiment.rule.weight_decay == 0,
        OPTIMUM: optimum is not None,
        ANY: optimum is not None and optimum.of is not None,
        "a test set": experiment.setup.test is not None,
        "a validation set": experiment.setup.val is not None,
        "a model that logs accuracy": "accuracy" in experiment.logged.get("clients", EVALUATION),
        "rows with eval.per_client": config.per_client,
        "eval.random_clients > 0": config.random_clients,
        "eval.drift=true or eval.diversity=true": config.drift or config.diversity,
    }


def _needs(metric: str) -> tuple[str, ...]:
    """The conditions under which a metric is measured; none for one that every run measures."""
    return NEEDS.get(metric, NEEDS.get(metric.partition("/")[0], ()))
