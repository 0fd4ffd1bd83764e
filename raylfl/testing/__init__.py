"""Tools to test an algorithm without Ray, files or config.

`simulate` runs any algorithm on any gradient function over recorded rounds (`recorded_round` makes one);
`check_contract` runs the checks that every algorithm must pass, on your own class as well.
"""

from raylfl.testing.bench import ContractBroken
from raylfl.testing.contract import CHECKS, check_contract
from raylfl.testing.simulation import FunctionOracle, Simulation, recorded_round, simulate

__all__ = [
    "CHECKS",
    "ContractBroken",
    "FunctionOracle",
    "Simulation",
    "check_contract",
    "recorded_round",
    "simulate",
]
