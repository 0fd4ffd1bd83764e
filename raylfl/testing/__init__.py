"""Tools to test an algorithm without Ray, files or config.

`simulate` runs an algorithm on any gradient function, over rounds that `recorded_round` describes. `check_contract`
runs the checks that every algorithm must pass, shipped or your own. `pytest --raylfl-contract mine.FedCM` runs these
checks on the class `mine.FedCM` as tests, together with checks on whole runs (`raylfl.testing.runs`).
"""

from raylfl.testing.bench import ContractBroken
from raylfl.testing.contract import CHECKS, check_contract
from raylfl.testing.simulation import FunctionOracle, Simulation, recorded_round, simulate

__all__ = ["CHECKS", "ContractBroken", "FunctionOracle", "Simulation", "check_contract", "recorded_round", "simulate"]
