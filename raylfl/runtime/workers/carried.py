"""State that reading samples carries over to the next reading, found by reading the same samples twice."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import fields, is_dataclass
from typing import Any

import torch
from torch import Tensor

from raylfl.core.arrays import Ints
from raylfl.core.flat import same_entries
from raylfl.core.oracle import private_randomness
from raylfl.core.samples import BatchSource, SampleSet

NUMBERS = (bool, int, float, complex, str)


def carried_state(samples: SampleSet, indices: Ints, seed: int, kind: str) -> str | None:
    """What reading these samples carries over to later batches, as a warning; None if nothing is found.

    kind: train, test or val, for the message. The samples are read twice with the same seed. A number in an attribute
    that has changed, or a batch that differs, is state: a batch then depends on the batches that its worker has read
    before. Other attributes may change, such as an opened file or a cache.
    """
    if samples.is_blank or (samples.arrays is not None and samples.transform is None):
        return None
    source = BatchSource(samples, torch.device("cpu"), torch.float32)
    before, batches = dict(_numbers(samples, kind)), []
    for _ in range(2):
        with private_randomness(seed):
            batches.append(source.gather(indices))
    changed = [name for name, value in _numbers(samples, kind) if before.get(name, value) != value]
    if changed:
        what = f"reading samples changes {', '.join(changed)}"
    elif not _equal(*batches):
        what = f"the same {kind} samples, read twice with the same seed, differ (a counter or a generator of its own)"
    else:
        return None
    return f"{what}, which is never reset: results depend on the samples that a worker has read before"


def _numbers(samples: SampleSet, kind: str) -> Iterator[tuple[str, Any]]:
    """(name, value) of the numbers in attributes of the transform, the collate function and the data set."""
    parts = {f"{kind}_transform": samples.transform, "collate_fn": samples.collate, f"{kind}_dataset": samples.items}
    for name, part in parts.items():
        for depth in range(8):  # a data set may wrap another one
            part = getattr(part, "__self__", part)  # the object of a method
            own = getattr(part, "__dict__", {})
            for key, value in own.items():
                if isinstance(value, NUMBERS):
                    yield f"{name}{'.dataset' * depth}.{key}", value
            part = own.get("dataset")


def _equal(a: Any, b: Any) -> bool:
    """Whether two batches are equal; parts of types that cannot be compared count as equal."""
    if isinstance(a, Tensor):
        return isinstance(b, Tensor) and a.shape == b.shape and same_entries(a, b)
    if isinstance(a, Mapping):
        return a.keys() == b.keys() and all(_equal(a[key], b[key]) for key in a)
    if isinstance(a, (tuple, list)):
        return len(a) == len(b) and all(map(_equal, a, b))
    if is_dataclass(a) and not isinstance(a, type):
        return all(_equal(getattr(a, part.name), getattr(b, part.name)) for part in fields(a))
    return a == b if isinstance(a, NUMBERS) else True
