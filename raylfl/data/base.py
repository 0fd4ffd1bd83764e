"""The interface of data sets, and the folder of data sets on disk."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Annotated, Any

import torch
from torch import Tensor
from torch.utils.data import Dataset, TensorDataset

from raylfl.core.population import Ints
from raylfl.errors import BadValue, DataMissing
from raylfl.options import Arguments, Ge

Transform = Callable[[Tensor], Tensor]
Count = Annotated[int, Ge(1)]


class DataSource(Arguments):
    """The attributes of a data set that a run reads; the constructor's arguments are the options.

    num_clients: the number of clients N.
    rows_per_client: samples of each client.
    dim: the length of a sample's vectors.
    seed: the seed of the data, independent of the run's seed.
    num_classes: the number of classes; labels are 0..num_classes - 1.

    train_dataset: a map-style data set whose samples are tuples of tensors; one with a method `rows(indices)`, which
    returns a batch as arrays, is read by index where the samples lie. test_dataset: a second such data set, or None.
    targets: the label of each training sample, int64 [n], for partitions by label; None: unlabelled.
    client_indices: one list of sample indices per client, for `partition: natural`; None: no clients are defined.
    client_nodes: for each of these clients the name of the nodes that have its samples, a custom resource of Ray; None:
    every node has all of them.
    train_transform, test_transform: applied to the inputs x [B, ...] of a batch each time it is used.
    in_shape: the shape of an input, after the transform; shipped models adopt it and num_classes as defaults.
    optimum(weights=None): the minimiser x* [d] of sum_i w_i f_i (w uniform by default), if it is known.
    """

    train_dataset: Dataset[Any]
    test_dataset: Dataset[Any] | None = None
    targets: Tensor | None = None
    client_indices: list[list[int]] | list[Ints] | None = None
    client_nodes: list[str] | None = None
    train_transform: Transform | None = None
    test_transform: Transform | None = None


def tensors(*columns: Tensor) -> TensorDataset:
    """A data set whose samples are the rows of these columns, each of which is contiguous in memory."""
    return TensorDataset(*(column.contiguous() for column in columns))


def blocks(clients: int, rows: int) -> list[list[int]]:
    """The sample indices of each client if samples are stored client by client, `rows` samples each."""
    return [list(range(i * rows, (i + 1) * rows)) for i in range(clients)]


def client_weights(weights: Sequence[float] | Tensor | None, clients: int) -> Tensor:
    """Importance weights w, float64 [N], normalised to sum 1; uniform for None. Raises BadValue for other lengths."""
    if weights is None:
        return torch.full((clients,), 1.0 / clients, dtype=torch.float64)
    w = torch.as_tensor(weights, dtype=torch.float64)
    if w.shape != (clients,) or not bool((w >= 0).all()) or not float(w.sum()) > 0:
        raise BadValue("weights", got=tuple(w.tolist()), need=f"{clients} numbers >= 0, not all 0")
    return w / w.sum()


def data_root(root: str | None) -> Path:
    """The folder of data sets: `root`, or else the environment variable RAYLFL_DATA, or else ~/.cache/raylfl."""
    return Path(root or os.environ.get("RAYLFL_DATA") or "~/.cache/raylfl").expanduser().absolute()


def data_missing(name: str, problem: str, expected: str, above: str, download: bool) -> DataMissing:
    """The error for missing or damaged files: the fault, the expected files, and the remedy.

    above: the folder that the root must contain. download: whether the option `download` can fetch the files.
    """
    remedy = f"set data.init_args.root, or RAYLFL_DATA, to the folder that holds {above}"
    if download:
        remedy = f"set data.init_args.download=true to fetch them, or {remedy.removeprefix('set ')}"
    return DataMissing(f"data.name={name}: {problem}; expected {expected}\n{remedy}")
