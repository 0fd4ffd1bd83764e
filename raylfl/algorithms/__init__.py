"""The federated methods, one paper a file; `ALGORITHMS` has them by the name that a config uses."""

from raylfl.core.algorithm import Algorithm
from raylfl.registry import Registry

ALGORITHMS: Registry[Algorithm] = Registry("algorithms", "raylfl.algorithms", lambda: Algorithm)
