"""Data sets that declare that they can read many samples at once."""

from abc import ABC, abstractmethod
from typing import Any

import numpy as np
import torch
from torch.utils.data import Dataset

from raylfl.core.arrays import Ints

Columns = tuple[np.ndarray[Any, Any], ...]


class RowSource(Dataset[Any], ABC):
    """The base class of map-style data sets that read many samples at once; only its subclasses are read this way.

    Each worker reads the samples of its batches by `rows`. For the first batch, samples are compared with those that
    indexing returns.
    """

    @abstractmethod
    def __len__(self) -> int:
        """The number of samples n."""

    @abstractmethod
    def rows(self, indices: Ints) -> Columns:
        """The samples of these indices, one array [B, ...] per column."""

    def blank(self, count: int) -> Columns | None:
        """`count` samples of zeros, one array [count, ...] per column, to try a model where no sample can be read.

        None: the first samples are read.
        """
        return None

    def __getitem__(self, k: int) -> Any:
        return tuple(torch.from_numpy(column)[0] for column in self.rows(np.array([k])))
