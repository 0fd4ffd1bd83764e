"""Probability laws of a round's draws s_i (how often client i is drawn), and probabilities that follow from them.

The expected draws E[s_i] alone do not determine the expected coefficients of an aggregation rule. For example, N draws
with replacement from N clients with equal probabilities have E[s_i] = 1. Full participation has E[s_i] = 1 too, but its
cohort is not random.
"""

from typing import Literal

import numpy as np

from raylfl.core.arrays import Floats

Law = Literal["independent", "with_replacement", "without_replacement", "at_most_once"]
"""The law of the draws s_i of the clients i in a round.

independent: s_i is 0 or 1, independently of the other clients, so that the number of draws M is random.
with_replacement: M i.i.d. draws, M fixed. without_replacement: M distinct clients, M fixed, all sets equally likely.
at_most_once: s_i is 0 or 1; M and the dependence between clients are unknown.
"""


def at_least_once(marginals: Floats, law: Law | None) -> Floats | None:
    """The probability that client i is drawn at least once in a round [N]; None if the law is unknown (None).

    marginals: E[s_i], [N]. The probability is 1 - (1 - p_i)^M for M draws with replacement with probabilities p_i
    (FOCUS, Assumption 1, Case 3), and E[s_i] for the other laws.

    >>> at_least_once(np.array([1.0, 1.0]), "with_replacement").tolist()
    [0.75, 0.75]
    """
    if law != "with_replacement" or not marginals.any():
        return None if law is None else marginals
    size = marginals.sum()  # M, as the p_i have sum 1
    return np.asarray(1.0 - (1.0 - marginals / size) ** size)


def fixed_set(received: Floats, law: Law | None) -> bool:
    """Whether it is certain which clients are received; False for draws with replacement or of an unknown law.

    received: the expected number of received draws of each client [N].
    """
    return law not in (None, "with_replacement") and bool(np.all((received == 0) | (received == 1)))


def exchangeable(marginals: Floats, failure: Floats, law: Law | None) -> bool:
    """Whether the joint law of draws and losses stays the same if clients are permuted.

    That is, all clients have the same expected draws (marginals [N]) and failure probability (failure [N]), and the law
    is known and not `at_most_once`.
    """
    return law not in (None, "at_most_once") and bool(np.ptp(marginals) == 0 and np.ptp(failure) == 0)
