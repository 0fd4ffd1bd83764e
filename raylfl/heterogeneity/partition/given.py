"""Partitions that the data source defines, or that a file has: JSON {client: [sample indices]}, clients "0".."N-1".

The published partitions of SFL (Li & Lyu 2023, github.com/liyipeng00/convergence, folder `partition`) are such files,
for example `cifar10_M[500]_exdir[2 10.0].txt`, with unsorted indices. `load` reads these files. In turn, SFL's
published code reads files of `as_text`, if their names have the form of this example.
"""

import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import numpy as np

from raylfl.components.options import Doc
from raylfl.core.arrays import Ints
from raylfl.errors import BadValue
from raylfl.heterogeneity.partition.base import PARTITIONS, Partition, Samples
from raylfl.heterogeneity.partition.deal import owners
from raylfl.heterogeneity.trace import parse

FORM = "a JSON file {client: [indices]} with clients 0..N-1"


@PARTITIONS.register("natural")
@dataclass
class Natural(Partition):
    """The partition that the data source defines by its `client_indices`, such as one client per writer.

    num_clients is the number of these clients; each has samples. Samples that belong to no client are dropped.
    """

    def fixed_clients(self, samples: Samples) -> int | None:
        return None if samples.owners is None else len(samples.owners)

    def assign(self, samples: Samples, num_clients: int, rng: np.random.Generator) -> Ints:
        if samples.owners is None:
            need = "another partition: this data defines no clients"
            raise BadValue("name", got="natural", need=need, hint="data with client_indices does")
        empty = [i for i, indices in enumerate(samples.owners) if not len(indices)]
        if empty:
            hint = f"client {empty[0]} has none"
            raise BadValue("name", got="natural", need="used with data whose clients all have samples", hint=hint)
        try:
            return owners(samples.owners, samples.count)
        except ValueError as problem:
            need = f"used with client_indices that list each of 0..{samples.count - 1} at most once"
            raise BadValue("name", got="natural", need=need, hint=str(problem)) from None


@PARTITIONS.register("file")
@dataclass
class File(Partition):
    """A partition read from a JSON file {client: [sample indices]}.

    Clients without samples are allowed; samples in no list are dropped.
    """

    path: Annotated[
        str, Doc("the file, relative to the working directory; `raylfl partition CONFIG -o DIR` writes one")
    ]

    def fixed_clients(self, samples: Samples) -> int | None:
        return len(load(self.path))

    def assign(self, samples: Samples, num_clients: int, rng: np.random.Generator) -> Ints:
        try:
            return owners(load(self.path), samples.count)
        except ValueError as problem:
            need = f"a partition of this data: each of 0..{samples.count - 1} at most once"
            raise BadValue("path", got=self.path, need=need, hint=str(problem)) from None


def load(path: str | os.PathLike[str]) -> list[Ints]:
    """The sample indices of clients 0..N-1, each list in the order of the file.

    Raises BadValue for an unreadable file or one of another form.
    """
    try:
        content = parse(Path(path).expanduser().read_text(encoding="utf-8"))
        if not isinstance(content, dict) or not content or set(content) != {str(i) for i in range(len(content))}:
            raise ValueError("its keys are not the numbers 0..N-1")
        return [_indices(content[str(i)], i) for i in range(len(content))]
    except (OSError, ValueError) as problem:  # ValueError also: not JSON, not UTF-8, or a duplicate client
        hint = getattr(problem, "strerror", None) or str(problem)
        raise BadValue("path", got=path, need=FORM, hint=hint) from None


def as_text(clients: Sequence[Ints]) -> str:
    """The content of a partition file with these sample indices, one line per client."""
    lines = ",\n".join(f'"{i}": {np.asarray(indices).tolist()}' for i, indices in enumerate(clients))
    return f"{{\n{lines}\n}}\n"


def _indices(value: object, client: int) -> Ints:
    # type(...) is int: json reads true as a bool, which is an int to isinstance
    if not isinstance(value, list) or not all(type(index) is int and abs(index) < 2**63 for index in value):
        raise ValueError(f"client {client} has no list of whole numbers")
    return np.array(value, dtype=np.int64)
