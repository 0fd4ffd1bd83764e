"""A check, before the first trial, that the runs of a sweep will measure its metric."""

from __future__ import annotations

import difflib
from dataclasses import fields
from typing import TYPE_CHECKING

from raylfl.core.costs import Costs
from raylfl.errors import BadConfig, BadValue
from raylfl.models import MODELS

if TYPE_CHECKING:
    from raylfl.parts import Experiment

EVALUATION = ("loss", "accuracy")  # metrics of shipped models; other models may log more
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
KNOWN = [f"{group}/{name}" for group, names in NAMES.items() for name in names]


def require_measured(metric: str, experiment: Experiment) -> None:
    """Checks that runs of the experiment measure the metric.

    Raises BadConfig that names the missing condition, such as a config key, and BadValue for an unknown metric. Metrics
    that only a user's own model or an algorithm can log (test/f1, algo/...) are accepted.
    """
    group, _, name = metric.partition("/")
    model = experiment.config.model.name
    foreign = model is None or bool(MODELS.get(model).origin)
    own = group in ("test", "val", "train", "participants", "random") and foreign
    if metric not in KNOWN and group != "algo" and not own:
        near = difflib.get_close_matches(metric, KNOWN, n=1, cutoff=0.5)
        hint = f"did you mean {near[0]}?" if near else f"such as {', '.join(KNOWN[:3])}"
        raise BadValue("metric", got=metric, need="the name of a metric in metrics.jsonl", hint=hint)
    config = experiment.config.eval
    distance = group == "global" and name.startswith("distance")
    needs: dict[str, tuple[object, str]] = {
        "test": (experiment.setup.test is not None and config.every, "a test set, and eval.every > 0"),
        "val": (experiment.setup.val is not None and config.every, "a validation set, and eval.every > 0"),
        "participants": (config.participants and config.every, "eval.participants=true, and eval.every > 0"),
        "random": (config.random_clients and config.every, "eval.random_clients > 0, and eval.every > 0"),
        "clients": (config.clients and config.every, "eval.clients=true, and eval.every > 0"),
        "nodes": (
            config.nodes and config.every and experiment.algorithm.topology.peers,
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
    if distance:
        needs["global"] = (experiment.optimum is not None, "data that know their optimum")
    met, need = needs.get(group, (True, ""))
    if not met:
        raise BadConfig(f"metric={metric} is never measured here: it needs {need}")
