"""Methods whose server needs only weighted sums of the uploads, so that workers can add up uploads first."""

from __future__ import annotations

from abc import abstractmethod

import numpy as np

from raylfl.core.algorithm import Algorithm, Info, ServerState, State, overrides
from raylfl.core.population import Floats, Round
from raylfl.core.reduce import weighted_sum

Coefficients = dict[str, Floats | float | tuple[str, Floats | float]]
"""Coefficients c_i of sum_{i in R} c_i upload_i by the name of the upload: [R], or one number for all clients.

A sum under a name of its own is given as a pair (name of the upload, c).
"""


class Summing(Algorithm):
    """A method whose server step is a function of weighted sums of the uploads: FedAvg and most others."""

    @abstractmethod
    def sum_coefficients(self, server: ServerState, r: Round) -> Coefficients:
        """The coefficients of the sums that the server step needs.

        It is called before the local work, with the arguments `server` and `r` of the server step.
        """

    @abstractmethod
    def server_step_from_sums(self, server: ServerState, sums: State, r: Round) -> tuple[ServerState, Info]:
        """(new server state, info) from the sums [d], which are named as in `sum_coefficients`."""

    def server_step(self, server: ServerState, uploads: State, r: Round) -> tuple[ServerState, Info]:
        terms = coefficients_of(self, server, r)
        sums = {name: weighted_sum(uploads[upload], c) for name, (upload, c) in terms.items()}
        return self.server_step_from_sums(server, sums, r)


def coefficients_of(method: Summing, server: ServerState, r: Round) -> dict[str, tuple[str, Floats]]:
    """Sum name -> (name of the upload, coefficients [R]), for all sums of a method."""
    terms = {
        name: term if isinstance(term, tuple) else (name, term)
        for name, term in method.sum_coefficients(server, r).items()
    }
    return {name: (upload, np.full(len(r.cohort), c, dtype=np.float64)) for name, (upload, c) in terms.items()}


def reads_rows(algorithm: Algorithm) -> str | None:
    """The reason why the uploads of single clients must reach the server; None: weighted sums are enough."""
    if algorithm.__class__.server_step is not Summing.server_step:
        return "the method's server step reads the uploads of single clients"
    if algorithm.samples_by_norm:
        return "the received clients are drawn after the local work"
    if overrides(algorithm, "update_clients"):
        return "the second broadcast follows from the uploads of single clients"
    return "clients work in sequence" if algorithm.topology.sequential else None
