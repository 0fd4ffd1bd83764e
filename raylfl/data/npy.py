"""Your own arrays in .npy files, read by index: the data set may be larger than the memory of a node."""

from __future__ import annotations

from typing import Annotated

import numpy as np
import torch

from raylfl.components.options import Doc, Gt
from raylfl.data import DATA
from raylfl.data.base import DataSource, data_path
from raylfl.data.by_index import MappedArrays, mapped
from raylfl.data.image import ImageTransform
from raylfl.errors import DataMissing


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
        scale: Annotated[float, Gt(0), Doc("x is divided by this number, such as 255 for pixels")] = 1.0,
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
