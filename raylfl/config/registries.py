"""All registries of components, by config group; importing them loads neither torch nor the registered classes."""

from typing import Any

from raylfl.algorithms import ALGORITHMS
from raylfl.components.registry import Registry
from raylfl.data import DATA
from raylfl.heterogeneity.links.base import LINKS
from raylfl.heterogeneity.participation.base import PARTICIPATION
from raylfl.heterogeneity.partition.base import PARTITIONS
from raylfl.heterogeneity.topologies.base import TOPOLOGIES
from raylfl.models import MODELS

REGISTRIES: dict[str, Registry[Any]] = {
    "algorithm": ALGORITHMS,
    "partition": PARTITIONS,
    "participation": PARTICIPATION,
    "link": LINKS,
    "topology": TOPOLOGIES,
    "model": MODELS,
    "data": DATA,
}
LOGGERS: Registry[Any] = Registry("loggers", "raylfl.runtime.records")  # `logging.loggers` is a list of names
KINDS = {registry.kind: registry for registry in (*REGISTRIES.values(), LOGGERS)}  # by heading in `raylfl list`
