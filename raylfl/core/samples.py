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

from raylfl.core.arrays import Ints
from raylfl.core.flat import in_channels_last
from raylfl.core.oracle import Batch
from raylfl.errors import BadConfig


def to_device(tensor: Tensor, device: torch.device) -> Tensor:
    """The CPU tensor on the device: an asynchronous copy from pinned memory on a GPU, the tensor itself on a CPU."""
    return tensor if device.type == "cpu" else tensor.pin_memory().to(device, non_blocking=True)


def as_tensor(array: np.ndarray) -> Tensor:
    """A tensor that shares the memory of the array; the memory may be read-only, so never write into the tensor."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="The given NumPy array is not writable")
        return torch.from_numpy(array)


@dataclass
class SampleSet:
    """A data set: arrays [n, ...] that processes can share (`arrays`), or a map-style data set (`items`).

    `items` is read sample by sample, or batch by batch if it has a method `rows(indices)`, which returns the samples of
    these indices as a tuple of arrays. owned: the ascending indices of the samples that this process has (`arrays` has
    no other rows); None: all samples.

    transform: is applied to the inputs (first entry) of every training batch. measured_through: replaces `transform` in
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
        """The samples of a map-style data set.

        Without `collate`, a TensorDataset or a Subset of one is stored as arrays. The other arguments are fields of
        `SampleSet`.
        """
        tensors = _tensors_of(dataset) if collate is None else None
        if tensors is not None:
            arrays = tuple(as_array(t) for t in tensors)
            return SampleSet(arrays, None, transform, measured_through)
        return SampleSet(None, dataset, transform, measured_through, collate)

    def __len__(self) -> int:
        return len(self.arrays[0]) if self.arrays is not None else len(self.items)

    @property
    def by_index(self) -> bool:
        """Whether batches are read by the data set's method `rows`, for example from a memory-mapped file."""
        return hasattr(self.items, "rows")

    def part(self, indices: Ints) -> SampleSet:
        """The set restricted to these ascending indices; samples keep their indices, and their arrays are copies."""
        arrays = None if self.arrays is None else tuple(a[indices] for a in self.arrays)
        return replace(self, arrays=arrays, owned=indices)

    def places(self, indices: Ints) -> Ints:
        """The row numbers of these samples in `arrays`. Raises LookupError for a sample that is not owned."""
        if self.owned is None:
            return indices
        at = np.minimum(np.searchsorted(self.owned, indices), len(self.owned) - 1)
        if (self.owned[at] != indices).any():
            raise LookupError("a sample was requested from a worker that does not hold it")
        return at


def as_array(tensor: Tensor) -> np.ndarray:
    """The values of a tensor; numpy has no bfloat16, whose values float32 holds exactly."""
    values = tensor.detach().cpu().contiguous()
    return (values.float() if values.dtype == torch.bfloat16 else values).numpy()


def _tensors_of(dataset: Any) -> Sequence[Tensor] | None:
    if hasattr(dataset, "indices") and hasattr(dataset, "dataset"):
        whole = _tensors_of(dataset.dataset)
        return None if whole is None else [t[torch.as_tensor(dataset.indices)] for t in whole]
    return getattr(dataset, "tensors", None)


class BatchSource:
    """Mini-batches of a `SampleSet` on one device, with floats in one dtype."""

    def __init__(self, samples: SampleSet, device: torch.device, dtype: torch.dtype, channels_last: bool = False):
        """Batches of these samples.

        channels_last: whether 4-d inputs are stored in torch's channels-last order, which is faster on CPUs.
        """
        self.samples, self.device, self.dtype, self.channels_last = samples, device, dtype, channels_last
        self.tensors: tuple[Tensor, ...] | None = None
        if samples.arrays is not None:
            # a GPU holds the whole data set; on a CPU it stays in shared memory
            self.tensors = tuple(self._cast(as_tensor(a)).to(device) for a in samples.arrays)

    def measuring(self, channels_last: bool) -> BatchSource:
        """A source of the same samples in the same memory, for evaluations, without augmentation."""
        twin = copy.copy(self)
        twin.channels_last = channels_last
        twin.samples = replace(self.samples, transform=self.samples.measured_through)
        return twin

    def _cast(self, tensor: Tensor) -> Tensor:
        return tensor.to(self.dtype) if tensor.is_floating_point() else tensor

    def batch(self, indices: Ints) -> IndexedBatch:
        """The batch of the samples with these indices, which are gathered when its content is first read."""
        return IndexedBatch(self, indices)

    @property
    def plain(self) -> bool:
        """Whether one call of `gather` can read the samples of several batches.

        This is possible for samples in arrays if there is no transform, or if the transform draws no random numbers
        (attribute `fixed`).
        """
        transform = self.samples.transform
        return self.tensors is not None and (transform is None or getattr(transform, "fixed", False))

    @property
    def sample_bytes(self) -> int:
        """An estimate of the bytes of one sample in a batch; 0 for samples that are not in arrays."""
        return sum(t[0].numel() * max(t.element_size(), self.dtype.itemsize) for t in self.tensors or ())

    def batches(self, indices: Sequence[Ints]) -> list[Batch]:
        """The batches of these index arrays, read by one call of `gather`; the source must be `plain`."""
        sizes = [len(at) for at in indices]
        pieces = zip(*(t.split(sizes) for t in self.gather(np.concatenate(indices))), strict=True)
        return [Batch(content, size) for content, size in zip(pieces, sizes, strict=True)]

    def gather(self, indices: Ints) -> Any:
        """The samples of these indices as the content of one batch: collated, on the device, transformed."""
        if self.tensors is not None:
            at = to_device(torch.from_numpy(self.samples.places(indices)), self.device)
            content: Any = tuple(t.index_select(0, at) for t in self.tensors)
        else:
            content = self._moved(self._read(indices))
        if isinstance(content, (tuple, list)) and content and isinstance(content[0], Tensor):
            inputs = content[0]
            if self.samples.transform is not None:
                inputs = self._cast(self.samples.transform(inputs))
            if self.channels_last and inputs.ndim == 4:
                inputs = in_channels_last(inputs)
            named = hasattr(content, "_fields")
            content = type(content)(inputs, *content[1:]) if named else (inputs, *content[1:])
        return content

    def _read(self, indices: Ints) -> Any:
        """The samples of these indices from a data set without arrays, collated."""
        from torch.utils.data import default_collate

        self.samples.places(indices)  # raises LookupError for samples that are not owned
        if self.samples.by_index:
            return tuple(as_tensor(a) for a in self.samples.items.rows(indices))
        samples = [self.samples.items[int(i)] for i in indices]
        if self.samples.collate is not None:
            return self.samples.collate(samples)
        try:
            return default_collate(samples)
        except (RuntimeError, TypeError) as error:  # samples of unequal shapes, or of a type without a batch
            remedy = "give the data class a collate_fn, or samples that are tensors of one shape"
            raise BadConfig(f"training or test samples do not form a batch: {error}; {remedy}") from error

    def _moved(self, content: Any) -> Any:
        if isinstance(content, Tensor):
            return to_device(self._cast(content), self.device)
        if isinstance(content, dict):
            return {k: self._moved(v) for k, v in content.items()}
        if isinstance(content, tuple) and hasattr(content, "_fields"):
            return type(content)(*(self._moved(v) for v in content))
        if isinstance(content, (tuple, list)):
            return type(content)(self._moved(v) for v in content)
        return content.to(self.device) if hasattr(content, "to") else content  # the user's own batch class


class IndexedBatch(Batch):
    """A mini-batch given by its sample indices; several batches of one source can be gathered at once."""

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
        """The given batches if all are indexed batches of one source with arrays, else an empty list."""
        first = batches[0]
        if not isinstance(first, IndexedBatch) or first.source.tensors is None:
            return []
        same = [b for b in batches if isinstance(b, IndexedBatch) and b.source is first.source]
        return same if len(same) == len(batches) else []

    @staticmethod
    def together(batches: Sequence[Batch]) -> tuple[Tensor, ...] | None:
        """The samples of all batches, concatenated; None unless all come from one source with arrays."""
        same = IndexedBatch.of_one_source(batches)
        if not same:
            return None
        if all(b._content is not None for b in same):  # whole shards, kept from the previous step
            return tuple(torch.cat(parts) for parts in zip(*(b.content for b in same), strict=True))
        content: tuple[Tensor, ...] = same[0].source.gather(np.concatenate([b.indices for b in same]))
        return content


class EvenBatches(Sequence[Batch]):
    """C mini-batches of B samples each, from one `BatchSource` that is `plain`.

    indices: the sample indices [C, B].
    """

    def __init__(self, source: BatchSource, indices: Ints):
        self.source, self.indices = source, indices

    def __len__(self) -> int:
        return len(self.indices)

    def __getitem__(self, k: Any) -> Any:
        return self.source.batch(self.indices[k])

    def stacked(self) -> tuple[Tensor, ...]:
        """The contents of all batches as tensors [C, B, ...], read by one call of `gather`."""
        content = self.source.gather(self.indices.reshape(-1))
        return tuple(t.unflatten(0, self.indices.shape) for t in content)


def sizes_of(batches: Sequence[Batch]) -> list[int]:
    """The numbers of samples of these batches."""
    if isinstance(batches, EvenBatches):
        return [batches.indices.shape[1]] * len(batches)
    return [b.size for b in batches]


@dataclass(frozen=True)
class ClientShards:
    """The sample indices of each client, in one array that processes can share.

    N clients have n_i samples each. indices: their sample indices, int64 [sum n_i]. offsets: int64 [N + 1]; client i
    owns the samples indices[offsets[i]:offsets[i+1]].
    """

    indices: Ints
    offsets: Ints

    @staticmethod
    def of(clients: Sequence[Ints]) -> ClientShards:
        return ClientShards(np.concatenate(clients).astype(np.int64), np.cumsum([0, *map(len, clients)]))

    def __getitem__(self, client: int) -> Ints:
        return self.indices[self.offsets[client] : self.offsets[client + 1]]

    @property
    def sizes(self) -> Ints:
        """The number of samples n_i of each of the N clients, int64 [N]."""
        return np.diff(self.offsets)
