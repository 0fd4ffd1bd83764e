"""The parameters after each round of a run."""

from __future__ import annotations

from raylfl.python.control import Callback


class Iterates(Callback):
    """Keeps x_1, ..., x_R."""

    def __init__(self):
        self.seen = []

    def on_round_end(self, round, metrics, params):
        self.seen.append(params.double().numpy().copy())
