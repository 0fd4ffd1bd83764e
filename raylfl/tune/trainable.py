"""A trainable function for a user's own `ray.tune.Tuner`, without raylfl's sweeps: one call is one run."""

import json
from collections.abc import Callable, Sequence
from typing import Any, Unpack

from raylfl.config.layers import merge_layer
from raylfl.config.load import Source, compose, load_config
from raylfl.config.objects import Objects, object_layer
from raylfl.execution.several import run
from raylfl.python.control import Progress
from raylfl.runtime.records.lines import numbers_of


def trainable(
    source: Source, overrides: Sequence[str] = (), **objects: Unpack[Objects]
) -> Callable[[dict[str, Any]], None]:
    """Returns a trainable function: `tune.Tuner(raylfl.trainable("digits"), param_space={"local.lr": ...})`.

    The keys of the search space are dotted config keys. After each round the function reports the numeric metrics and
    `run_dir`. A trial is one process (`runtime.backend=local`) with a run directory in `logging.dir`. source, overrides
    and objects: as in `raylfl.run`. Raises BadConfig at once for mistakes in the config.
    """
    base = compose(source, overrides, object_layer(objects))
    checked = load_config(source, overrides, object_layer(objects))
    folder = checked.logging.url or str(checked.logging.folder)
    merge_layer(base, {"logging": {"dir": folder, "report": False}, "runtime": {"backend": "local"}})

    def trial(values: dict[str, Any]) -> None:
        from ray import tune

        name = tune.get_context().get_trial_id()
        settings = [f"{key}={json.dumps(value)}" for key, value in values.items()]
        run(base, [f"logging.id={name}", *settings], report, **objects)

    def report(progress: Progress) -> None:
        from ray import tune

        tune.report({**numbers_of(progress.metrics), "run_dir": str(progress.run_dir)})

    return trial
