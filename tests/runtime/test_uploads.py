"""Uploads stay in the pieces that workers send, which server steps read without a copy of all of them."""

import weakref

import numpy as np
import pytest
import torch

from raylfl.algorithms.fedavg import FedAvg
from raylfl.algorithms.fedaware import FedAWARE
from raylfl.algorithms.fedawe import FedAWE
from raylfl.algorithms.fedmgda import FedMGDA
from raylfl.algorithms.mifa import MIFA, FedVARP
from raylfl.algorithms.optimal_sampling import OptimalSampling
from raylfl.core import chunked_matrix
from raylfl.core.chunked_matrix import ChunkedMatrix, as_matrix
from raylfl.core.population import Population
from raylfl.runtime.round import dispatch
from raylfl.runtime.round.measure import Measurements
from raylfl.testing import recorded_round
from tests.runtime.faults import carry_out
from tests.runtime.tiny import TINY


@pytest.fixture
def always(monkeypatch):
    monkeypatch.setattr(chunked_matrix, "LARGE", 0)


def test_rows_of_tasks_are_put_into_the_order_of_the_cohort():
    pieces = [torch.tensor([[0.0], [2.0]]), torch.zeros(0, 1), torch.tensor([[1.0]])]
    assert as_matrix(pieces, np.array([0, 2, 1])).tolist() == [[0.0], [1.0], [2.0]]


def refused(matrix):
    raise AssertionError("the whole matrix was made")


@pytest.mark.parametrize(
    "method",
    [
        *(FedMGDA(), MIFA(), FedVARP(), FedVARP(lost="reuse"), FedAWARE(), FedAWARE(warmup="fedavg")),
        *(FedAWE(), FedAvg(), OptimalSampling(norms="stale")),
    ],
    ids=str,
)
def test_server_steps_read_rows_where_they_are_and_never_copy_all(monkeypatch, method):
    """Three rounds, of which the last two meet clients seen before, and lost uploads."""
    population = Population(np.array([10, 20, 30, 40]), np.array([0.1, 0.2, 0.3, 0.4]))

    def servers(made):
        server, generator = method.init_server(torch.linspace(-1, 1, 11), population), torch.Generator().manual_seed(0)
        for k, cohort in enumerate([[3, 0, 2], [1, 3, 0], [0, 1, 2, 3]]):
            received = [True] * 2 + [k == 0] * (len(cohort) - 2)
            r = recorded_round(k, cohort, population, received=received)
            rows = {name: torch.randn(sum(received), 11, generator=generator) for name in ("update", "start")}
            server, _ = method.server_step(server, {name: made(own) for name, own in rows.items()}, r.received_view)
            yield server["x"]

    whole = list(servers(lambda rows: rows))
    monkeypatch.setattr(chunked_matrix, "SPAN", 0)
    monkeypatch.setattr(chunked_matrix, "NARROWEST", 3)
    monkeypatch.setattr(ChunkedMatrix, "whole", refused)
    apart = list(servers(lambda rows: ChunkedMatrix(rows.split(1))))
    assert all(map(torch.equal, apart, whole))
    assert not torch.equal(whole[0], whole[2])


def test_rows_are_let_go_before_their_metrics_are_awaited(tmp_path, monkeypatch, always):
    """Their memory is the workers', who need it for the next round."""
    made, held, stack, row = [], [], dispatch.as_matrix, Measurements._row

    def noted(*pieces):
        rows = stack(*pieces)
        made.append(weakref.ref(rows))
        assert isinstance(rows, ChunkedMatrix) or rows.shape[1] == 0
        return rows

    def counted(*of_round):
        held.append(sum(ref() is not None for ref in made))
        return row(*of_round)

    monkeypatch.setattr(dispatch, "as_matrix", noted)
    monkeypatch.setattr(Measurements, "_row", counted)
    config = {**TINY, "rounds": 3, "algorithm": {"name": "mifa"}, "eval": {"every": 1, "drift": True}}
    carry_out({**config, "runtime": {**TINY.get("runtime", {}), "vectorize": "never"}}, tmp_path / "run")
    assert len(made) >= 3
    assert held == [0, 0, 0]
