"""Training samples, the clients that own them, and batches of samples on a device."""

from __future__ import annotations

import copy
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from raylfl.core.flat import in_channels_last
from raylfl.core.oracle import Batch
from raylfl.core.population import Ints


def to_device(tensor: Tensor, device: torch.device) -> Tensor:
    """A host tensor on the device: copied asynchronously from pinned memory to a GPU; on a CPU the tensor itself."""
    return tensor if device.type == "cpu" else tensor.pin_memory().to(device, non_blocking=True)


def as_tensor(array: np.ndarray) -> Tensor:
    """A tensor that shares the memory of the array. The memory may be read-only: never write into the tensor."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="The given NumPy array is not writable")
        return torch.from_numpy(array)


@dataclass
class SampleSet:
    """A data set as arrays [n, ...] in shared memory, or a map-style data set that is read sample by sample.

    A data set with a method `rows(indices)` is read batch by batch: it returns the samples of these indices as a tuple
    of arrays. owned: ascending indices of the samples that this process holds (`arrays` has no other rows); None: all
    samples.

    transform: applied to the inputs (first entry) of every training batch. measured_through: applied instead in
    evaluations, without augmentation. collate: makes a batch from a list of samples; None: torch's default_collate.
    """

    arrays: tuple[np.ndarray, ...] | None
    items: Any = None
    transform: Callable[[Tensor], Tensor] | None = None
    measured_through: Callable[[Tensor], Tensor] | None = None
    collate: Callable[[list[Any]], Any] | None = None
    owned: Ints | None = None

    @staticmethod
    def of(
        dataset: Any,
        transform: Callable[[Tensor], Tensor] | None = None,
        measured_through: Callable[[Tensor], Tensor] | None = None,
        collate: Callable[[list[Any]], Any] | None = None,
    ) -> SampleSet:
        """The samples of a map-style data set; a TensorDataset, or a Subset of one, is stored as arrays."""
        tensors = _tensors_of(dataset) if collate is None else None
        if tensors is not None:
            arrays = tuple(t.detach().cpu().contiguous().numpy() for t in tensors)
            return SampleSet(arrays, None, transform, measured_through)
        return SampleSet(None, dataset, transform, measured_through, collate)

    def __len__(self) -> int:
        return len(self.arrays[0]) if self.arrays is not None else len(self.items)

    @property
    def by_index(self) -> bool:
        """Whether batches are read by index from where the samples lie, such as a memory-mapped file."""
        return self.arrays is None and hasattr(self.items, "rows")

    def part(self, indices: Ints) -> SampleSet:
        """The set restricted to these ascending indices; samples keep their indices, and arrays are copied."""
        arrays = None if self.arrays is None else tuple(a[indices] for a in self.arrays)
        return replace(self, arrays=arrays, owned=indices)

    def places(self, indices: Ints) -> Ints:
        """The rows of these samples in `arrays`. Raises LookupError for a sample that is not owned."""
        if self.owned is None:
            return indices
        at = np.minimum(np.searchsorted(self.owned, indices), len(self.owned) - 1)
        if (self.owned[at] != indices).any():
            raise LookupError("a sample was requested from a worker that does not hold it")
        return at


def _tensors_of(dataset: Any) -> Sequence[Tensor] | None:
    if hasattr(dataset, "indices") and hasattr(dataset, "dataset"):
        whole = _tensors_of(dataset.dataset)
        return None if whole is None else [t[torch.as_tensor(dataset.indices)] for t in whole]
    return getattr(dataset, "tensors", None)


class BatchSource:
    """Mini-batches of a SampleSet on one device, in one dtype."""

    def __init__(self, samples: SampleSet, device: torch.device, dtype: torch.dtype, channels_last: bool = False):
        """Batches of these samples; channels_last: 4-d inputs in that memory format, which is faster on CPUs."""
        self.samples, self.device, self.dtype, self.channels_last = samples, device, dtype, channels_last
        self.tensors: tuple[Tensor, ...] | None = None
        if samples.arrays is not None:
            self.tensors = tuple(self._resident(as_tensor(a)) for a in samples.arrays)

    def measuring(self, channels_last: bool) -> BatchSource:
        """A source of the same samples for evaluations, without augmentation; both share their memory."""
        twin = copy.copy(self)
        twin.channels_last = channels_last
        twin.samples = replace(self.samples, transform=self.samples.measured_through)
        return twin

    def _resident(self, tensor: Tensor) -> Tensor:
        if tensor.is_floating_point() and tensor.dtype != self.dtype:
            tensor = tensor.to(self.dtype)
        return tensor.to(self.device)  # a GPU holds the whole data set; on a CPU it stays in shared memory

    def batch(self, indices: Ints) -> IndexedBatch:
        """The batch of these indices; its samples are gathered on first access."""
        return IndexedBatch(self, indices)

    @property
    def plain(self) -> bool:
        """Whether one gather can serve several batches.

        It can for samples in arrays, unless a transform may draw random numbers.
        """
        transform = self.samples.transform
        return self.tensors is not None and (transform is None or getattr(transform, "fixed", False))

    @property
    def sample_bytes(self) -> int:
        """The number of bytes of one sample of arrays, in the dtype of computation."""
        return sum(t[0].numel() * max(t.element_size(), self.dtype.itemsize) for t in self.tensors or ())

    def batches(self, indices: Sequence[Ints]) -> list[Batch]:
        """Several batches of a `plain` source, from one gather."""
        sizes = [len(at) for at in indices]
        pieces = zip(*(t.split(sizes) for t in self.gather(np.concatenate(indices))), strict=True)
        return [Batch(content, size) for content, size in zip(pieces, sizes, strict=True)]

    def gather(self, indices: Ints) -> Any:
        """The samples of these indices: collated, on the device, transformed."""
        if self.tensors is not None:
            at = to_device(torch.from_numpy(self.samples.places(indices)), self.device)
            content: Any = tuple(t.index_select(0, at) for t in self.tensors)
        else:
            content = self._moved(self._read(indices))
        if isinstance(content, (tuple, list)) and content and isinstance(content[0], Tensor):
            inputs = content[0]
            if self.samples.transform is not None:
                inputs = self.samples.transform(inputs)
                if inputs.is_floating_point():
                    inputs = inputs.to(self.dtype)
            if self.channels_last and inputs.ndim == 4:
                inputs = in_channels_last(inputs)
            named = hasattr(content, "_fields")
            content = type(content)(inputs, *content[1:]) if named else (inputs, *content[1:])
        return content

    def _read(self, indices: Ints) -> Any:
        """The samples of these indices from a data set without arrays, collated."""
        from torch.utils.data import default_collate

        self.samples.places(indices)
        if self.samples.by_index:
            return tuple(as_tensor(a) for a in self.samples.items.rows(indices))
        return (self.samples.collate or default_collate)([self.samples.items[int(i)] for i in indices])

    def _moved(self, content: Any) -> Any:
        if isinstance(content, Tensor):
            return to_device(content.to(self.dtype) if content.is_floating_point() else content, self.device)
        if isinstance(content, dict):
            return {k: self._moved(v) for k, v in content.items()}
        if isinstance(content, tuple) and hasattr(content, "_fields"):
            return type(content)(*(self._moved(v) for v in content))
        if isinstance(content, (tuple, list)):
            return type(content)(self._moved(v) for v in content)
        return content.to(self.device) if hasattr(content, "to") else content  # the user's own batch class


class IndexedBatch(Batch):
    """A mini-batch given by its indices, so that several of one source can be gathered at once."""

    def __init__(self, source: BatchSource, indices: Ints):
        super().__init__(None, len(indices))
        self.source, self.indices, self.random = source, indices, not source.plain

    @property
    def content(self) -> Any:
        if self._content is None:
            self._content = self.source.gather(self.indices)
        return self._content

    @staticmethod
    def of_one_source(batches: Sequence[Batch]) -> list[IndexedBatch]:
        """The given batches if all come from one array source, else an empty list."""
        first = batches[0]
        if not isinstance(first, IndexedBatch) or first.source.tensors is None:
            return []
        same = [b for b in batches if isinstance(b, IndexedBatch) and b.source is first.source]
        return same if len(same) == len(batches) else []

    @staticmethod
    def together(batches: Sequence[Batch]) -> tuple[Tensor, ...] | None:
        """All samples of these batches, concatenated; None unless they come from one array source."""
        same = IndexedBatch.of_one_source(batches)
        if not same:
            return None
        if all(b._content is not None for b in same):  # whole shards, kept from the previous step
            return tuple(torch.cat(parts) for parts in zip(*(b.content for b in same), strict=True))
        content: tuple[Tensor, ...] = same[0].source.gather(np.concatenate([b.indices for b in same]))
        return content


class EvenBatches(Sequence[Batch]):
    """C mini-batches of B samples from one plain source, given by `indices` [C, B]; one gather fetches all."""

    def __init__(self, source: BatchSource, indices: Ints):
        self.source, self.indices = source, indices

    def __len__(self) -> int:
        return len(self.indices)

    def __getitem__(self, k: Any) -> Any:
        return self.source.batch(self.indices[k])

    def stacked(self) -> tuple[Tensor, ...]:
        """The contents of all batches [C, B, ...]."""
        content = self.source.gather(self.indices.reshape(-1))
        return tuple(t.unflatten(0, self.indices.shape) for t in content)


def sizes_of(batches: Sequence[Batch]) -> list[int]:
    """The number of samples in each of these batches."""
    if isinstance(batches, EvenBatches):
        return [batches.indices.shape[1]] * len(batches)
    return [b.size for b in batches]


@dataclass(frozen=True)
class Shards:
    """The samples of each client: all index lists in one array, which can lie in shared memory.

    indices: int64 [sum n_i]; offsets: int64 [N + 1]; client i owns indices[offsets[i]:offsets[i+1]].
    """

    indices: Ints
    offsets: Ints

    @staticmethod
    def of(clients: Sequence[Ints]) -> Shards:
        sizes = [len(c) for c in clients]
        flat = np.concatenate(clients) if clients else np.empty(0, dtype=np.int64)
        return Shards(flat.astype(np.int64), np.concatenate([[0], np.cumsum(sizes)]).astype(np.int64))

    def __getitem__(self, client: int) -> Ints:
        return self.indices[self.offsets[client] : self.offsets[client + 1]]

    @property
    def sizes(self) -> Ints:
        """The numbers n_i of samples, int64 [N]."""
        return np.diff(self.offsets)
