"""The data of a run, read from a data class: its data sets, or Lightning's data loaders."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import numpy as np
from torch.utils.data import (
    BatchSampler,
    RandomSampler,
    SequentialSampler,
    Subset,
    SubsetRandomSampler,
    default_collate,
)

from raylfl.config.components import construct
from raylfl.config.load import Config
from raylfl.config.objects import is_factory
from raylfl.config.registries import REGISTRIES
from raylfl.core.arrays import Ints
from raylfl.core.samples import SampleSet
from raylfl.core.torch_state import torch_defaults
from raylfl.data.base import DataSource
from raylfl.errors import BadConfig, placed
from raylfl.heterogeneity.partition.base import Samples
from raylfl.heterogeneity.partition.labels import with_labels

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

    samples: what a partition can use of the training samples. data: the instance, for further attributes; it is not
    sent to other processes. notes: warnings for the user. client_nodes: for each client, the custom resource of Ray
    that marks the nodes with its samples; None: every node has all samples.
    """

    train: SampleSet
    test: SampleSet | None
    val: SampleSet | None
    samples: Samples
    data: Any
    notes: list[str] = field(default_factory=list)
    client_nodes: tuple[str, ...] | None = None
    client_names: tuple[str, ...] | None = None  # the keys of `client_indices`, if the data give a mapping

    @property
    def warnings(self) -> list[str]:
        return [f"data class {type(self.data).__name__}: {note}" for note in self.notes]


def class_of(config: Config, group: str) -> Any:
    """The class of the group (`model` or `data`), or the factory or instance passed from Python. Raises BadConfig."""
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
    warnings = list(data.notes) if isinstance(data, DataSource) else []
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
    augmented, plain = getattr(data, "train_transform", None), getattr(data, "test_transform", None)
    if augmented is not None and not hasattr(data, "test_transform"):
        warnings.append(
            "train_transform is for training only, and there is no test_transform: evaluations read the inputs as they "
            "are (test_transform = None says so, test_transform = train_transform applies it)"
        )
    owners, client_names = _clients(_attribute(data, "client_indices"), name)
    nodes = _attribute(data, "client_nodes")
    samples = SampleSet.of(train, augmented, plain, collate)
    choice = getattr(config.partition, "labels", None)  # a partition of the user's may have another such option
    declares = isinstance(data, DataSource)
    with placed("partition"):
        known = with_labels(
            samples,
            owners,
            choice if isinstance(choice, (int, str)) else None,
            partial(_attribute, data),
            partial(_of_set, train),
            data.targets if declares else None,
            warnings,
        )
    return LoadedData(
        samples,
        _measured_on(data, "test", plain, warnings),
        _measured_on(data, "val", plain, warnings),
        known,
        data,
        warnings,
        tuple(map(str, nodes)) if nodes is not None else None,
        client_names,
    )


def _of_set(dataset: Any, name: str) -> Any:
    """An attribute of a data set with one entry per sample, None if there is none; of a Subset, its part of it."""
    if type(dataset) is Subset:
        whole = _of_set(dataset.dataset, name)
        return None if whole is None else np.asarray(whole)[np.asarray(dataset.indices)]
    return _attribute(dataset, name)


def _measured_on(data: Any, kind: str, transform: Any, warnings: list[str]) -> SampleSet | None:
    """The test set (kind: test) or validation set (kind: val); None if the set is not defined or empty."""
    dataset, collate = _offered(data, kind, warnings)
    return SampleSet.of(dataset, transform, None, collate) if dataset is not None and len(dataset) else None


def _offered(data: Any, kind: str, warnings: list[str]) -> tuple[Any, Collate | None]:
    """The data set and the collate function for `kind` (train, test or val), each None if it is not defined.

    The data set is `<kind>_dataset`, or else that of the DataLoader, which can also have a collate function. warnings:
    extended in place if the sampler of the training DataLoader is not used.
    """
    collate = getattr(data, "collate_fn", None)
    dataset = _attribute(data, f"{kind}_dataset")
    if dataset is None and (loader := _loader(data, kind)) is not None:
        dataset = loader.dataset
        of_loader = getattr(loader, "collate_fn", None)
        collate = collate or (None if of_loader is default_collate else of_loader)
        usual = type(getattr(loader, "sampler", None)) in (RandomSampler, SequentialSampler)
        if not usual or type(getattr(loader, "batch_sampler", None)) not in (BatchSampler, type(None)):
            dataset = _drawn_from(loader, kind, warnings)
    return dataset, collate


def _drawn_from(loader: Any, kind: str, warnings: list[str]) -> Any:
    """The data set of a DataLoader with a sampler of its own, which gives the samples of an evaluation.

    A SubsetRandomSampler restricts a training set to its indices; other samplers of training data are not used.
    """
    batches = loader.batch_sampler
    if kind != "train":
        by_batches = type(batches) not in (BatchSampler, type(None))
        return Subset(loader.dataset, [k for batch in batches for k in batch] if by_batches else list(loader.sampler))
    if type(loader.sampler) is SubsetRandomSampler:
        return Subset(loader.dataset, [int(k) for k in loader.sampler.indices])
    warnings.append("the sampler of train_dataloader is not used: local.sampling says how batches are drawn")
    return loader.dataset


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
    """Messages for those of the hooks that the data class overrides, though a run does not call them."""
    return [f"{name} is not called: {note}" for name, note in hooks.items() if _own(data, name)]


def _attribute(data: Any, name: str) -> Any:
    """The attribute of a data object, or the result of the method of this name; None if there is neither."""
    value = getattr(data, name, None)
    is_data = hasattr(value, "__getitem__") or hasattr(value, "__array__")
    return value() if callable(value) and not is_data else value


def _clients(given: Any, name: str) -> tuple[list[Ints] | None, tuple[str, ...] | None]:
    """The samples of each client and the clients' names, from `client_indices` of the data class `name`.

    given: a list of index lists, or a mapping name -> index list, such as pandas' `df.groupby("user").indices`; None:
    none.
    """
    if given is None:
        return None, None
    names = tuple(map(str, given.keys())) if hasattr(given, "keys") else None
    try:
        owners = [np.asarray(o) for o in (given if names is None else (indices for _, indices in given.items()))]
        if all(len(o) == 0 or (o.ndim == 1 and np.issubdtype(o.dtype, np.integer)) for o in owners):
            return [o.astype(np.int64) for o in owners], names
    except (TypeError, ValueError):  # no list, or lists of unequal length within an entry
        pass
    raise BadConfig(
        f"data class {name}: client_indices must be a list of index lists, one per client, or a mapping from the "
        "client's name to its index list"
    )
