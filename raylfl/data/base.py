"""The interface of data sets, helpers to build them, and the folder in which they are stored."""

import hashlib
import os
import urllib.request
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any

import torch
from torch import Tensor
from torch.utils.data import Dataset, TensorDataset

from raylfl.components.options import Arguments, Ge
from raylfl.core.arrays import Ints
from raylfl.errors import BadValue, DataMissing

Transform = Callable[[Tensor], Tensor]
Count = Annotated[int, Ge(1)]


class DataSource(Arguments):
    """A data set, whose constructor arguments are its options.

    Options of several data sets:
    num_clients: the number of clients N.
    rows_per_client: the number of samples of each client.
    dim: the length of the vectors in a sample.
    seed: the seed of the data, independent of the run's seed.
    num_classes: the number of classes; labels are 0..num_classes - 1.

    Attributes that a run reads, besides dim and num_classes:
    train_dataset: a map-style data set whose samples are tuples of tensors. If it is a `raylfl.data.RowSource`, each
    worker reads the samples that it needs by index, many at once.
    test_dataset: a map-style data set for testing; None: no test set.
    targets: the label of each training sample, int64 [n], for partitions by label; None: unlabelled.
    client_indices: one list of sample indices per client, or a mapping from the client's name to its list, for
    `partition: natural`; None: no clients are defined.
    client_nodes: for each client in client_indices, the custom resource of Ray that marks the nodes with its samples;
    None: every node has all samples.
    train_transform, test_transform: applied to the inputs x [B, ...] of a batch each time it is used, in training and
    in evaluations.
    in_shape: the shape of an input after the transform; in_shape and num_classes are defaults of shipped models.
    notes: lines about the data that a run prints as warnings, such as files that are left out.
    optimum(weights=None): the minimiser x* [d] of sum_i w_i f_i (w uniform by default), if it is known.
    """

    train_dataset: Dataset[Any]
    test_dataset: Dataset[Any] | None = None
    targets: Tensor | None = None
    client_indices: list[list[int]] | list[Ints] | Mapping[str, Any] | None = None
    client_nodes: list[str] | None = None
    train_transform: Transform | None = None
    test_transform: Transform | None = None
    notes: Sequence[str] = ()


def tensors(*columns: Tensor) -> TensorDataset:
    """A data set whose sample k is row k of each column [n, ...]; the columns are made contiguous in memory."""
    return TensorDataset(*(column.contiguous() for column in columns))


def blocks(clients: int, rows: int) -> list[list[int]]:
    """The sample indices of each client if samples are stored client by client, `rows` of them per client."""
    return [list(range(i * rows, (i + 1) * rows)) for i in range(clients)]


def client_weights(weights: Sequence[float] | Tensor | None, clients: int) -> Tensor:
    """Importance weights w, float64 [N] with N = clients, normalised to sum 1; uniform for None.

    Raises BadValue unless there are N weights >= 0, at least one of them > 0.
    """
    if weights is None:
        return torch.full((clients,), 1.0 / clients, dtype=torch.float64)
    w = torch.as_tensor(weights, dtype=torch.float64)
    if w.shape != (clients,) or not bool((w >= 0).all()) or not float(w.sum()) > 0:
        raise BadValue("weights", got=tuple(w.tolist()), need=f"{clients} numbers >= 0, not all 0")
    return w / w.sum()


def data_root(root: str | None) -> Path:
    """The folder of data sets: `root`, or else the environment variable RAYLFL_DATA, or else ~/.cache/raylfl."""
    return Path(root or os.environ.get("RAYLFL_DATA") or "~/.cache/raylfl").expanduser().absolute()


def data_path(path: str, root: str | None) -> Path:
    """The absolute path of your own data: `path` in the working directory if it exists there, else below `data_root`.

    root: the option `root`; if it is given, a relative path is always below it.
    """
    given = Path(path).expanduser()
    return given.absolute() if root is None and given.exists() else data_root(root) / given


def fetch(url: str, md5: str) -> bytes:
    """The content of a file at a URL. Raises OSError if it cannot be fetched, or has another MD5."""
    with urllib.request.urlopen(url, timeout=60) as answer:
        content = bytes(answer.read())
    if hashlib.md5(content).hexdigest() != md5:
        raise OSError(f"{url} has another MD5 than {md5}")
    return content


def data_missing(name: str, problem: str, expected: str, above: str | None, download: bool) -> DataMissing:
    """The error for missing or damaged files of the data set `name`, with the fault, the expected files and a remedy.

    above: what data.init_args.root must contain, for the message; None: the root is no remedy. download: whether the
    option `download` can fetch the files.
    """
    if above is None:
        return DataMissing(f"data.name={name}: {problem}; expected {expected}")
    remedy = f"set data.init_args.root, or RAYLFL_DATA, to the folder that holds {above}"
    if download:
        remedy = f"set data.init_args.download=true to fetch them, or {remedy.removeprefix('set ')}; "
        remedy += "data=image_folder reads a copy of your own in JPEG or PNG files"
    return DataMissing(f"data.name={name}: {problem}; expected {expected}\n{remedy}")
