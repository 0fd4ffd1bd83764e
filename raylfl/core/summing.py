"""Methods whose server step needs only weighted sums of the uploads.

Workers can then add up the uploads of their clients and send the sums only.
"""

from abc import abstractmethod

import numpy as np

from raylfl.core.algorithm import Algorithm, Info, ServerState, State, overrides
from raylfl.core.arrays import Floats
from raylfl.core.population import Round
from raylfl.core.reduce import weighted_sum

Coefficients = dict[str, Floats | float | tuple[str, Floats | float]]
"""Name of a sum -> the coefficients c of sum_{i in R} c_i upload_i over the received clients R.

c: an array [R], or one number for all clients. A sum has the name of its upload; a sum with another name is given as a
pair (name of the upload, c).
"""


class Summing(Algorithm):
    """A method whose server step is a function of weighted sums of the uploads, such as FedAvg."""

    @abstractmethod
    def sum_coefficients(self, server: ServerState, r: Round) -> Coefficients:
        """The coefficients of the sums that the server step needs, by the names of the sums.

        It is called before the local work, with the arguments `server` and `r` that the server step will get.
        """

    @abstractmethod
    def server_step_from_sums(self, server: ServerState, sums: State, r: Round) -> tuple[ServerState, Info]:
        """(new server state, metrics to log) of a round, from the sums [d], named as in `sum_coefficients`."""

    def server_step(self, server: ServerState, uploads: State, r: Round) -> tuple[ServerState, Info]:
        terms = coefficients_of(self, server, r)
        sums = {name: weighted_sum(uploads[upload], c) for name, (upload, c) in terms.items()}
        return self.server_step_from_sums(server, sums, r)


def coefficients_of(method: Summing, server: ServerState, r: Round) -> dict[str, tuple[str, Floats]]:
    """Name of a sum -> (name of the upload, coefficients [R] of the R received clients), for all sums of the method.

    server, r: the arguments that the server step will get.
    """
    terms = {}
    for name, term in method.sum_coefficients(server, r).items():
        upload, c = term if isinstance(term, tuple) else (name, term)
        terms[name] = upload, np.full(len(r.cohort), c, dtype=np.float64)
    return terms


def rows_reason(algorithm: Algorithm) -> str | None:
    """The reason why the server needs the uploads of single clients; None: weighted sums are enough."""
    if algorithm.__class__.server_step is not Summing.server_step:
        return "the method's server step reads the uploads of single clients"
    if algorithm.samples_by_norm:  # such as a subclass of FedAvg that keeps its server step
        return "the received clients are drawn after the local work"
    if overrides(algorithm, "update_clients"):
        return "the second broadcast follows from the uploads of single clients"
    return "clients work in sequence" if algorithm.pattern.sequential else None
