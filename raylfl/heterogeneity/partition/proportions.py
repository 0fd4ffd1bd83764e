"""Partitions by sizes or class proportions, equal ones or Dirichlet draws.

iid: the same label distribution and equal sizes. quantity: the same label distribution, but unequal sizes (Li et al.,
ICDE 2022). dirichlet: each class over the clients, skewed labels and, as a consequence, sizes (Yurochkin et al.,
"Bayesian nonparametric federated learning of neural networks", ICML 2019). dirichlet_client: the classes of each
client, skewed labels at equal sizes (Hsu, Qi & Brown, "Measuring the effects of non-identical data distribution for
federated visual classification", 2019).
"""

from dataclasses import dataclass
from functools import partial
from typing import Annotated, Literal

import numpy as np

from raylfl.components.options import Ge, Gt
from raylfl.core.arrays import Floats, Ints
from raylfl.heterogeneity.partition.base import PARTITIONS, Partition, Samples
from raylfl.heterogeneity.partition.deal import check_min_size, cut, deal, dirichlet_counts, equal_sizes, level, redraw


@PARTITIONS.register("iid")
@dataclass
class Iid(Partition):
    """Random samples for each client; the numbers of samples differ by at most one."""

    def assign(self, samples: Samples, num_clients: int, rng: np.random.Generator) -> Ints:
        return rng.permutation(np.repeat(np.arange(num_clients), equal_sizes(samples.count, num_clients)))


@PARTITIONS.register("quantity", paper="Li et al. 2022")
@dataclass
class Quantity(Partition):
    """Random samples for each client, in Dirichlet proportions: client i gets n_i of the n samples.

    Each of the N clients first gets one sample: no client is without data. The other n - N samples are divided in
    proportions p ~ Dir(alpha * 1_N):
    E[n_i] = n/N, Var[n_i] = (n - N)^2 (1/N) (1 - 1/N) / (N alpha + 1).
    """

    alpha: Annotated[float, Gt(0)] = 0.5  # concentration of the sizes; 0.5 as in Li et al. 2022

    def assign(self, samples: Samples, num_clients: int, rng: np.random.Generator) -> Ints:
        proportions = rng.dirichlet(np.full(num_clients, self.alpha))
        sizes = 1 + cut(proportions, samples.count - num_clients)
        return rng.permutation(np.repeat(np.arange(num_clients), sizes))


@PARTITIONS.register("dirichlet", paper="Yurochkin et al. 2019")
@dataclass
class Dirichlet(Partition):
    """Each class is divided over the N clients in proportions p ~ Dir(alpha * 1_N).

    alpha: concentration; if small, few clients hold most of a class. E[sum_i p_i^2] = (alpha + 1) / (N alpha + 1).
    min_size: the partition is redrawn until every client has this many samples; 0 allows clients without samples.
    balance: `none` keeps the sizes as drawn. With `cap`, a client with n/N samples or more (n samples of all clients)
    gets no further class, as in the paper's published code. With `equal`, random samples move from larger to smaller
    clients after a single draw, until sizes differ by at most one.
    """

    alpha: Annotated[float, Gt(0)] = 0.1  # as in FedACS and FedAWARE; FedACS also has 0.05, 0.2, 0.35
    min_size: Annotated[int, Ge(0)] = 10
    balance: Literal["none", "cap", "equal"] = "none"

    def assign(self, samples: Samples, num_clients: int, rng: np.random.Generator) -> Ints:
        cap = samples.count / num_clients if self.balance == "cap" else np.inf
        everyone = np.ones((num_clients, samples.num_classes), dtype=bool)
        draw = partial(dirichlet_counts, samples.class_sizes, self.alpha, everyone, cap, rng)
        check_min_size(self.min_size, samples.count, num_clients)
        if self.balance == "equal":  # no redraws are needed: all sizes become n/N
            return level(deal(draw(), samples.codes, rng), num_clients, rng)
        return deal(redraw(draw, self.min_size, self.alpha), samples.codes, rng)


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
