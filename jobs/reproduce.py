"""A paper's figure or table as a Ray job, on the cluster that the job belongs to.

    ray job submit --working-dir . --runtime-env jobs/runtime_env.yaml -- \\
        python jobs/reproduce.py sfl/table3 --scale paper data.init_args.root=/shared/data

Takes the arguments of `raylfl reproduce`. A job that is submitted again continues: finished runs are not repeated.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))  # raylfl is part of the working directory
os.environ.setdefault("RAYLFL_RUNS", str(Path.home() / "raylfl-runs"))  # the working directory is deleted with the job

from raylfl.cli import main

if __name__ == "__main__":
    sys.exit(main(["reproduce", *sys.argv[1:]]))
