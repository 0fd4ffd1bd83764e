"""`python -m benchmarks.kernels [FILE]`: writes the page docs/kernels.md, a round's time in kernels and elsewhere.

W1 to W5 with a user's modules are run in one process and thread, one client at a time, with replayed steps. FILE: the
page to write instead.
"""

import sys
import time
from pathlib import Path
from statistics import quantiles
from typing import Any

from benchmarks.pages import stamp
from benchmarks.step_profile import SQUARE, Peak, StepProfile, step_profile
from benchmarks.workloads import USERS, Workload
from raylfl.config.load import load_config
from raylfl.experiment.assemble import assemble
from raylfl.runtime.round.loop import Federation
from raylfl.runtime.workers.backend import LocalBackend

ROUNDS, WARM_UP = 12, 4
SHOWN = 6  # calls shown of each step
PAGE = """# Where the time of a round goes: kernels and the rest

Written by `python -m benchmarks.kernels`: {stamp}.

- **Machine.** One core, torch {torch}, {processor}. One thread reaches {products:.0f} GFLOP/s in the product of two
  float32 matrices of {square} x {square} (MKL), {convolutions:.0f} GFLOP/s in convolutions with 64 channels (oneDNN),
  and {gigabytes:.0f} GB/s in copies within its caches. All three are measured with the steps.
- **Workloads.** Users' modules (`benchmarks/users.py`) in one process, one client at a time. Each local step replays
  the recorded operator calls. The defaults are faster in three workloads and not shown: batch-last layout in W1,
  whole cohorts in W3 and W4 (half of W4's time).
- **Times.** Of a round, the lower quartile of its processor time; of a call, its shortest time. The difference, such as
  cache misses after other work, counts as "rest".

{table}

- **calls a step**: recorded operator calls of a local step.
- **kernels**: the share of a round within these calls.
- **replay**: the share of Python between these calls.
- **rest**: the share of all other work: batches, seeds, checks, uploads, the server.
- **x peak**: the time within the calls, divided by their time at peak. A call's time at peak is the time of its
  operations at the larger of the two GFLOP/s, or of its bytes at the machine's GB/s, whichever is longer.

Summary: {lesson}

## Findings

- **Ray.** With one worker, a round lasts as long as the worker's local work plus the time from its answer to its next
  call: the answer's transport, the sum, the server step, the commit, the next call. These steps cannot overlap with
  local work, because the next local work needs the new model. During local work there are no page faults, no garbage
  collections and no calls of Ray.
- **Dispatch.** Calls whose gradients are not needed bypass autograd, which saves a noticeable share with small tensors.
- **Dropout.** Random bits are drawn one by one, because a run must not depend on the way in which they are drawn; other
  generators with the same bits (numpy's, Python's) are no faster than torch's.
- **Batch normalisation in a cohort.** vmap passes a transposed gradient to the backward pass, for which torch has only
  a slow kernel. The fast kernel rounds otherwise, and the sums of the slow kernel take as long in other calls.
- **Matrix products.** Large ones reach {share:.0%} of the peak here: torch uses MKL for them, oneDNN for convolutions.
  The same product as a convolution of size 1 rounds otherwise. Batched products of a cohort are as fast as single
  ones.

## The most expensive calls

The operators of one local step. us: microseconds; share: of the time within all calls of the step.

{calls}
"""


def measured(workload: Workload, peak: Peak) -> tuple[dict[str, Any], StepProfile]:
    """(shares of a round, the profile of its step)."""
    config = workload.config(10**6, backend="local", vectorize="never", layout="channels_last", step="recorded")
    experiment = assemble(load_config(config))
    backend = LocalBackend(experiment.setup)
    rounds = Federation.of(experiment, backend).rounds(10**6)
    seconds = []
    for _ in range(WARM_UP + ROUNDS):
        started = time.process_time()
        next(rounds)
        seconds.append(time.process_time() - started)
    rounds.close()
    found = step_profile(backend.worker, peak)
    backend.close()
    assert found is not None
    whole, steps = quantiles(seconds[WARM_UP:], n=4)[0], workload.cohort * workload.steps
    kernels, replay = steps * found.kernels / whole, steps * (found.seconds - found.kernels) / whole
    replay = max(replay, 0.0)
    return {
        "workload": workload.name,
        "round ms": f"{whole * 1e3:.0f}",
        "calls a step": len(found.calls),
        "kernels": f"{kernels:.0%}",
        "replay": f"{replay:.0%}",
        "rest": f"{max(1 - kernels - replay, 0):.0%}",
        "x peak": f"{found.kernels / found.at_peak:.1f}",
    }, found


def most_expensive(found: StepProfile) -> list[dict[str, Any]]:
    """The operators with the largest share of a step, summed over their calls."""
    total: dict[str, list[float]] = {}
    for row in found.calls:
        entry = total.setdefault(row["operator"], [0, 0.0, 0.0])
        entry[0] += 1
        entry[1] += row["us"]
        entry[2] += row["us at peak"]
    order = sorted(total.items(), key=lambda item: -item[1][1])[:SHOWN]
    return [
        {"operator": name, "calls": int(count), "us": f"{us:.0f}", "share": f"{us / found.kernels / 1e4:.0f}%"}
        | {"us at peak": f"{least:.0f}"}
        for name, (count, us, least) in order
    ]


def as_table(rows: list[dict[str, Any]]) -> str:
    """Rows of equal keys as Markdown."""
    lines = [f"| {' | '.join(rows[0])} |", f"| {' | '.join('---' for _ in rows[0])} |"]
    return "\n".join(lines + [f"| {' | '.join(map(str, row.values()))} |" for row in rows])


def lesson(rows: list[dict[str, Any]]) -> str:
    """Sentences on the workloads with the extreme values."""
    most = max(rows, key=lambda row: int(row["rest"].rstrip("%")))
    far = max(rows, key=lambda row: float(row["x peak"]))
    near = min(rows, key=lambda row: float(row["x peak"]))
    return (
        f"{most['workload']} spends the largest share outside of its local steps ({most['rest']}): less Python would\n"
        f"shorten its rounds most. {far['workload']}'s calls are the farthest from the peak ({far['x peak']} times),"
        f"\nbecause its tensors are small; {near['workload']}'s are the nearest ({near['x peak']} times)."
    )


def main() -> None:
    import torch

    torch.set_num_threads(1)
    peak, rows, calls = Peak.measured(), [], []
    for workload in USERS.values():
        row, found = measured(workload, peak)
        rows.append(row)
        calls.append(f"{workload.name}, {workload.title}:\n\n{as_table(most_expensive(found))}")
    text = PAGE.format(
        stamp=stamp(),
        torch=torch.__version__.partition("+")[0],
        processor=torch.backends.cpu.get_cpu_capability(),
        products=peak.products / 1e9,
        convolutions=peak.convolutions / 1e9,
        share=peak.products / peak.operations,
        gigabytes=peak.bytes / 1e9,
        square=SQUARE,
        table=as_table(rows),
        lesson=lesson(rows),
        calls="\n\n".join(calls),
    )
    Path(sys.argv[1] if len(sys.argv) > 1 else "docs/kernels.md").write_text(text)


if __name__ == "__main__":
    main()
