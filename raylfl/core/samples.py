"""Training samples, the clients that own them, and batches of samples on a device."""

from __future__ import annotations

import copy
import warnings
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, fields, is_dataclass, replace
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import Subset, TensorDataset

from raylfl.core.arrays import Ints
from raylfl.core.flat import in_channels_last, same_entries
from raylfl.core.oracle import Batch
from raylfl.core.row_source import RowSource
from raylfl.core.transfer import to_device
from raylfl.errors import BadConfig

COMPARED = 8  # samples by which a reading of many samples at once is compared with indexing
NUMPY = {torch.float16, torch.float32, torch.float64}  # numpy has these floating-point dtypes, and not bfloat16


def as_tensor(array: np.ndarray) -> Tensor:
    """A tensor that shares the memory of the array; the memory may be read-only, so never write into the tensor."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="The given NumPy array is not writable")
        return torch.from_numpy(array)


@dataclass
class SampleSet:
    """A data set: arrays [n, ...] that processes can share (`arrays`), or a map-style data set (`items`).

    `items` is read sample by sample, or batch by batch if it is a `RowSource`. owned: the ascending indices of the
    samples that this process has (`arrays` has no other rows); None: all samples.

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

        Without `collate`, a TensorDataset, or a Subset of one, is stored as arrays if their rows are equal to what
        indexing returns; not objects of subclasses, which may return other samples. The other arguments are fields.
        """
        arrays = _arrays_of(dataset) if collate is None else None
        return SampleSet(arrays, None if arrays is not None else dataset, transform, measured_through, collate)

    def __len__(self) -> int:
        return len(self.arrays[0]) if self.arrays is not None else len(self.items)

    @property
    def is_blank(self) -> bool:
        """Whether a model is tried on zeros, because this process may have no samples (`RowSource.blank`)."""
        return self.by_index and self.items.blank(1) is not None

    @property
    def by_index(self) -> bool:
        """Whether batches are read by the data set's method `rows`, for example from a memory-mapped file."""
        return isinstance(self.items, RowSource) and self.collate is None

    def read(self, indices: Ints) -> list[Any]:
        """The samples of these indices, as a DataLoader reads them: one by one, or all by `__getitems__`.

        For a set that is not stored as arrays.
        """
        numbers = [int(i) for i in indices]
        together = getattr(self.items, "__getitems__", None)
        return list(together(numbers)) if together else [self.items[i] for i in numbers]

    def part(self, indices: Ints) -> SampleSet:
        """The set restricted to these ascending indices; samples keep their indices, and their arrays are copies."""
        arrays = None if self.arrays is None else tuple(a[indices] for a in self.arrays)
        return replace(self, arrays=arrays, owned=indices)

    @property
    def nbytes(self) -> int:
        """The bytes of all samples in arrays; 0 for a set that is not stored as arrays."""
        return sum(a.nbytes for a in self.arrays or ())

    def pieces(self, indices: Ints, most: int) -> Iterator[SampleSet]:
        """The set restricted to these ascending indices, as parts of at most `most` bytes of samples, in their order.

        A part has one sample at least. A set that is not stored as arrays has one part.
        """
        rows = max(1, len(indices) if self.arrays is None else most * len(self) // max(1, self.nbytes))
        for first in range(0, max(1, len(indices)), rows):
            yield self.part(indices[first : first + rows])

    @staticmethod
    def joined(pieces: Iterable[SampleSet], count: int) -> SampleSet:
        """The set of `count` samples that was cut into `pieces`, which are read, copied and freed one at a time.

        A single piece is returned as it is.
        """
        columns, at = list[np.ndarray](), 0  # arrays, owned
        for piece in pieces:
            if not at and (piece.owned is None or len(piece.owned) == count):
                return piece
            assert piece.arrays is not None
            assert piece.owned is not None
            parts = [*piece.arrays, piece.owned]
            columns = columns or [np.empty((count, *part.shape[1:]), dtype=part.dtype) for part in parts]
            for column, part in zip(columns, parts, strict=True):
                column[at : at + len(piece)] = part
            at += len(piece)
        assert at == count
        return replace(piece, arrays=tuple(columns[:-1]), owned=columns[-1])

    def row_numbers(self, indices: Ints) -> Ints:
        """The row numbers of these samples in `arrays`. Raises LookupError for a sample that is not owned."""
        if self.owned is None:
            return indices
        positions = np.minimum(np.searchsorted(self.owned, indices), len(self.owned) - 1)
        if (self.owned[positions] != indices).any():
            raise LookupError("a sample was requested from a worker that does not hold it")
        return positions


def _arrays_of(dataset: Any) -> tuple[np.ndarray, ...] | None:
    """The columns of a TensorDataset or of a Subset of one as arrays [n, ...]; None if samples must be read one by one.

    Floating-point dtypes that numpy lacks, such as bfloat16, become float32, which has their values.
    """
    tensors = _tensors_of(dataset)
    if tensors is None or any(t.layout != torch.strided or t.is_quantized for t in tensors):
        return None
    tensors = [t.detach().cpu().resolve_conj().resolve_neg() for t in tensors]
    arrays = tuple(_widen(t).contiguous().numpy() for t in tensors)
    return arrays if all(same_sample(dataset[k], arrays, k) for k in spread(len(dataset))) else None


def _widen(tensor: Tensor) -> Tensor:
    return tensor.float() if tensor.is_floating_point() and tensor.dtype not in NUMPY else tensor


def _tensors_of(dataset: Any) -> Sequence[Tensor] | None:
    if type(dataset) is Subset:
        tensors = _tensors_of(dataset.dataset)
        return None if tensors is None else [t[torch.as_tensor(dataset.indices)] for t in tensors]
    return dataset.tensors if type(dataset) is TensorDataset else None


def spread(count: int) -> list[int]:
    """Up to `COMPARED` indices of 0..count-1, evenly spread.

    >>> spread(3), spread(100)
    ([0, 1, 2], [0, 12, 25, 37, 50, 62, 75, 87])
    """
    return [k * count // min(COMPARED, count) for k in range(min(COMPARED, count))]


def same_sample(sample: Any, columns: Sequence[np.ndarray], k: int) -> bool:
    """Whether a sample is a tuple or list of the entries that row k of each column has; NaN is equal to NaN."""
    if not isinstance(sample, (tuple, list)) or len(sample) != len(columns):
        return False
    try:
        parts = [_widen(torch.as_tensor(part)) for part in sample]
        pairs = [(part, as_tensor(np.asarray(column[k]))) for part, column in zip(parts, columns, strict=True)]
    except (TypeError, ValueError, RuntimeError):  # a part that is not a number or an array
        return False
    return all(a.shape == b.shape and same_entries(a, b) for a, b in pairs)


class BatchSource:
    """Mini-batches of a `SampleSet` on one device, with floats in one dtype."""

    def __init__(self, samples: SampleSet, device: torch.device, dtype: torch.dtype, channels_last: bool = False):
        """Batches of these samples.

        channels_last: whether 4-d inputs are stored in torch's channels-last order, which is faster on CPUs.
        """
        self.samples, self.device, self.dtype, self.channels_last = samples, device, dtype, channels_last
        self.tensors: tuple[Tensor, ...] | None = None
        self._compared = False  # whether rows of a `RowSource` were compared with its samples
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
        """Whether one call of `gather` can read several batches: of samples in arrays without a random transform.

        A transform that draws no random numbers has the attribute `fixed`.
        """
        transform = self.samples.transform
        return self.tensors is not None and (transform is None or getattr(transform, "fixed", False))

    @property
    def sample_bytes(self) -> int:
        """An estimate of the bytes of one sample in a batch; 0 for samples that are not in arrays."""
        return sum(t[0].numel() * max(t.element_size(), self.dtype.itemsize) for t in self.tensors or ())

    def batches(self, indices: Sequence[Ints]) -> list[Batch]:
        """The batches of these index arrays, read by one call of `gather`; the source must be `plain`."""
        sizes = [len(batch) for batch in indices]
        pieces = zip(*(t.split(sizes) for t in self.gather(np.concatenate(indices))), strict=True)
        return [Batch(content, size) for content, size in zip(pieces, sizes, strict=True)]

    def gather(self, indices: Ints) -> Any:
        """The samples of these indices as the content of one batch: collated, on the device, transformed."""
        if self.tensors is not None:
            return self.gather_at(to_device(torch.from_numpy(self.samples.row_numbers(indices)), self.device))
        return self._through(self._move(self._read(indices)))

    def gather_at(self, places: Tensor) -> Any:
        """The content of one batch, of the samples at these rows [B] of `tensors`; transformed."""
        assert self.tensors is not None
        on_host = places.device.type == "cpu"
        return self._through(tuple(t.index_select(0, places) if on_host else t[places] for t in self.tensors))

    def _through(self, content: Any) -> Any:
        """The content of a batch with its inputs transformed and in the memory order of the source."""
        transform = self.samples.transform
        if isinstance(content, (tuple, list)) and content and isinstance(content[0], Tensor):
            inputs = content[0] if transform is None else self._cast(transform(content[0]))
            if self.channels_last and inputs.ndim == 4:
                inputs = in_channels_last(inputs)
            named = hasattr(content, "_fields")
            return type(content)(inputs, *content[1:]) if named else (inputs, *content[1:])
        if transform is None:
            return content
        if isinstance(content, Tensor):
            return self._cast(transform(content))
        raise BadConfig(
            f"train_transform and test_transform are applied to the first entry of a batch, but a batch is of type "
            f"{type(content).__name__}: transform samples in the data set or in collate_fn"
        )

    def _read(self, indices: Ints) -> Any:
        """The samples of these indices from a data set without arrays, collated."""
        from torch.utils.data import default_collate

        self.samples.row_numbers(indices)  # raises LookupError for samples that are not owned
        if self.samples.by_index:
            return tuple(as_tensor(a) for a in self._rows(indices))
        samples = self.samples.read(indices)
        if self.samples.collate is not None:
            return self.samples.collate(samples)
        try:
            return default_collate(samples)
        except (RuntimeError, TypeError) as error:  # samples of unequal shapes, or of a type without a batch
            remedy = "give the data class a collate_fn, or samples that are tensors of one shape"
            raise BadConfig(f"training or test samples do not form a batch: {error}; {remedy}") from error

    def _rows(self, indices: Ints) -> Sequence[np.ndarray]:
        """The rows of a `RowSource`. Raises BadConfig if rows of the first batch are not what indexing returns."""
        items = self.samples.items
        rows: Sequence[np.ndarray] = items.rows(indices)
        for k in () if self._compared else spread(len(indices)):
            if not same_sample(items[int(indices[k])], rows, k):
                name = type(items).__name__
                raise BadConfig(
                    f"data set {name}: rows([{indices[k]}]) and {name}[{indices[k]}] differ, but a RowSource must "
                    "return the same samples in both ways"
                )
        self._compared = self._compared or len(indices) > 0
        return rows

    def _move(self, content: Any) -> Any:
        if isinstance(content, Tensor):
            return to_device(self._cast(content), self.device)
        if isinstance(content, dict):
            moved = copy.copy(content)  # an OrderedDict or defaultdict stays one
            moved.update((k, self._move(v)) for k, v in content.items())
            return moved
        if isinstance(content, tuple) and hasattr(content, "_fields"):
            return type(content)(*(self._move(v) for v in content))
        if isinstance(content, (tuple, list)):
            return type(content)(self._move(v) for v in content)
        if hasattr(content, "to"):  # the user's own batch class
            return content.to(self.device)
        if is_dataclass(content) and not isinstance(content, type):
            twin = copy.copy(content)
            for part in fields(content):
                object.__setattr__(twin, part.name, self._move(getattr(content, part.name)))
            return twin
        return content


class IndexedBatch(Batch):
    """A mini-batch given by its sample indices; several batches of one source can be gathered at once."""

    def __init__(self, source: BatchSource, indices: Ints):
        super().__init__(None, len(indices))
        self.source, self.indices, self.random = source, indices, not source.plain

    @property
    def content(self) -> Any:
        if self._content is None:
            self._content = self.source.gather(self.indices)
            self._versions = _versions(self._content)
        return self._content

    def fresh(self) -> Any:
        """The content as it was read; the samples are read again if a step has changed a tensor of it in place."""
        if self._content is not None and _versions(self._content) != self._versions:
            self._content = None
        return self.content

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
        if same and all(b._content is not None for b in same):  # whole shards, kept from the previous step
            return tuple(torch.cat(parts) for parts in zip(*(b.fresh() for b in same), strict=True))
        return same[0].source.gather(np.concatenate([b.indices for b in same])) if same else None


def _versions(content: Any) -> list[int]:
    """How often each tensor of a batch was changed in place; comparing their values would cost as much as reading."""
    parts = content if isinstance(content, (tuple, list)) else content.values() if isinstance(content, dict) else ()
    return [part._version for part in parts if isinstance(part, Tensor)]


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

    def stack(self) -> tuple[Tensor, ...]:
        """The contents of all batches as tensors [C, B, ...], read by one call of `gather`."""
        content = self.source.gather(self.indices.reshape(-1))
        return tuple(t.unflatten(0, self.indices.shape) for t in content)


def sizes_of(batches: Sequence[Batch]) -> list[int]:
    """The numbers of samples of these batches."""
    if isinstance(batches, EvenBatches):
        return [batches.indices.shape[1]] * len(batches)
    return [b.size for b in batches]
