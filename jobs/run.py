"""One run as a Ray job, on the cluster that the job belongs to.

    ray job submit --working-dir . --runtime-env jobs/runtime_env.yaml -- python jobs/run.py digits rounds=50
    ray job submit ...             -- python jobs/run.py digits logging.id=first    # again after a stop: goes on
    ray job submit ...             -- python jobs/run.py --resume RUN_DIR rounds=100

Takes what `raylfl run` takes. A `logging.id` whose run exists is gone on with, so that one command can be
submitted until it is done. `ray job stop` ends the run after its round, with a checkpoint. Exit codes are those
of raylfl: 0 done, 2 bad config, 1 anything else.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))  # where raylfl came along with the working directory
os.environ.setdefault("RAYLFL_RUNS", str(Path.home() / "raylfl-runs"))  # the working directory goes with the job

from raylfl.cli import main


def command(arguments: list[str]) -> list[str]:
    """`run ...`, or `resume ...` where that is asked for or the run of this `logging.id` is there already."""
    if arguments[:1] == ["--resume"]:
        return ["resume", *arguments[1:]]
    if any(item.startswith("logging.id=") for item in arguments):
        from raylfl.config.load import load_config

        config = load_config(arguments[0], arguments[1:])
        folder = Path(config.logging.dir).expanduser() / config.top.name / str(config.logging.id)
        if (folder / "config.yaml").is_file():
            return ["resume", str(folder), *arguments[1:]]
    return ["run", *arguments]


if __name__ == "__main__":
    from raylfl.errors import BadConfig

    try:
        chosen = command(sys.argv[1:])
    except (BadConfig, ImportError):
        chosen = ["run", *sys.argv[1:]]  # which says what is wrong with it
    sys.exit(main(chosen))
