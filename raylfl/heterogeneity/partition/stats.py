"""Statistics of a split: sizes, classes, label entropy, distance to the global label distribution.

They follow from `counts` [N, K], the number of samples of each of K classes at each of N clients. The label entropy and
the distance of a client without samples are nan.
"""

from typing import Any

import numpy as np

from raylfl.core.arrays import Floats, Ints
from raylfl.heterogeneity.partition.base import Samples, Split


def class_counts(split: Split, samples: Samples) -> Ints:
    """The number of samples of each of K classes at each of N clients, int64 [N, K].

    Columns are in the order of `samples.classes`. Raises BadValue for unlabelled data.
    """
    clients, classes = len(split.clients), samples.num_classes
    rows = np.repeat(np.arange(clients), split.sizes)
    columns = samples.codes[np.concatenate(split.clients)]
    return np.bincount(rows * classes + columns, minlength=clients * classes).reshape(clients, classes)


def label_entropy(counts: Ints) -> Floats:
    """The label entropy -sum_c p_i(c) ln p_i(c) of each of N clients [N], in nats; nan for clients without samples.

    counts: the number of samples of each of K classes c at each of N clients i [N, K]. p_i(c) is the share of class c
    in client i's samples. The entropy is 0 for one class and ln K for equal shares of all K classes.

    >>> label_entropy(np.array([[4, 0], [2, 2]])).round(3).tolist()
    [0.0, 0.693]
    """
    mix = label_mix(counts)
    entropy: Floats = -np.sum(mix * np.log(mix, out=np.zeros_like(mix), where=mix > 0), axis=1) + 0.0
    return entropy


def emd(counts: Ints) -> Floats:
    """The distance sum_c |p_i(c) - p(c)| of each of N clients to the global label distribution [N], from 0 to below 2.

    counts: the number of samples of each of K classes c at each of N clients i [N, K]. p_i(c) and p(c) are the shares
    of class c in client i's samples and in all samples. This is the earth mover's distance of Zhao et al. ("Federated
    learning with non-IID data", 2018), in which all labels are equally far apart. It is twice the total variation
    distance; nan for clients without samples.

    >>> emd(np.array([[2, 2], [4, 0]])).tolist()
    [0.5, 0.5]
    """
    distance: Floats = np.abs(label_mix(counts) - counts.sum(axis=0) / counts.sum()).sum(axis=1)
    return distance


def label_mix(counts: Ints) -> Floats:
    """The share of each of K classes in each of N clients' samples [N, K]; rows of nan for clients without samples.

    counts: [N, K], samples of class c at client i.
    """
    sizes = counts.sum(axis=1, keepdims=True)
    mix: Floats = np.divide(counts, sizes, out=np.full(counts.shape, np.nan), where=sizes > 0)
    return mix


def per_client(split: Split, samples: Samples) -> dict[str, Ints | Floats]:
    """Statistics of the N clients, arrays [N] by name.

    They are client (its id), samples and, for labelled data, classes, `label_entropy` and `emd`.
    """
    columns: dict[str, Ints | Floats] = {"client": np.arange(len(split.clients)), "samples": split.sizes}
    if samples.labels is not None:
        counts = class_counts(split, samples)
        columns["classes"] = (counts > 0).sum(axis=1)
        columns["label_entropy"] = label_entropy(counts)
        columns["emd"] = emd(counts)
    return columns


def table(split: Split, samples: Samples) -> list[dict[str, Any]]:
    """One row per client with the statistics of `per_client`, as plain numbers."""
    columns = per_client(split, samples)
    rows = zip(*(column.tolist() for column in columns.values()), strict=True)
    return [dict(zip(columns, row, strict=True)) for row in rows]


def summary(split: Split, samples: Samples) -> list[dict[str, Any]]:
    """One row per statistic of `per_client`: {"measure", "min", "median", "mean", "std", "max"} over the clients.

    `label_entropy` and `emd` are summarised over clients with samples only. The standard deviation of n values has the
    divisor n, not n - 1.
    """
    columns = per_client(split, samples)
    del columns["client"]
    return [{"measure": name, **_spread(values)} for name, values in columns.items()]


def _spread(values: Ints | Floats) -> dict[str, float]:
    known = values[~np.isnan(values)]
    low, median, high = np.quantile(known, [0.0, 0.5, 1.0]).tolist()
    return {"min": low, "median": median, "mean": float(known.mean()), "std": float(known.std()), "max": high}
