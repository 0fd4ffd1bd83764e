"""The training methods, one file for each method or family of methods; `ALGORITHMS` maps config names to them.

Symbols that the files share: x: the server's model [d]; x_i: the model of client i; f_i: its objective;
F = sum_i w_i f_i: the objective of the run, with importance weights w_i; N: clients; R: the clients whose uploads were
received in the round; K_i: local steps of client i; eta, gamma: local and server learning rate;
U_i = x - x_i: the update of client i after its local steps; c_i: coefficients of the option `aggregate`
(`raylfl.algorithms.aggregation`); |a_i|_1: the local work of client i, K_i for plain SGD
(`raylfl.core.local_rule.a_norm`); W: the mixing matrix of a method without a server. `seen`, in a shape: the number of
clients received so far.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from raylfl.registry import Registry

if TYPE_CHECKING:
    from raylfl.core.algorithm import Algorithm


def _contract() -> type[Algorithm]:
    from raylfl.core.algorithm import Algorithm  # imported late: the names alone do not need torch

    return Algorithm


ALGORITHMS: Registry[Algorithm] = Registry("algorithms", "raylfl.algorithms", _contract)
