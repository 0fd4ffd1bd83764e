"""A recorded round, and random ones: unequal K_i, lost uploads, rounds without a received upload."""

from dataclasses import dataclass

import numpy as np


@dataclass
class Round:
    """A record of round r; `draws`, `received`, `steps` align with `cohort`.

    index: r. cohort: S_r, distinct ids, in the order in which sfl visits them. draws: s_i. received: i in
    R_r. steps: K_i. lr: eta of the round. q: failure probabilities over all N; p: sampling probabilities over
    all N. steps_all: K_i over all N, for quantities over all clients (fednova `sent`, calibration, fresh norms,
    centralized); it agrees with `steps` on the cohort.
    """

    index: int
    cohort: list[int]
    draws: list[int]
    received: list[bool]
    steps: list[int]
    lr: float
    q: list[float] | None = None
    p: list[float] | None = None
    steps_all: list[int] | None = None

    @property
    def arrived(self) -> list[int]:
        """R_r, in cohort order."""
        return [i for i, here in zip(self.cohort, self.received, strict=True) if here]

    @property
    def lost(self) -> list[int]:
        """S_r minus R_r, in cohort order."""
        return [i for i, here in zip(self.cohort, self.received, strict=True) if not here]

    @property
    def total_draws(self) -> int:
        """M = sum of s_i over all sampled clients."""
        return sum(self.draws)

    def draws_of(self, i: int) -> int:
        """s_i of a client of the cohort."""
        return self.draws[self.cohort.index(i)]

    def steps_of(self, i: int) -> int:
        """K_i; of a client outside the cohort it is known only from `steps_all`."""
        if i in self.cohort:
            return self.steps[self.cohort.index(i)]
        assert self.steps_all is not None, "steps_all says what a client outside the cohort would do"
        return self.steps_all[i]


def random_rounds(
    seed: int,
    count: int,
    clients: int,
    *,
    size: int | None = None,
    with_replacement: bool = False,
) -> list[Round]:
    """`count` rounds over `clients` clients: q_i ~ U(0, 0.5), K_i uniform in 1..5, eta_r = 0.05 * 0.97^r.

    size: M, drawn uniformly in 1..N each round if None. Without replacement: M distinct clients in random
    order, s_i = 1, p_i = 1/N. With: M draws from a random p, the distinct clients in order of their first
    draw. One round in the middle loses every upload, whatever q.
    """
    rng = np.random.default_rng(seed)
    rounds = []
    for r in range(count):
        m = size if size is not None else int(rng.integers(1, clients + 1))
        p = rng.dirichlet(np.full(clients, 3.0)) if with_replacement else np.full(clients, 1 / clients)
        drawn = rng.choice(clients, m, replace=with_replacement, p=p).tolist()
        cohort = list(dict.fromkeys(drawn))
        q, steps = rng.uniform(0.0, 0.5, clients), rng.integers(1, 6, clients)
        arrives = rng.random(clients) >= q
        if r == count // 2:
            arrives[:] = False
        draws, received = [drawn.count(i) for i in cohort], [bool(arrives[i]) for i in cohort]
        taken, eta = [int(steps[i]) for i in cohort], 0.05 * 0.97**r
        rounds.append(Round(r, cohort, draws, received, taken, eta, q.tolist(), p.tolist(), steps.tolist()))
    return rounds


def full_rounds(count: int, clients: int, *, steps: int = 1, lr: float = 0.05) -> list[Round]:
    """Rounds with all clients, perfect links, and the same K and eta."""
    everyone, same = list(range(clients)), [steps] * clients
    return [
        Round(r, everyone, [1] * clients, [True] * clients, same, lr, [0.0] * clients, [1 / clients] * clients, same)
        for r in range(count)
    ]
