"""`python -m benchmarks.startup`: the savings of each setting of raylfl/startup.

Each number is the smallest of REPEATS processes; processes with and without a setting take turns.
"""

import json
import os
import subprocess
import sys
from typing import Any

from rich.console import Console

from benchmarks.tables import table_of
from raylfl.startup import lazy_imports, malloc

REPEATS = 3

LIGHTNING = """
import json, resource, sys, time
from raylfl.startup import lazy_imports
lazy_imports.install()
import torch
started, before = time.perf_counter(), len(sys.modules)
import lightning.pytorch
seconds, modules = time.perf_counter() - started, len(sys.modules) - before
peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1e3
print(json.dumps({"seconds": seconds, "modules": modules, "peak MB": peak}))
"""

STEPS = """
import json, resource, time
from raylfl.startup import malloc
malloc.keep()
import torch
from torch import nn
torch.set_num_threads(1)
net = nn.Sequential(nn.Conv2d(3, 16, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2), nn.Conv2d(16, 32, 3, padding=1),
                    nn.ReLU(), nn.MaxPool2d(2), nn.Flatten(), nn.Linear(2048, 500), nn.ReLU(), nn.Linear(500, 10))
x, y = torch.randn(128, 3, 32, 32), torch.randint(0, 10, (128,))
def step():
    torch.autograd.grad(nn.functional.cross_entropy(net(x), y), list(net.parameters()))
for _ in range(3):
    step()
faults, started = resource.getrusage(resource.RUSAGE_SELF).ru_minflt, time.perf_counter()
for _ in range(20):
    step()
seconds = (time.perf_counter() - started) / 20
faults = (resource.getrusage(resource.RUSAGE_SELF).ru_minflt - faults) / 20
print(json.dumps({"ms a step": 1e3 * seconds, "page faults a step": faults}))
"""

SETTINGS = (
    ("lazy imports", lazy_imports.SWITCH, LIGHTNING),
    ("kept memory", malloc.SWITCH, STEPS),
)


def measured(code: str, switch: str, value: str) -> dict[str, float]:
    """The numbers that a process running `code` prints, with this value of the environment variable."""
    isolated = [sys.executable, "-S", "-c", f"import site, sys; sys.path += {sys.path!r}\n{code}"]  # -S: no .pth files
    done = subprocess.run(isolated, capture_output=True, text=True, env={**os.environ, switch: value})
    if done.returncode:
        raise RuntimeError(done.stderr)
    return dict(json.loads(done.stdout.splitlines()[-1]))


def rows() -> list[dict[str, Any]]:
    """One row per setting and quantity: its value without the setting, with the setting, and the difference."""
    table = []
    for setting, switch, code in SETTINGS:
        pairs = [(measured(code, switch, "0"), measured(code, switch, "1")) for _ in range(REPEATS)]
        for measure in pairs[0][0]:
            without, having = (min(side[measure] for side in sides) for sides in zip(*pairs, strict=True))
            row = {"setting": setting, "measure": measure, "without": without, "with": having}
            table.append({**row, "saved": without - having, "off": f"{switch}=0"})
    return table


if __name__ == "__main__":
    Console(width=120).print(table_of(rows(), "raylfl/startup"))
