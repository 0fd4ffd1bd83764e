"""A sweep as a Ray job, on the cluster that the job belongs to.

    ray job submit --working-dir . --runtime-env jobs/runtime_env.yaml -- python jobs/sweep.py digits_lr samples=4
    ray job submit ...             -- python jobs/sweep.py --resume SWEEP_DIR_OR_URL

Takes the arguments of `raylfl sweep`. `ray job stop` ends the sweep; a resumed sweep continues its unfinished trials
from their newest checkpoints. On several nodes RAYLFL_RUNS must be a folder that all nodes share, or a URL.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))  # raylfl is part of the working directory
os.environ.setdefault("RAYLFL_RUNS", str(Path.home() / "raylfl-runs"))  # the working directory is deleted with the job

from raylfl.cli import main

if __name__ == "__main__":
    sys.exit(main(["sweep", *sys.argv[1:]]))
