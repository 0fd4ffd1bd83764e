"""Participation processes, which sample the clients of each round."""

from raylfl.heterogeneity.participation.base import (
    PARTICIPATION,
    Availability,
    Draw,
    Participation,
    Sampler,
    sample_with_replacement,
)

__all__ = ["PARTICIPATION", "Availability", "Draw", "Participation", "Sampler", "sample_with_replacement"]
