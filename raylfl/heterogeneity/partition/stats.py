"""Statistics of a split: sizes, classes, label entropy, distance to the global label mix.

counts [N, K]: number of samples of class c at client i; p_i = counts[i] / n_i: the label mix of client i; p: the mix of
all clients together. A client without samples has no mix: its entropy and distance are nan.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from raylfl.core.population import Floats, Ints
from raylfl.heterogeneity.partition.base import Samples, Split


def class_counts(split: Split, samples: Samples) -> Ints:
    """Class counts [N, K], columns in the order of `samples.classes`. Raises BadValue for unlabelled data."""
    clients, classes = len(split.clients), samples.num_classes
    rows = np.repeat(np.arange(clients), split.sizes)
    columns = samples.codes[np.concatenate(split.clients)]
    return np.bincount(rows * classes + columns, minlength=clients * classes).reshape(clients, classes)


def label_entropy(counts: Ints) -> Floats:
    """Label entropies -sum_c p_i(c) ln p_i(c) [N], in nats: 0 for one class, ln K for equal shares.

    >>> label_entropy(np.array([[4, 0], [2, 2]])).round(3).tolist()
    [0.0, 0.693]
    """
    mix = label_mix(counts)
    entropy: Floats = -np.sum(mix * np.log(mix, out=np.zeros_like(mix), where=mix > 0), axis=1) + 0.0
    return entropy


def emd(counts: Ints) -> Floats:
    """Distances sum_c |p_i(c) - p(c)| [N] to the global label mix, from 0 to below 2.

    This is the earth mover's distance of Zhao et al. ("Federated learning with non-IID data", 2018), in which all
    labels are equally far apart. It is twice the total variation distance.

    >>> emd(np.array([[2, 2], [4, 0]])).tolist()
    [0.5, 0.5]
    """
    distance: Floats = np.abs(label_mix(counts) - counts.sum(axis=0) / counts.sum()).sum(axis=1)
    return distance


def label_mix(counts: Ints) -> Floats:
    """Label mixes p_i(c) [N, K]; rows of nan for clients without samples."""
    sizes = counts.sum(axis=1, keepdims=True)
    mix: Floats = np.divide(counts, sizes, out=np.full(counts.shape, np.nan), where=sizes > 0)
    return mix


def per_client(split: Split, samples: Samples) -> dict[str, Ints | Floats]:
    """Columns [N] by name: client, samples and, for labelled data, classes, label_entropy, emd."""
    columns: dict[str, Ints | Floats] = {"client": np.arange(len(split.clients)), "samples": split.sizes}
    if samples.labels is not None:
        counts = class_counts(split, samples)
        columns["classes"] = (counts > 0).sum(axis=1)
        columns["label_entropy"] = label_entropy(counts)
        columns["emd"] = emd(counts)
    return columns


def table(split: Split, samples: Samples) -> list[dict[str, Any]]:
    """One row per client with the columns of `per_client`, as plain numbers."""
    columns = per_client(split, samples)
    rows = zip(*(column.tolist() for column in columns.values()), strict=True)
    return [dict(zip(columns, row, strict=True)) for row in rows]


def summary(split: Split, samples: Samples) -> list[dict[str, Any]]:
    """One row per column of `per_client`: {"measure", "min", "median", "mean", "std", "max"} over the clients.

    Clients without samples count in the columns samples and classes only.
    """
    columns = per_client(split, samples)
    del columns["client"]
    return [{"measure": name, **_spread(values)} for name, values in columns.items()]


def _spread(values: Ints | Floats) -> dict[str, float]:
    known = values[~np.isnan(values)]
    low, median, high = np.quantile(known, [0.0, 0.5, 1.0]).tolist()
    return {"min": low, "median": median, "mean": float(known.mean()), "std": float(known.std()), "max": high}
