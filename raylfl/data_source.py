"""The data of a run, read from a data class: its data sets, or Lightning's data loaders."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch

from raylfl.config.components import construct
from raylfl.config.load import Config
from raylfl.config.objects import is_factory
from raylfl.core.arrays import Ints
from raylfl.core.samples import SampleSet, as_array
from raylfl.core.torch_state import torch_defaults
from raylfl.errors import BadConfig
from raylfl.registries import REGISTRIES

Collate = Callable[[list[Any]], Any]

LIGHTNING = ("lightning.", "pytorch_lightning.")  # two packages with the same classes
# LightningDataModule's hooks that a run does not call. Overriding a hook in REFUSED is an error: without it, batches
# would be other data than the class intends. Overriding a hook in IGNORED gives a warning.
REFUSED = {
    "on_before_batch_transfer": "use train_transform or collate_fn",
    "transfer_batch_to_device": "use collate_fn; a batch object may have a method `to`",
    "on_after_batch_transfer": "use train_transform",
}
IGNORED = {
    "teardown": "the data live as long as the run's process",
    "predict_dataloader": "a run predicts nothing",
    "state_dict": "every run and every resume creates the data again",
    "load_state_dict": "every run and every resume creates the data again",
    "on_exception": "an error ends the run",
}


@dataclass(frozen=True)
class LoadedData:
    """The data of a run, as read from an instance of a data class.

    labels: labels of the training samples [n]; None: unlabelled. client_indices: the indices of the training samples of
    each client; None: the data define no clients. data: the instance, for further attributes; it is not sent to other
    processes. client_nodes: for each client, the custom resource of Ray that marks the nodes with its samples; None:
    every node has all samples.
    """

    train: SampleSet
    test: SampleSet | None
    val: SampleSet | None
    labels: Ints | None
    client_indices: list[Ints] | None
    data: Any
    warnings: list[str] = field(default_factory=list)
    client_nodes: tuple[str, ...] | None = None


def class_of(config: Config, group: str) -> Any:
    """The class of the model or the data; if an object was passed from Python instead of a class, that object.

    The object is a factory function or an instance. group: `model` or `data`. Raises BadConfig if the class cannot be
    imported.
    """
    component = getattr(config, group)
    if component.target is not None:
        return component.target
    with torch_defaults():  # undoes torch settings that the class's file makes on import
        return REGISTRIES[group].find(vars(component), group)


def makes(given: Any) -> bool:
    """Whether a call of the object creates the model or the data: true for a class or factory, not for an instance."""
    return isinstance(given, type) or is_factory(given)


def load_data(config: Config) -> LoadedData:
    """Creates and reads the data that the group `data` of a config selects. Raises BadConfig for unusable data."""
    cls = class_of(config, "data")
    data = construct(cls, config.data.init_args, "data") if makes(cls) else cls
    name = type(data).__name__
    warnings: list[str] = []
    if hasattr(data, "prepare_data") and hasattr(data, "setup"):  # a LightningDataModule
        if refused := _uncalled(data, REFUSED):
            raise BadConfig([f"data class {name}: {line}" for line in refused])
        warnings += _uncalled(data, IGNORED)
        data.prepare_data()
        data.setup("fit")
    train, collate = _offered(data, "train", warnings)
    if train is None:
        raise BadConfig(f"data class {name} has no train_dataset (an attribute or a method) or train_dataloader")
    if not hasattr(train, "__len__"):
        raise BadConfig(f"data class {name}: train_dataset must be map-style, with len() and indexing")
    if not len(train):
        raise BadConfig(f"data class {name}: train_dataset has no samples")
    augmented = getattr(data, "train_transform", None)
    plain = getattr(data, "test_transform", None) or augmented
    targets = _attribute(data, "targets")
    owners = _attribute(data, "client_indices")
    nodes = _attribute(data, "client_nodes")
    return LoadedData(
        SampleSet.of(train, augmented, plain, collate),
        _measured_on(data, "test", plain, warnings),
        _measured_on(data, "val", plain, warnings),
        labels_of(train) if targets is None else _labels(targets, len(train), name),
        [np.asarray(o, dtype=np.int64) for o in owners] if owners is not None else None,
        data,
        [f"data class {name}: {line}" for line in warnings],
        tuple(map(str, nodes)) if nodes is not None else None,
    )


def _measured_on(data: Any, kind: str, transform: Any, warnings: list[str]) -> SampleSet | None:
    """The test set (kind: test) or validation set (kind: val); None if the set is not defined or empty.

    transform: applied to the inputs. data, warnings: as in `_offered`.
    """
    dataset, collate = _offered(data, kind, warnings)
    return SampleSet.of(dataset, transform, None, collate) if dataset is not None and len(dataset) else None


def _offered(data: Any, kind: str, warnings: list[str]) -> tuple[Any, Collate | None]:
    """Returns the data set and the collate function for `kind` (train, test or val), each None if it is not defined.

    The data set is `<kind>_dataset`, or else the data set of the DataLoader that `<kind>_dataloader` returns. The
    collate function is `collate_fn`; a data set from a DataLoader can also have the DataLoader's collate function.
    warnings: extended in place if the training DataLoader has its own sampler, because this sampler is not used.
    """
    collate = getattr(data, "collate_fn", None)
    dataset = _attribute(data, f"{kind}_dataset")
    if dataset is None and (loader := _loader(data, kind)) is not None:
        dataset = loader.dataset
        collate = collate or _own_collate(loader)
        if kind == "train" and _draws_its_own_way(loader):
            warnings.append("the sampler of train_dataloader is not used: local.sampling says how batches are drawn")
    return dataset, collate


def _loader(data: Any, kind: str) -> Any:
    """The DataLoader of this kind (train, test or val), None if there is none. Raises BadConfig for several."""
    if not _own(data, f"{kind}_dataloader"):
        return None
    if kind == "test" and hasattr(data, "setup"):
        data.setup("test")
    loader = getattr(data, f"{kind}_dataloader")()
    if isinstance(loader, (list, tuple)) and len(loader) == 1:
        loader = loader[0]
    if loader is not None and not hasattr(loader, "dataset"):
        name = f"{type(data).__name__}.{kind}_dataloader"
        raise BadConfig(f"data class {name} must return one DataLoader, not {type(loader).__name__}")
    return loader


def _own(data: Any, name: str) -> bool:
    """Whether a data object has this method and does not inherit it from LightningDataModule."""
    method = getattr(data, name, None)
    return method is not None and (name in vars(data) or not method.__module__.startswith(LIGHTNING))


def _uncalled(data: Any, hooks: Mapping[str, str]) -> list[str]:
    """Messages for those of the hooks that the data class overrides, though a run does not call them.

    hooks: name of the hook -> second half of its message.
    """
    return [f"{name} is not called: {note}" for name, note in hooks.items() if _own(data, name)]


def _own_collate(loader: Any) -> Collate | None:
    from torch.utils.data import default_collate

    collate = getattr(loader, "collate_fn", None)
    return None if collate is default_collate else collate


def _draws_its_own_way(loader: Any) -> bool:
    """Whether a DataLoader has a custom sampler or batch sampler, not only the option `shuffle`."""
    from torch.utils.data import BatchSampler, RandomSampler, SequentialSampler

    usual = type(getattr(loader, "sampler", None)) in (RandomSampler, SequentialSampler)
    return not usual or type(getattr(loader, "batch_sampler", None)) is not BatchSampler


def _attribute(data: Any, name: str) -> Any:
    """The attribute of a data object, or the result of the method of this name; None if there is neither."""
    value = getattr(data, name, None)
    is_data = hasattr(value, "__getitem__") or hasattr(value, "__array__")
    return value() if callable(value) and not is_data else value


def _labels(targets: Any, count: int, name: str) -> Ints:
    """The labels in `targets` of the data class `name`, int64 [count].

    Raises BadConfig unless `targets` has one integer for each of the `count` training samples.
    """
    labels = as_array(targets) if isinstance(targets, torch.Tensor) else np.asarray(targets)
    if labels.shape != (count,) or not np.issubdtype(labels.dtype, np.integer):
        raise BadConfig(
            f"data class {name}: targets is {labels.dtype} {labels.shape}, but must be one integer label for each of "
            f"the {count} samples of train_dataset; leave it out for data without labels"
        )
    return labels.astype(np.int64)


def labels_of(dataset: Any) -> Ints | None:
    """The labels of the samples, int64 [n]; None if there are no integer labels.

    The labels are the data set's `targets`, or the second tensor of a TensorDataset. For a Subset, they are selected
    from the labels of the whole data set.
    """
    if hasattr(dataset, "indices") and hasattr(dataset, "dataset"):
        whole = labels_of(dataset.dataset)
        return None if whole is None else whole[np.asarray(dataset.indices)]
    targets = getattr(dataset, "targets", None)
    if targets is None and hasattr(dataset, "tensors") and len(dataset.tensors) > 1:
        targets = dataset.tensors[1]
    if targets is None:
        return None
    array = as_array(targets) if isinstance(targets, torch.Tensor) else np.asarray(targets)
    return array.astype(np.int64) if array.ndim == 1 and np.issubdtype(array.dtype, np.integer) else None
