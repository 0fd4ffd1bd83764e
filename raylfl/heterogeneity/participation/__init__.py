"""Participation, the clients sampled in each round: one process a file."""

from raylfl.heterogeneity.participation.base import (
    PARTICIPATION,
    Availability,
    Draw,
    Participation,
    Sampler,
    sample_with_replacement,
)

__all__ = ["PARTICIPATION", "Availability", "Draw", "Participation", "Sampler", "sample_with_replacement"]
