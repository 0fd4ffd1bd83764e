"""Common functions of partitions: counts from proportions, owners from counts, redraws, and checks.

A label-based partition of K classes over N clients is determined by its count matrix [N, K] (samples of class c at
client i) and a shuffle of each class. A redraw therefore draws a new matrix and does not touch the data.
"""

from collections.abc import Callable, Sequence

import numpy as np

from raylfl.core.arrays import Bools, Floats, Ints
from raylfl.errors import BadValue

REDRAWS = 1000  # draws before a min_size counts as unreachable; Dir(0.1) over 100 clients takes a few tens
REDRAWN_ENTRIES = 10**8  # largest number of draws times entries of the matrix: an error comes after seconds


def equal_sizes(total: int, parts: int) -> Ints:
    """The sizes of `parts` parts of `total` samples, int64 [parts]; they differ by at most one, the larger ones first.

    >>> equal_sizes(11, 3).tolist()
    [4, 4, 3]
    """
    return total // parts + (np.arange(parts) < total % parts)


def cut(proportions: Floats, total: int) -> Ints:
    """Whole numbers near total * p_j that sum to `total`, for proportions p_1, p_2, ... with sum 1.

    Number j is floor(total * (p_1 + ... + p_j)) - floor(total * (p_1 + ... + p_{j-1})).

    >>> cut(np.array([0.25, 0.25, 0.5]), 10).tolist()
    [2, 3, 5]
    """
    ends = np.floor(np.cumsum(proportions) * total).astype(np.int64)
    ends[-1] = total  # the sum of p is 1 only up to rounding
    return np.diff(np.minimum(ends, total), prepend=0)


def grouped(codes: Ints, rng: np.random.Generator) -> Ints:
    """All sample indices 0..n-1, sorted by the samples' `codes` [n] (whole numbers) and shuffled within each code."""
    shuffled = rng.permutation(len(codes))
    return shuffled[np.argsort(codes[shuffled], kind="stable")]


def deal(counts: Ints, codes: Ints, rng: np.random.Generator) -> Ints:
    """A random owner 0..N-1 of each of n samples, int64 [n], such that client i owns counts[i, c] samples of class c.

    counts: [N, K] for N clients and K classes; column c sums to the size of class c. codes: the class 0..K-1 of each
    sample [n].
    """
    clients, classes = counts.shape
    assert np.array_equal(counts.sum(axis=0), np.bincount(codes, minlength=classes))
    owner = np.empty(len(codes), dtype=np.int64)
    owner[grouped(codes, rng)] = np.repeat(np.tile(np.arange(clients), classes), counts.T.ravel())
    return owner


def level(owner: Ints, num_clients: int, rng: np.random.Generator) -> Ints:
    """Owners of n samples [n] with client sizes that differ by at most one, after moves of random samples.

    Samples move from clients above the equal size to clients below it. owner: the owners before the moves [n], 0..N-1;
    not changed in place.
    """
    target = equal_sizes(len(owner), num_clients)
    sizes = np.bincount(owner, minlength=num_clients)
    order = grouped(owner, rng)
    rank = np.arange(len(owner)) - np.repeat(np.cumsum(sizes) - sizes, sizes)  # 0..n_i-1 within each client
    surplus = order[rank >= target[owner[order]]]
    levelled = owner.copy()
    levelled[rng.permutation(surplus)] = np.repeat(np.arange(num_clients), np.maximum(target - sizes, 0))
    return levelled


def dirichlet_counts(class_sizes: Ints, alpha: float, owned: Bools, cap: float, rng: np.random.Generator) -> Ints:
    """A count matrix [N, K] in Dirichlet proportions: the number of samples of each of K classes at each of N clients.

    The class_sizes[c] samples of class c are divided in proportions ~ Dir(alpha * 1) over the clients i with
    owned[i, c], class by class. owned: bool [N, K]. cap: a client that has this many samples gets no more, unless all
    owners of a class have reached the cap.
    """
    counts = np.zeros(owned.shape, dtype=np.int64)
    sizes = np.zeros(len(owned), dtype=np.int64)
    for c, total in enumerate(class_sizes):
        takers = np.flatnonzero(owned[:, c] & (sizes < cap))
        if not len(takers):
            takers = np.flatnonzero(owned[:, c])
        # The published code draws over all N clients and sets non-owners to 0; normalised, that is Dir(alpha) here.
        counts[takers, c] = cut(rng.dirichlet(np.full(len(takers), alpha)), int(total))
        sizes += counts[:, c]
    return counts


def redraw(draw: Callable[[], Ints], min_size: int, alpha: float) -> Ints:
    """The first matrix from repeated calls of `draw` in which every client has at least `min_size` samples.

    The matrices hold the number of samples of each client (row) and class (column). alpha: the Dirichlet concentration
    in `draw`, for the message. Raises BadValue for min_size after REDRAWS draws without success (fewer for large
    matrices).
    """
    counts = draw()
    best, redraws = 0, min(REDRAWS, max(20, REDRAWN_ENTRIES // counts.size))
    for _ in range(redraws):
        least = int(counts.sum(axis=1).min())
        if least >= min_size:
            return counts
        best, counts = max(best, least), draw()
    need = f"at most {best}, the size of the smallest client in the best of {redraws} draws"
    hint = f"or raise alpha={alpha:g}, or lower num_clients={len(counts)}"
    raise BadValue("min_size", got=min_size, need=need, hint=hint)


def owners(clients: Sequence[Ints], count: int) -> Ints:
    """The owner of each of `count` samples, int64 [count], from the clients' lists of sample indices.

    It is -1 for a sample in no list. Raises ValueError for an index that is out of range or listed twice.
    """
    indices = np.concatenate([np.asarray(listed, dtype=np.int64) for listed in clients])
    holder = np.repeat(np.arange(len(clients)), [len(c) for c in clients])
    outside = np.flatnonzero((indices < 0) | (indices >= count))
    if len(outside):
        raise ValueError(f"client {holder[outside[0]]} has {indices[outside[0]]}")
    twice = np.flatnonzero(np.bincount(indices, minlength=count) > 1)
    if len(twice):
        both = holder[indices == twice[0]]
        raise ValueError(f"{twice[0]} is listed by clients {both[0]} and {both[1]}")
    owner = np.full(count, -1, dtype=np.int64)
    owner[indices] = holder
    return owner


def check_min_size(min_size: int, total: int, num_clients: int) -> None:
    """Checks that `total` samples suffice for `min_size` samples per client; raises BadValue."""
    if min_size * num_clients > total:
        need = f"at most {total // num_clients}: {total} samples over num_clients={num_clients}"
        raise BadValue("min_size", got=min_size, need=need)
