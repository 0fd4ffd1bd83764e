"""Tools to test an algorithm without Ray, files or config.

`simulate` runs any algorithm on any gradient function over recorded rounds, which `recorded_round` makes.
`check_contract` runs the checks that every algorithm must pass, on shipped classes and your own.
`pytest --raylfl-contract mine.FedCM` runs them as tests, with the checks on whole runs (`raylfl.testing.runs`).
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
