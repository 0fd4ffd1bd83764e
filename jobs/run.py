"""One run as a Ray job, on the cluster that the job belongs to.

    ray job submit --working-dir . --runtime-env jobs/runtime_env.yaml -- python jobs/run.py digits rounds=50
    ray job submit ...             -- python jobs/run.py digits logging.id=first    # submitted again: resumes the run
    ray job submit ...             -- python jobs/run.py --resume RUN_DIR_OR_URL rounds=100

Takes the arguments of `raylfl run`. If a run with this `logging.id` exists, it is resumed, so that the same command can
be submitted until the run is done. `ray job stop` ends a run after its current round, with a checkpoint. Exit codes as
for raylfl: 0 done, 2 bad config, 1 any other error.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))  # raylfl is part of the working directory
os.environ.setdefault("RAYLFL_RUNS", str(Path.home() / "raylfl-runs"))  # the working directory is deleted with the job

from raylfl.cli import main


def command(arguments: list[str]) -> list[str]:
    """`run ...`, or `resume ...` if `--resume` is given or a run with this `logging.id` exists."""
    if arguments[:1] == ["--resume"]:
        return ["resume", *arguments[1:]]
    if any(item.startswith("logging.id=") for item in arguments):
        from raylfl.config.load import compose, load_config

        config = load_config(arguments[0], arguments[1:])
        from raylfl.runtime.records.run_dir import find_existing

        if config.logging.id is not None and (place := find_existing(config.logging, config.top.name)) is not None:
            from raylfl.runtime.records.provenance import class_paths
            from raylfl.runtime.records.views import local_view

            saved = set(class_paths(compose(local_view(place) / "config.yaml")))
            trusted = saved and saved <= set(class_paths(config.resolved))  # the job's own config names them
            return ["resume", place, *arguments[1:], *(["--trust"] if trusted else [])]
    return ["run", *arguments]


if __name__ == "__main__":
    from raylfl.errors import RaylflError

    try:
        chosen = command(sys.argv[1:])
    except (RaylflError, ImportError):
        chosen = ["run", *sys.argv[1:]]  # `raylfl run` reports the mistake
    sys.exit(main(chosen))
