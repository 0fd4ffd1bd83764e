"""The local solver against a plain torch.optim loop, and its a-vectors against their closed forms."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from raylfl.algorithms.fedavg import FedAvg
from raylfl.core.algorithm import Work
from raylfl.core.local import run_local
from raylfl.core.local_rule import LocalRule, Schedule, a_norm, a_vector
from raylfl.core.oracle import Batch
from raylfl.testing import FunctionOracle

D = 4


def problem(seed: int):
    generator = torch.Generator().manual_seed(seed)
    noise = torch.randn(64, D, generator=generator, dtype=torch.float64)
    hessian = torch.randn(D, D, generator=generator, dtype=torch.float64)
    hessian = hessian @ hessian.T / D + torch.eye(D, dtype=torch.float64)
    return lambda client, x, r, t: hessian @ x * (1 + client) - noise[(7 * client + t) % 64]


def solve(oracle, steps, rule, lr=0.1, x0=None, method=None, clients=None, size=lambda client: 1, **options):
    """The local work of some clients, by default 0, 1, ...; size: of a client's batches."""
    clients = range(len(steps)) if clients is None else clients
    work = Work(np.array(steps, float), a_norm(steps, rule, lr), np.ones(len(steps)), lr, 7, 2, np.array(clients))
    return run_local(
        *(method or FedAvg(), oracle, lambda t, rows: [Batch((clients[k], 0, t), size(clients[k])) for k in rows]),
        *(lambda t, row: 0, {"x": torch.zeros(D, dtype=torch.float64) if x0 is None else x0}, {}, work, rule),
        **options,
    )


@settings(max_examples=30, deadline=None)
@given(
    st.integers(0, 1000),
    st.lists(st.integers(0, 6), min_size=1, max_size=5),
    st.sampled_from([0.0, 0.5, 0.9]),
    st.sampled_from([0.0, 0.1]),
    st.sampled_from([None, 0.3, 100.0]),
)
def test_every_client_takes_exactly_the_steps_of_torchs_own_sgd(seed, steps, momentum, decay, clip):
    gradient, lr = problem(seed), 0.05
    rule = LocalRule(lr, Schedule(), momentum, decay, clip)
    x0 = torch.ones(D, dtype=torch.float64)
    ours = solve(FunctionOracle(gradient, D), steps, rule, lr, x0, measure_drift=True)
    for client, count in enumerate(steps):
        drift = 0.0
        x = torch.nn.Parameter(x0.clone())
        optimizer = torch.optim.SGD([x], lr=lr, momentum=momentum, weight_decay=decay)
        for t in range(count):
            drift += float((x.detach() - x0).square().sum())
            x.grad = gradient(client, x.detach(), 0, t)
            if clip is not None:
                torch.nn.utils.clip_grad_norm_([x], clip)
            optimizer.step()
        torch.testing.assert_close(ours.uploads["update"][client], x0 - x.detach(), rtol=1e-12, atol=1e-13)
        assert ours.tally.drift[client] == pytest.approx(drift, rel=1e-10)
        if momentum and count:
            buffer = optimizer.state[x]["momentum_buffer"]
            torch.testing.assert_close(ours.moments[client], buffer, rtol=1e-12, atol=1e-13)


@pytest.mark.parametrize("steps", [1, 2, 7])
def test_a_vectors_have_their_closed_forms(steps):
    t, rho, mu, lr = np.arange(steps), 0.7, 0.4, 0.1
    np.testing.assert_allclose(a_vector(steps, LocalRule(), lr), np.ones(steps))
    momentum = a_vector(steps, LocalRule(momentum=rho), lr)
    np.testing.assert_allclose(momentum, (1 - rho ** (steps - t)) / (1 - rho))
    np.testing.assert_allclose(a_vector(steps, LocalRule(), lr, mu), (1 - lr * mu) ** (steps - 1 - t))
    schedule = Schedule("step_exponential", decay=0.9)
    np.testing.assert_allclose(a_vector(steps, LocalRule(lr_schedule=schedule), lr), 0.9**t)


@pytest.mark.parametrize("schedule", ["constant", "step_exponential", "step_sqrt", "exponential"])
@pytest.mark.parametrize("momentum", [0.0, 0.7])
@pytest.mark.parametrize("mu", [0.0, 0.4])
def test_norms_are_sums_over_the_vectors_of_each_number_of_steps(mu, momentum, schedule):
    rule, steps = LocalRule(lr_schedule=Schedule(schedule, 0.8, 2.0), momentum=momentum), [3, 0, 1, 7, 3]
    expected = [a_vector(k, rule, 0.1, mu).sum() for k in steps]
    np.testing.assert_allclose(a_norm(steps, rule, 0.1, mu), expected, rtol=1e-14)


class Workspaces(FunctionOracle):
    """An oracle that remembers its last workspace, which it holds or not."""

    def __init__(self, holds: bool):
        super().__init__(problem(0), D)
        self.last, self.holds = torch.zeros(0), holds

    def workspace(self, count):
        self.last = super().workspace(count)
        self.held = self.last if self.holds else None
        return self.last


@pytest.mark.parametrize("holds", [True, False])
def test_uploads_are_copied_only_out_of_memory_that_the_oracle_holds(holds):
    class SendsX(FedAvg):
        def finish(self, x, carry, client_state, work):
            return {"x": x}, {}

    oracle = Workspaces(holds)
    uploads = solve(oracle, [1, 1], LocalRule(), method=SendsX()).uploads
    assert torch.equal(uploads["x"], oracle.last)
    assert (uploads["x"].data_ptr() == oracle.last.data_ptr()) is not holds


class Counting(FunctionOracle):
    """An oracle in which client i has loss 10 i + t in local step t; in step 2 the loss of client 3 is not finite."""

    def gradients(self, x, batches, seeds):
        _, g = super().gradients(x, batches, seeds)
        at = [b.content for b in batches]
        return torch.tensor([np.inf if (c, t) == (3, 2) else 10.0 * c + t for c, _, t in at]), g


def test_losses_at_the_starting_points_and_random_numbers_belong_to_their_clients():
    """At unequal steps, in which the solver reorders the clients; client i has the full-batch loss 10 i - 1."""

    class SendsThem(FedAvg):
        full_gradient = True

        def finish(self, x, carry, client_state, work):
            return {"loss": carry["full_loss"], "drawn": work.uniform(x), "other": work.uniform(x, lane=1)}, {}

    def uploads(clients, steps):
        full = [Batch((i, 0, -1), 1) for i in clients]
        options = {"method": SendsThem(), "clients": clients, "full_batches": full}
        return solve(Counting(problem(0), D), steps, LocalRule(), **options).uploads

    together, alone = uploads([4, 2, 5], [1, 3, 2]), uploads([2], [3])
    assert together["loss"].tolist() == [[39.0], [19.0], [49.0]]
    assert torch.equal(together["drawn"][1:2], alone["drawn"])
    drawn = torch.cat([together["drawn"], together["other"]])
    assert (drawn >= 0).all()
    assert (drawn < 1).all()
    assert len(drawn.unique()) == drawn.numel()


@pytest.mark.parametrize("steps", [[2, 2, 2, 3], [1, 4, 0, 3], [0, 1, 2, 3], [3, 2, 1, 3]])
def test_losses_and_sample_counts_are_each_clients_own_at_unequal_steps(steps):
    """Batches of i + 1 samples and a first look at 100 of them: sums in closed form, rows as the clients were given."""
    clients = np.arange(4)
    full = [Batch((k, 0, -1), 100 + k) for k in clients]
    result = solve(Counting(problem(0), D), steps, LocalRule(), size=lambda k: k + 1, full_batches=full)
    k = np.array(steps)
    assert result.tally.gradients.tolist() == (100 + clients + k * (clients + 1)).tolist()
    finite = clients < 3
    means = np.where(k > 0, 10 * clients + (k - 1) / 2, np.nan)
    np.testing.assert_array_equal(result.tally.losses[finite], means[finite])
    assert np.isinf(result.tally.losses[3])
    lasts = np.where(k > 0, 10 * clients + k - 1.0, np.nan)
    lasts[3] = 31.0  # the last finite one
    np.testing.assert_array_equal(result.tally.last_losses, lasts)
