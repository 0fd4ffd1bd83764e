"""FedAvg and FedSGD: local steps, then one weighted average.

McMahan et al., AISTATS 2017, Alg. 1; aggregation rules of FedACS, eqs. (18)-(21). Li & Lyu, NeurIPS 2023, Alg. 2
call it PFL (parallel federated learning). Symbols as in `raylfl.algorithms`.

State    server x [d]; clients none.
Sent     d floats down (x), d floats up (U_i).
Assumes  nothing; under partial participation, lossy links or unequal K_i it minimises the surrogate
         sum_i Omega_i f_i, Omega_i ~ E[c_i 1{i in R}] |a_i|_1 (FedACS eq. 6; |a_i|_1 = K_i for plain SGD), not F.

    client   x_i <- x_i - eta grad f_i(x_i), K_i times from x;  U_i = x - x_i
    server   x <- x - gamma sum_{i in R} c_i U_i, c_i from `aggregate`
"""

from dataclasses import dataclass
from typing import ClassVar

from raylfl.algorithms import ALGORITHMS
from raylfl.algorithms.aggregation import RULES, Aggregating, Rule
from raylfl.errors import BadValue

NORMALISED = ("mean", "weighted")  # rules whose coefficients are normalised over the received clients


@ALGORITHMS.register("fedavg", paper="McMahan et al. 2017")
@dataclass
class FedAvg(Aggregating):
    """FedAvg (PFL): local SGD, then a weighted average of the updates by one of six aggregation rules."""

    gamma: float = 1.0  # server lr
    aggregate: Rule = "mean"
    calibrate: bool = False  # FedAvg is the reference of the calibration: its eta does not change

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.calibrate and self.aggregate in NORMALISED:
            need = f"false with aggregate={self.aggregate}, which is normalised over the received clients"
            hint = f"the reference is {', '.join(rule for rule in RULES if rule not in NORMALISED)}"
            raise BadValue("calibrate", got=True, need=need, hint=hint)


@ALGORITHMS.register("fedsgd", paper="McMahan et al. 2017")
@dataclass
class FedSGD(FedAvg):
    """FedSGD: FedAvg with one local step per round, a step along the weighted average of the clients' gradients."""

    one_step: ClassVar[bool] = True
