"""Data sets whose samples are read by index from memory-mapped .npy files, which are never loaded as a whole.

The data set may be larger than the memory of a node.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import torch

from raylfl.components.options import Doc, Gt
from raylfl.core.arrays import Ints
from raylfl.core.row_source import Columns, RowSource
from raylfl.data import DATA
from raylfl.data.base import DataSource, data_path
from raylfl.data.image import ImageTransform
from raylfl.errors import DataMissing

Scale = Annotated[float, Gt(0), Doc("x is divided by this number, such as 255 for pixels")]


def mapped(path: Path) -> np.ndarray[Any, Any]:
    """The array of a .npy file, mapped into memory read-only. Raises DataMissing if it cannot be read."""
    try:
        array: np.ndarray[Any, Any] = np.load(path, mmap_mode="r")
    except (OSError, ValueError, EOFError) as error:
        raise DataMissing(
            f"{path} cannot be read as an array ({error}); it must be a .npy file on this node"
        ) from error
    return array


class MappedArrays(RowSource):
    """A map-style data set of .npy files, one file per column of a sample; pickled as paths, without the arrays."""

    def __init__(self, paths: Sequence[Path]):
        self.paths = list(paths)
        self._columns: Columns | None = None

    @property
    def columns(self) -> Columns:
        """The arrays [n, ...] of the files. Raises DataMissing if they differ in length."""
        if self._columns is None:
            columns = tuple(mapped(path) for path in self.paths)
            if len(lengths := {len(column) for column in columns}) > 1:
                files = ", ".join(map(str, self.paths))
                raise DataMissing(f"{files} have different numbers of samples: {sorted(lengths)}")
            self._columns = columns
        return self._columns

    def __len__(self) -> int:
        return len(self.columns[0])

    def rows(self, indices: Ints) -> Columns:
        """The samples of these indices, one array [B, ...] per column."""
        return tuple(column[indices] for column in self.columns)

    def __getstate__(self) -> dict[str, Any]:
        return {"paths": self.paths, "_columns": None}


class ClientArrays(RowSource):
    """The samples of all clients, one client after the other, from `<path>/<client>/x.npy` and `y.npy`.

    A process opens only the folders of clients whose samples it reads; other folders need not exist on its machine.
    """

    def __init__(self, path: Path, names: Sequence[str], sizes: Sequence[int], like: Columns):
        """Describes the clients' files without opening them.

        names, sizes: each client's folder name and number of samples. like: empty arrays with the shapes and dtypes of
        x and y.
        """
        self.path, self.names, self.like = path, list(names), like
        self.offsets = np.concatenate([[0], np.cumsum(sizes)]).astype(np.int64)
        self._open: dict[int, MappedArrays] = {}

    def __len__(self) -> int:
        return int(self.offsets[-1])

    def rows(self, indices: Ints) -> Columns:
        """The samples of these indices, one array [B, ...] per column.

        Raises DataMissing if the files of a client are missing on this node, or if they do not have the number of
        samples that the index states.
        """
        owners = np.searchsorted(self.offsets, indices, side="right") - 1
        found = self.blank(len(indices))
        for owner in np.unique(owners).tolist():
            mine = owners == owner
            for column, rows in zip(found, self._of(owner).rows(indices[mine] - self.offsets[owner]), strict=True):
                column[mine] = rows
        return found

    def blank(self, count: int) -> Columns:
        """`count` samples of zeros, an array [count, ...] per column, to try a model without the clients' files."""
        return tuple(np.zeros((count, *column.shape[1:]), column.dtype) for column in self.like)

    def _of(self, owner: int) -> MappedArrays:
        if owner not in self._open:
            arrays = MappedArrays([self.path / self.names[owner] / file for file in ("x.npy", "y.npy")])
            count = int(self.offsets[owner + 1] - self.offsets[owner])
            if len(arrays) != count:
                raise DataMissing(
                    f"{self.path / self.names[owner]} has {len(arrays)} samples, but the index says {count}"
                )
            self._open[owner] = arrays
        return self._open[owner]

    def __getstate__(self) -> dict[str, Any]:
        return {**vars(self), "_open": {}}


@DATA.register("npy")
class Npy(DataSource):
    """Your own arrays: train_x.npy [n, ...] and train_y.npy [n] in a folder; test_x.npy and test_y.npy are optional.

    Workers read batches by index: the data set may be larger than the memory, and every node needs the folder. A file
    train_client.npy [n] with the number 0..N-1 of each sample's client makes `partition: natural` possible.
    path: the folder, relative to the working directory, or else below the root (RAYLFL_DATA).
    """

    def __init__(
        self,
        path: str = "npy",
        scale: Scale = 1.0,
        root: Annotated[str | None, Doc("the folder above `path`; null: RAYLFL_DATA or ~/.cache/raylfl")] = None,
    ):
        folder = data_path(path, root)
        if not (folder / "train_x.npy").is_file():
            raise DataMissing(
                f"data.name=npy: {folder / 'train_x.npy'} is missing; expected train_x.npy and train_y.npy, and for "
                "tests test_x.npy and test_y.npy\nset data.init_args.path to their folder, relative to the working "
                "directory or to RAYLFL_DATA"
            )
        self.train_dataset = train = MappedArrays([folder / "train_x.npy", folder / "train_y.npy"])
        if (folder / "test_x.npy").is_file():
            self.test_dataset = MappedArrays([folder / "test_x.npy", folder / "test_y.npy"])
        x, y = train.columns
        self.in_shape = x.shape[1:]
        if np.issubdtype(y.dtype, np.integer) and y.ndim == 1:
            self.targets = torch.from_numpy(y.astype(np.int64))
            self.num_classes = int(y.max()) + 1
        if (folder / "train_client.npy").is_file():
            owners = mapped(folder / "train_client.npy")
            order = np.argsort(owners, kind="stable")
            self.client_indices = np.split(order, np.cumsum(np.bincount(owners))[:-1])
        if scale != 1.0:
            self.train_transform = self.test_transform = ImageTransform(scale=scale)
