"""A preview of the rounds of a run without training: sampled clients, received uploads and local steps."""

from __future__ import annotations

from raylfl.errors import BadConfig
from raylfl.heterogeneity.trace import Row
from raylfl.parts import Experiment
from raylfl.runtime.round.plan import Planner


def draw_rows(experiment: Experiment) -> list[Row]:
    """The rows of participation.jsonl that a run of this experiment would write.

    Raises BadConfig for a method that samples clients by the norms of their updates.
    """
    planner, algorithm = Planner(experiment), experiment.algorithm
    if algorithm.samples_by_norm:
        raise BadConfig(
            "algorithm.name: its choice of clients depends on their updates, which a trace does not compute"
        )
    import torch

    server = algorithm.init_server(torch.zeros(1), experiment.world.population)
    rows = []
    for r in range(experiment.world.rounds):
        rows.append(planner.row(planner.plan(r, server)))
    return rows
