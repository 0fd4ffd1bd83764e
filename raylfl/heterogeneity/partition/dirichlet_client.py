"""Dirichlet partition over the classes of each client: skewed labels at equal sizes.

Hsu, Qi & Brown, "Measuring the effects of non-identical data distribution for federated visual
classification", 2019.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Literal

import numpy as np

from raylfl.components.options import Gt
from raylfl.core.arrays import Floats, Ints
from raylfl.heterogeneity.partition.base import PARTITIONS, Partition, Samples
from raylfl.heterogeneity.partition.deal import cut, deal, equal_sizes, level


@PARTITIONS.register("dirichlet_client", paper="Hsu et al. 2019")
@dataclass
class DirichletClient(Partition):
    """Each client has class proportions ~ Dir(alpha * prior), and client sizes differ by at most one.

    The prior is the class proportions of the whole data. As it sums to 1, alpha is the total concentration: alpha = 1
    is skewed, alpha -> 0 gives one class per client.

    balance: how sizes become equal. `draw` (Hsu et al.): clients in random order draw from their own label mix, without
    replacement, until a class is used up; the last ones get what remains. `move` (the public code of FOCUS): each class
    is divided by the mixes, then random samples move from larger to smaller clients, which makes them more alike.
    """

    alpha: Annotated[float, Gt(0)] = 0.05  # total concentration; 0.05 as in FOCUS, Fig. 8, with 32 clients
    balance: Literal["draw", "move"] = "draw"

    def assign(self, samples: Samples, num_clients: int, rng: np.random.Generator) -> Ints:
        left = samples.class_sizes
        sizes = equal_sizes(samples.count, num_clients)
        log_mix = log_dirichlet(self.alpha * left / samples.count, num_clients, rng)
        if self.balance == "move":
            return level(deal(divided(log_mix, left), samples.codes, rng), num_clients, rng)
        counts = np.zeros((num_clients, samples.num_classes), dtype=np.int64)
        for i in rng.permutation(num_clients):
            counts[i] = draw_labels(int(sizes[i]), log_mix[i], left, rng)
            left = left - counts[i]
        return deal(counts, samples.codes, rng)


def divided(log_mix: Floats, class_sizes: Ints) -> Ints:
    """The number of samples of each class at each client, int64 [N, K], before samples move (`balance: move`).

    Client i gets the fraction p_ic / sum_j p_jc of class c, where p_ic is client i's proportion of class c. log_mix:
    log p_ic, up to a constant in each row [N, K]. class_sizes: the number of samples of each class [K].
    """
    log_share = log_mix - np.logaddexp.reduce(log_mix, axis=1, keepdims=True)
    log_share -= np.logaddexp.reduce(log_share, axis=0, keepdims=True)
    return np.stack([cut(part, int(size)) for part, size in zip(np.exp(log_share).T, class_sizes, strict=True)], axis=1)


def log_dirichlet(alpha: Floats, count: int, rng: np.random.Generator) -> Floats:
    """Logarithms of `count` draws from Dir(alpha) over K classes, up to a constant in each row: [count, K].

    alpha: the concentration of each class [K]. With 0.005 a proportion may be 10^-1000, below the smallest float, and
    still matter once the likelier classes are used up. The logarithms of the gamma variates G(a) of shape a are
    therefore drawn directly: log G(a) = log G(a + 1) + log(U) / a, U ~ U(0, 1) (Marsaglia & Tsang 2000).
    """
    shape = (count, len(alpha))
    return np.log(rng.standard_gamma(alpha + 1, shape)) - rng.standard_exponential(shape) / alpha


def draw_labels(size: int, log_mix: Floats, left: Ints, rng: np.random.Generator) -> Ints:
    """The number of samples of each of K classes [K] among `size` draws without replacement.

    log_mix: logarithms of the class proportions, up to a constant [K]. left: available samples of each class [K], at
    least `size` in total. Draws of a used-up class are repeated among the other classes; the counts have the same
    distribution as if samples were drawn one by one.
    """
    drawn = np.zeros_like(left)
    while (missing := size - int(drawn.sum())) > 0:  # every pass except the last uses up a class
        rest = np.flatnonzero(drawn < left)
        mix = np.exp(log_mix[rest] - log_mix[rest].max())
        drawn[rest] += rng.multinomial(missing, mix / mix.sum())
        drawn = np.minimum(drawn, left)
    return drawn
