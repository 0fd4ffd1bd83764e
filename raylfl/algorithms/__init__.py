"""The training methods, one file for each method or family of methods; `ALGORITHMS` maps config names to them.

Symbols that the files share, for one round; the State line of a file may define a letter otherwise for this file:

    x, d         the server's model [d] and its number of parameters
    x_i, f_i     model and objective of client i
    w_i, F       importance weight of client i (sum 1); F = sum_i w_i f_i, the objective of the run
    N, S, R      number of clients; set of the sampled clients; set of the clients whose uploads were received
    p_i, s_i, M  sampling probability of client i; times that it was drawn; M = sum_i s_i
    q_i          probability that the upload of client i is lost
    K_i          local steps of client i; K if it is the same for all clients
    |a_i|_1      local work of client i, K_i for plain SGD (`raylfl.core.local_rule.a_norm`)
    eta, gamma   local and server learning rate
    U_i          update x - x_i of client i after its local steps, from the start x
    c_i          coefficient of U_i, from the option `aggregate` (`raylfl.algorithms.aggregation`)
    W, W~        mixing matrix of a method without a server; (I + W)/2
    x, y, ...    without an index, in a method without a server: the vectors of all nodes as rows [N, d]; grad f(x) has
                 the rows grad f_i(x_i)
    seen         in a shape: the number of clients received so far
    a ~ b        a is proportional to b
    1{...}       1 if the condition holds, else 0
    exact        convergence to the minimiser of F at a constant eta, for full-batch gradients
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from raylfl.components.registry import Registry

if TYPE_CHECKING:
    from raylfl.core.algorithm import Algorithm


def _contract() -> type[Algorithm]:
    from raylfl.core.algorithm import Algorithm  # imported late: the names alone do not need torch

    return Algorithm


ALGORITHMS: Registry[Algorithm] = Registry("algorithms", "raylfl.algorithms", _contract)
