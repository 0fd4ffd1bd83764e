"""FedAWARE, FedMGDA+ and FedAvgM: their server steps, and that only directions count for updates of any scale."""

import numpy as np
import pytest
import torch

from raylfl.algorithms import fedaware
from raylfl.algorithms.adaptive import FedAvgM
from raylfl.algorithms.fedaware import FedAWARE
from raylfl.algorithms.fedmgda import FedMGDA
from raylfl.algorithms.optimal_sampling import OptimalSampling
from raylfl.core.population import Population
from raylfl.testing import recorded_round
from tests.algorithms.replay import beforehand


def play(algorithm: FedAWARE, rounds: list[dict[int, list[float]]], clients: int = 2, dtype=torch.float64):
    """(server, info) after rounds of received updates, each {client: U_i}."""
    population = Population.of(np.ones(clients))
    server, info = algorithm.init_server(torch.zeros(2, dtype=dtype), population), {}
    for k, updates in enumerate(rounds):
        r = recorded_round(k, list(updates), population).received_view
        server, info = algorithm.server_step(server, {"update": torch.tensor(list(updates.values()), dtype=dtype)}, r)
    return server, info


def test_infos_have_the_weights_of_the_clients_received_so_far():
    """|m| = (1, 2): lambda = (4/5, 1/5), x = -(0.8, 0.4); chi2 = (4/5 / 1/2)^2 + (1/5 / 1/2)^2."""
    server, info = play(FedAWARE(), [{0: [1.0, 0.0], 1: [0.0, 2.0]}])
    np.testing.assert_allclose(server["x"], [-0.8, -0.4], rtol=1e-12)
    chi2 = pytest.approx(1.6**2 + 0.4**2, rel=1e-12)
    assert info == {"active": 2.0, "support": 2.0, "gap": pytest.approx(0.0, abs=1e-12), "chi2": chi2}
    # client 2 of four comes first and alone: lambda = 1 on a weight of 1/4; then lambda = (1/5, 4/5) for 0 and 2
    _, info = play(FedAWARE(), [{2: [1.0, 0.0]}], clients=4)
    assert info["chi2"] == 16.0
    _, info = play(FedAWARE(), [{2: [1.0, 0.0]}, {0: [0.0, 2.0]}], clients=4)
    assert info["chi2"] == pytest.approx(16 * (0.8**2 + 0.2**2), rel=1e-12)


@pytest.mark.parametrize(
    ("dtype", "given", "expected"),
    [(torch.float32, None, 1e-6), (torch.float64, None, 1e-12), (torch.float32, 1e-3, 1e-3), (torch.float64, 0.1, 0.1)],
)
def test_the_gap_to_stop_at_is_that_of_the_precision_unless_given(monkeypatch, dtype, given, expected):
    asked = []

    def solver(matrix, lengths, known, changed, tol, normalize):
        asked.append(tol)
        return solve(matrix, lengths, known, changed, tol, normalize)

    solve = fedaware.min_norm_working_set
    monkeypatch.setattr(fedaware, "min_norm_working_set", solver)
    algorithm, population = FedAWARE(tol=given), Population.of(np.ones(2))
    r = recorded_round(0, [0, 1], population).received_view
    server = algorithm.init_server(torch.zeros(2, dtype=dtype), population)
    algorithm.server_step(server, {"update": torch.eye(2, dtype=dtype)}, r)
    assert asked == [expected]


def test_the_first_momentum_is_the_update_and_opposite_ones_cancel_to_the_precision_of_the_run():
    server, _ = play(FedAWARE(alpha=0.3), [{0: [0.1, 1 / 3]}], dtype=torch.float32)
    assert torch.equal(server["momenta"].matrix, torch.tensor([[0.1, 1 / 3]]))
    server, _ = play(FedAWARE(), [{0: [0.3, 0.4], 1: [-0.6, -0.8]}])
    assert float(server["x"].norm()) < 1e-15
    server, _ = play(FedAWARE(), [{0: [0.3, 0.4], 1: [-0.6, -0.8]}], dtype=torch.float32)
    assert float(server["x"].norm()) < 1e-6


def test_a_momentum_of_zero_is_left_out_and_all_zero_momenta_leave_the_model_alone():
    server, info = play(FedAWARE(), [{0: [0.0, 0.0], 1: [0.0, 2.0]}])
    np.testing.assert_array_equal(server["x"], [0.0, -2.0])
    assert (info["active"], info["support"]) == (2.0, 1.0)
    server, info = play(FedAWARE(), [{0: [0.0, 0.0], 1: [0.0, 0.0]}])
    np.testing.assert_array_equal(server["x"], [0.0, 0.0])
    assert info["support"] == 0.0


def step(updates: np.ndarray, sizes: np.ndarray | None = None, **options) -> tuple[np.ndarray, dict]:
    """(x_0 - x_1, info) with gamma = 1, all uploads received."""
    population = Population.of(np.ones(len(updates)) if sizes is None else sizes, "data_size")
    r = recorded_round(0, np.arange(len(updates)), population).received_view
    server = {"x": torch.zeros(updates.shape[1], dtype=torch.float64)}
    after, info = FedMGDA(**options).server_step(server, {"update": torch.from_numpy(updates)}, r)
    return -after["x"].numpy(), info


def test_a_client_that_did_not_move_is_left_out_and_if_none_moved_the_model_stays():
    updates = np.array([[3.0, 4.0], [0.0, 0.0], [0.0, 2.0]])
    v, info = step(updates, np.array([1, 5, 3]), eps=0.0)
    np.testing.assert_allclose(v, [0.25 * 0.6, 0.25 * 0.8 + 0.75], rtol=1e-12)
    assert info["support"] == 2.0
    v, info = step(np.zeros((3, 2)))
    np.testing.assert_array_equal(v, [0.0, 0.0])
    assert info["support"] == 0.0


@pytest.mark.parametrize("nesterov", [False, True])
@pytest.mark.parametrize("seed", range(3))
def test_the_server_is_sgd_with_momentum_on_the_mean_update(seed, nesterov):
    rng = np.random.default_rng(seed)
    x = torch.from_numpy(rng.normal(size=7))
    population = Population.of(np.ones(5), "uniform")
    algorithm = FedAvgM(gamma=0.7, beta=0.9, nesterov=nesterov)
    server = algorithm.init_server(x, population)
    want = torch.nn.Parameter(x.clone())
    optimizer = torch.optim.SGD([want], lr=0.7, momentum=0.9, nesterov=nesterov)
    for k in range(6):
        received = np.sort(rng.choice(5, size=rng.integers(1, 6), replace=False))
        updates = torch.from_numpy(rng.normal(size=(len(received), 7)))
        server, _ = algorithm.server_step(
            server, {"update": updates}, recorded_round(k, received, population).received_view
        )
        want.grad = updates.mean(0)
        optimizer.step()
        torch.testing.assert_close(server["x"], want.detach(), rtol=1e-12, atol=1e-13)


COUNT, D = 4, 6
UPDATES = torch.randn(COUNT, D, generator=torch.Generator().manual_seed(0)) + 0.5
POPULATION = Population.of(np.ones(COUNT))
SCALES = [2.0**-90, 2.0**90]


def after(algorithm, scale):
    """The server state after a round of these updates, from x = 0."""
    r = recorded_round(0, np.arange(COUNT), POPULATION).received_view
    return algorithm.server_step(algorithm.init_server(torch.zeros(D), POPULATION), {"update": UPDATES * scale}, r)[0]


@pytest.mark.parametrize("scale", SCALES)
def test_fedaware_scales_with_its_updates_or_their_directions_and_fedmgda_and_sampling_do_not_change(scale):
    for method, factor in ((FedAWARE(), scale), (FedAWARE(normalize=True), 1.0), (FedMGDA(), 1.0)):
        ours, theirs = after(method, scale)["x"], after(method, 1.0)["x"]
        assert theirs.norm() > 0
        torch.testing.assert_close(ours / factor, theirs, rtol=1e-5, atol=0)
    algorithm = OptimalSampling(norms="stale")
    c = beforehand(POPULATION.weights, np.zeros(COUNT), np.ones(COUNT))
    p = algorithm.probabilities(after(algorithm, scale), c)
    np.testing.assert_allclose(p, UPDATES.norm(dim=1) / UPDATES.norm(dim=1).sum(), rtol=1e-5)
