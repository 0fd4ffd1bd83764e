"""The labels of training samples, which partitions by label divide.

`partition.labels` names them: a column of the samples, or an attribute or key. Without it there must be one answer: the
`targets` of the data class, if the samples have no integer column or one that is equal to it, else the one integer
column. No name of an attribute counts more than what the samples contain.
"""

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import numpy as np
from torch import Tensor

from raylfl.core.arrays import Ints
from raylfl.core.samples import SampleSet, spread
from raylfl.errors import BadValue
from raylfl.heterogeneity.partition.base import Samples

CHUNK = 1024  # samples of a `RowSource` read at a time
MANY = 1000  # samples, above which reading all of them for their labels is reported
Attributes = Callable[[str], Any]
Key = int | str  # a column of samples that are tuples, or a key of samples that are dicts


def with_labels(
    samples: SampleSet,
    owners: list[Ints] | None,
    choice: Key | None,
    of_class: Attributes,
    of_set: Attributes,
    declared: Any,
    warnings: list[str],
) -> Samples:
    """What a partition can use of these training samples.

    owners: the sample indices of each client, None if the data define no clients. choice: `partition.labels`.
    of_class, of_set: name -> attribute of the data class, or of its data set; None if there is none. declared: the
    labels that a `DataSource` declares, None if there are none. warnings: extended in place. Labels that must be read
    sample by sample are read when a partition needs them. Raises BadValue if a choice is impossible.
    """
    search = _Search(samples, of_class, of_set, warnings)
    if choice is not None:
        return Samples(len(samples), search.chosen(choice), owners)
    if declared is not None:
        return Samples(len(samples), search.vector(declared, "targets"), owners)
    known, read = search.only()
    return Samples(len(samples), known, owners, read)


class _Search:
    """A search for the labels of `samples`."""

    def __init__(self, samples: SampleSet, of_class: Attributes, of_set: Attributes, warnings: list[str]):
        self.samples, self.of_class, self.of_set, self.warnings = samples, of_class, of_set, warnings

    def vector(self, values: Any, name: Key) -> Ints:
        """The values as labels, int64 [n]; raises BadValue unless they are one integer per sample."""
        labels = _integers(values, len(self.samples))
        if labels is None:
            array = _array(values)
            need = f"one integer label for each of the {len(self.samples)} samples, not {array.dtype} {array.shape}"
            raise BadValue("labels", got=name, need=need)
        return labels

    def chosen(self, choice: Key) -> Ints:
        """The labels that the user has named."""
        candidates = [self.of_class(choice), self.of_set(choice)] if isinstance(choice, str) else []
        candidates = [values for values in candidates if values is not None]
        if not candidates:
            columns = list(self._few([0])[0])
            if choice not in columns:
                known = ", ".join(map(str, columns)) or "there are none"
                need = f"a column of the samples ({known}), or the name of an attribute"
                raise BadValue("labels", got=choice, need=need)
            candidates = [self._column(choice)]
        vectors = [self.vector(values, choice) for values in candidates]
        if any(not np.array_equal(vectors[0], other) for other in vectors):
            need = "one thing: attributes of the data class and of its data set have this name, and they differ"
            raise BadValue("labels", got=choice, need=need)
        return vectors[0]

    def only(self) -> tuple[Ints | None, Callable[[], Ints] | None]:
        """(the labels if they are known, a function that reads them or raises BadValue if they are not)."""
        attribute = self.of_class("targets")
        targets = None if attribute is None else _integers(attribute, len(self.samples))
        if self.samples.arrays is None and targets is None:
            return None, self._read
        try:
            columns = self._integer_columns()
        except Exception:  # samples that cannot be read: the check before the run reports it
            columns = {}
        if targets is not None:
            at = spread(len(targets))
            equal = [np.array_equal(values, targets[at]) for values in columns.values()]
            if not columns or any(equal):
                return targets, None
            return None, partial(self._ambiguous, ["targets", *columns])
        if len(columns) == 1:
            return self.vector(self._column(next(iter(columns))), next(iter(columns))), None
        return None, partial(self._ambiguous, list(columns)) if columns else None

    def _read(self) -> Ints:
        columns = list(self._integer_columns())
        if len(columns) != 1:
            return self._ambiguous(columns)
        if len(self.samples) > MANY:
            self.warnings.append(
                f"column {columns[0]} of all {len(self.samples)} samples was read for its labels, one by one; "
                "partition.labels may name an attribute of the data set instead"
            )
        return self.vector(self._column(columns[0]), columns[0])

    def _ambiguous(self, names: list[Key]) -> Ints:
        if not names:
            raise Samples.unlabelled()
        need = f"one of {', '.join(map(str, names))}"
        raise BadValue("labels", got="null", need=need, hint="each of them has integers, and they differ")

    def _few(self, at: list[int]) -> list[dict[Key, Any]]:
        """The columns of these samples."""
        arrays = self.samples.arrays
        samples = self.samples.read(np.array(at)) if arrays is None else [tuple(a[k] for a in arrays) for k in at]
        return [_parts(sample) for sample in samples]

    def _integer_columns(self) -> dict[Key, Ints]:
        """Column -> its entries in a few samples, for the columns that have one integer per sample."""
        few = self._few(spread(len(self.samples)))
        columns = {key: [_integer(parts.get(key)) for parts in few] for key in few[0]}
        return {key: np.array(values, dtype=np.int64) for key, values in columns.items() if None not in values}

    def _column(self, key: Key) -> Any:
        if self.samples.arrays is not None:
            assert isinstance(key, int)
            return self.samples.arrays[key]
        everything = np.arange(len(self.samples))
        chunks = [everything[k : k + CHUNK] for k in range(0, len(everything), CHUNK)]
        if self.samples.by_index:
            return np.concatenate([self.samples.items.rows(chunk)[key] for chunk in chunks])
        return [_integer(_parts(sample).get(key)) for chunk in chunks for sample in self.samples.read(chunk)]


def _parts(sample: Any) -> dict[Key, Any]:
    if isinstance(sample, Mapping):
        return dict(sample)
    return dict(enumerate(sample)) if isinstance(sample, (tuple, list)) else {}


def _integer(value: Any) -> int | None:
    if isinstance(value, bool):
        return None
    if isinstance(value, (int, np.integer)):
        return int(value)
    if not isinstance(value, (Tensor, np.ndarray)):
        return None
    array = _array(value)
    return int(array) if array.ndim == 0 and np.issubdtype(array.dtype, np.integer) else None


def _array(values: Any) -> np.ndarray:
    """The values as an array; of dtype object if numpy has no dtype for them."""
    if isinstance(values, Tensor):
        try:
            return np.asarray(values.detach().cpu().numpy())
        except TypeError:  # such as bfloat16
            return np.empty(tuple(values.shape), dtype=object)
    return np.asarray(values)


def _integers(values: Any, count: int) -> Ints | None:
    """The values as int64 [count] if they are one integer or truth value each, else None."""
    array = _array(values)
    if array.shape == (count, 1):
        array = array[:, 0]
    fits = array.shape == (count,) and (np.issubdtype(array.dtype, np.integer) or array.dtype == bool)
    return array.astype(np.int64) if fits else None
