"""The aggregation rules of the FedAvg family: the coefficients c_i in x <- x - gamma sum_{i in R} c_i U_i.

    mean                  s_i / sum_R s_j (1/|R| if all s_i = 1)    FOCUS [1] eq. (2c)
    weighted              w_i / sum_R w_j                      McMahan 2017
    anonymous             s_i / M                              FedACS [3] eqs. (3), (18)
    anonymous_uniform     (N/M) w_i                            [3] eqs. (19), (24)
    anonymous_importance  s_i w_i / (M p_i)                    [3] eq. (20)
    full                  w_i                                  [3] eq. (21)

U_i = x - x_i: the update of client i; gamma: the server's learning rate; R: the received clients; s_i: times that
client i was drawn; M: all draws of the round; N: number of clients; w_i: importance weights, sum 1; p_i: sampling
probabilities. Each rule also gives the expectations E[c_i 1{i in R}]. From these expectations follow the weights of the
surrogate objective, which the method really minimises (`raylfl.diagnostics.surrogate`).
"""

from abc import ABC, abstractmethod
from functools import lru_cache
from typing import Annotated, Literal

import numpy as np
from torch import Tensor

from raylfl.components.options import Doc
from raylfl.core.algorithm import Info, ServerState, State, normalise
from raylfl.core.arrays import Floats
from raylfl.core.chunked_matrix import LIGHT, elementwise
from raylfl.core.draws import Law, at_least_once, exchangeable, fixed_set
from raylfl.core.population import Round, SystemInfo
from raylfl.core.reduce import weighted_sum
from raylfl.core.summing import Coefficients, Summing
from raylfl.errors import BadValue


class AggregationRule(ABC):
    """A rule for the coefficients c_i in the server step x <- x - gamma sum_{i in R} c_i U_i.

    R: the received clients; U_i: the update of client i; gamma: the server's learning rate.
    """

    @abstractmethod
    def coefficients(self, r: Round) -> Floats:
        """Coefficients c_i of the received clients, float64 [C], in the order of r.cohort.

        r: the round restricted to the C received clients (`Round.received_view`).
        """

    @abstractmethod
    def expected(self, c: SystemInfo, marginals: Floats, law: Law | None = "without_replacement") -> Floats | None:
        """Expected coefficients E[c_i 1{i in R}], [N], up to a common factor; None without a closed form.

        R: the set of the received clients. c: the system state of the round, with the failure probabilities.
        marginals: E[s_i], [N], the expected number of times that client i is drawn, whether its upload is received or
        lost. law: the law of the draws s_i; None: unknown.
        """

    def sum(self, updates: Tensor, r: Round) -> Tensor:
        """The aggregate sum_{i in R} c_i U_i [d] over the received clients R, from their updates U_i as rows."""
        return weighted_sum(updates, self.coefficients(r))


class Mean(AggregationRule):
    """The rule c_i = s_i / sum_{j in R} s_j, with s_i the times that client i was drawn and R the received clients.

    The expectation of c_i is known in four cases: R is certain before the round; clients are sampled independently;
    no upload of M draws with replacement is lost (c_i = s_i / M); clients are `exchangeable`, that is, they have equal
    expected draws and failure probabilities.
    """

    def coefficients(self, r: Round) -> Floats:
        shares: Floats = r.draws / r.draws.sum()
        return shares

    def expected(self, c: SystemInfo, marginals: Floats, law: Law | None = "without_replacement") -> Floats | None:
        received = marginals * (1.0 - c.failure)
        if law == "independent":
            return inverse_count(received)
        if law == "with_replacement" and not c.failure[marginals > 0].any():
            return marginals
        return received if fixed_set(received, law) or exchangeable(marginals, c.failure, law) else None


class Weighted(AggregationRule):
    """The rule c_i = w_i / sum_{j in R} w_j, with importance weights w_i and R the received clients.

    The expectation of c_i is known if R is certain before the round. For equal w_i it is also known in two other cases:
    clients are sampled independently; clients are `exchangeable`, that is, they have equal expected draws and failure
    probabilities.
    """

    def coefficients(self, r: Round) -> Floats:
        return normalise(r.weights)

    def expected(self, c: SystemInfo, marginals: Floats, law: Law | None = "without_replacement") -> Floats | None:
        w, received = c.population.weights, marginals * (1.0 - c.failure)
        equal = np.ptp(w) == 0
        if law == "independent" and equal:
            return inverse_count(received)
        closed_form = fixed_set(received, law) or (equal and exchangeable(marginals, c.failure, law))
        return w * received if closed_form else None


class Anonymous(AggregationRule):
    """The rule c_i = s_i / M: client i was drawn s_i times in M draws."""

    def coefficients(self, r: Round) -> Floats:
        return r.draws / r.total_draws

    def expected(self, c: SystemInfo, marginals: Floats, law: Law | None = "without_replacement") -> Floats | None:
        shares = expected_share(marginals, law)
        return None if shares is None else shares * (1.0 - c.failure)


class AnonymousUniform(AggregationRule):
    """The rule c_i = (N/M) w_i for M draws from N clients with importance weights w_i."""

    def coefficients(self, r: Round) -> Floats:
        # M, not |R|: [3] eq. (19) prints the received count, its derivation (24) uses the sampled count.
        return r.population.count / r.total_draws * r.weights

    def expected(self, c: SystemInfo, marginals: Floats, law: Law | None = "without_replacement") -> Floats | None:
        inclusion = at_least_once(marginals, law)
        shares = None if inclusion is None else expected_share(inclusion, law)
        return None if shares is None else c.population.weights * shares * (1.0 - c.failure)


class AnonymousImportance(AggregationRule):
    """The rule c_i = s_i w_i / (M p_i): client i has importance weight w_i and was drawn s_i times in M draws.

    p_i is the probability of client i in each draw.
    """

    def coefficients(self, r: Round) -> Floats:
        if not np.isfinite(r.inclusion).all():
            raise BadValue(
                "aggregate",
                got="anonymous_importance",
                need="a rule without the sampling probabilities p_i, which this participation does not have",
                hint="sample with replacement, or use weighted",
            )
        return r.draws * r.weights / (r.total_draws * r.inclusion)

    def expected(self, c: SystemInfo, marginals: Floats, law: Law | None = "without_replacement") -> Floats | None:
        return np.where(marginals > 0, c.population.weights * (1.0 - c.failure), 0.0)  # p_i cancels


class Full(AggregationRule):
    """The rule c_i = w_i, the importance weight of client i."""

    def coefficients(self, r: Round) -> Floats:
        return r.weights

    def expected(self, c: SystemInfo, marginals: Floats, law: Law | None = "without_replacement") -> Floats | None:
        inclusion = at_least_once(marginals, law)
        return None if inclusion is None else c.population.weights * inclusion * (1.0 - c.failure)


Rule = Annotated[
    Literal["mean", "weighted", "anonymous", "anonymous_uniform", "anonymous_importance", "full"],
    Doc("the weights of the received updates: [algorithms.md](algorithms.md)"),
]
RULES: dict[str, AggregationRule] = {
    "mean": Mean(),
    "weighted": Weighted(),
    "anonymous": Anonymous(),
    "anonymous_uniform": AnonymousUniform(),
    "anonymous_importance": AnonymousImportance(),
    "full": Full(),
}


class Aggregating(Summing):
    """A method whose server step uses the aggregate D = sum_{i in R} c_i U_i; default step: x <- x - gamma D.

    R: the received clients; U_i: the update of client i; c_i: its coefficient, from `rule`. The server's learning rate
    is gamma.
    """

    aggregate: Rule
    """The name of the aggregation rule: an option of the method, or a constant of its class."""
    gamma: float

    @property
    def rule(self) -> AggregationRule:
        return RULES[self.aggregate]

    def sum_coefficients(self, server: ServerState, r: Round) -> Coefficients:
        return {"update": self.rule.coefficients(r)}

    def server_step_from_sums(self, server: ServerState, sums: State, r: Round) -> tuple[ServerState, Info]:
        (x,) = elementwise(lambda x, u: (x - self.gamma * u,), server["x"], sums["update"], at_once=LIGHT)
        return {"x": x}, {}

    def expected_coefficients(
        self, c: SystemInfo, marginals: Floats, law: Law | None = "without_replacement"
    ) -> Floats | None:
        return self.rule.expected(c, marginals, law)


def expected_share(marginals: Floats, law: Law | None) -> Floats | None:
    """The expected share E[s_i / M] of each client i in the M draws of a round, [N], up to a common factor.

    marginals: E[s_i], [N], the expected number of times that client i is drawn. law: the law of the draws s_i; None:
    unknown. Returns the marginals if M is fixed, and None if nothing is known about M.
    """
    if law in (None, "at_most_once"):
        return None
    return inverse_count(marginals) if law == "independent" else marginals


def inverse_count(probabilities: Floats) -> Floats:
    """The expectations E[b_i / sum_j b_j], [N], for independent b_i ~ Bernoulli(pi_i), where 0/0 counts as 0.

    probabilities: pi [N]. If b_i = 1, the quotient is 1/(1 + k), with k the sum of the other b_j. As
    1/(1 + k) = int_0^1 t^k dt, the expectation is pi_i int_0^1 prod_{j != i} (1 - pi_j + pi_j t) dt. The integrand is a
    polynomial of degree N - 1, which N/2 Gauss-Legendre nodes integrate exactly.

    Fewer nodes suffice for many clients. Let S = sum_j pi_j and m = S + 9 sqrt(S) + 40. The sum of all b_j exceeds m
    with probability below 1e-17 (Bernstein's inequality). For k <= m, a polynomial of degree D approximates t^k on
    [0, 1] with an error of at most 2 exp(-D^2/k) (Newman & Rivlin 1976). The error of 3 sqrt(m) + 8 nodes is
    therefore below 1e-15.

    >>> inverse_count(np.array([1.0, 0.5])).tolist()  # client 0 is alone in half of the rounds
    [0.75, 0.25]
    """
    count, mean = len(probabilities), float(probabilities.sum())
    likely = min(count, mean + 9.0 * np.sqrt(mean) + 40.0)
    points, shares = _gauss_legendre(min((count + 1) // 2, int(3.0 * np.sqrt(likely)) + 8))
    total = np.zeros(count)
    for t, share in zip((points + 1.0) / 2.0, shares / 2.0, strict=True):
        logs = np.log1p(-probabilities * (1.0 - t))
        total += share * np.exp(logs.sum() - logs)
    return probabilities * total


_gauss_legendre = lru_cache(maxsize=64)(np.polynomial.legendre.leggauss)
