"""Traits of methods against their papers: they decide which options apply, which warn, and what is measured."""

import numpy as np
import pytest
import torch

from raylfl.config.registries import ALGORITHMS
from raylfl.core.algorithm import Work
from raylfl.core.pattern import Alone, Peers, Ring, Star
from raylfl.core.population import Population
from raylfl.core.summing import rows_reason
from raylfl.testing import recorded_round

GRAPHS = {"dsgd", "dsgdm", "exact_diffusion", "extra", "gradient_tracking", "kgt", "led", "local_only", "nids"}
GRAPHS |= {"proxskip", "push_diging", "push_pull", "sgp"}
RINGS, CUT = {"sfl", "ssl"}, {"splitfed", "ssl"}
TRAITS = {
    "own_step": GRAPHS - {"dsgd", "local_only"} | {"focus", "scaffnew", "scaffold"},
    "uploads_update": set(ALGORITHMS.names()) - GRAPHS - RINGS - {"centralized", "focus"} | {"local_only"},
    "assumes_full": {"scaffnew"},
    "assumes_equal_steps": {"led", "proxskip", "scaffnew"},
    "weighs_by_work": {"fedacs", "fednova"},
    "one_step": {"exact_diffusion", "extra", "fedsgd", "gradient_tracking", "nids", "push_diging"},
    "keeps_memory": {"fedaware", "fedvarp", "mifa"},
    "biased_by_rows": {"dsgd", "dsgdm"},
}


@pytest.mark.parametrize("trait", TRAITS)
def test_a_trait_holds_for_these_methods_and_no_others(trait):
    having = {name for name in ALGORITHMS.names() if getattr(ALGORITHMS.get(name).cls, trait, False)}
    assert having == TRAITS[trait]


def test_clients_work_in_parallel_in_a_ring_alone_or_as_peers():
    kinds = {name: type(ALGORITHMS.get(name).cls.pattern) for name in ALGORITHMS.names()}
    assert {name for name, kind in kinds.items() if issubclass(kind, Peers)} == GRAPHS - {"local_only"}
    assert {name for name, kind in kinds.items() if issubclass(kind, Ring)} == RINGS
    assert {name for name, kind in kinds.items() if kind is Alone} == {"centralized"}
    traits = {kind: (kind().sequential, kind().peers) for kind in (Star, Ring, Alone, Peers)}
    assert traits == {Star: (False, False), Ring: (True, False), Alone: (True, False), Peers: (False, True)}


def test_numbers_that_no_method_has_by_itself():
    """A proximal term, a full-batch gradient, and sampling by the norms of this round's updates."""
    methods = {name: ALGORITHMS.get(name).cls() for name in ALGORITHMS.names() if name not in CUT}
    assert {name for name, method in methods.items() if method.proximal} == {"feddyn", "fedprox"}
    assert {name for name, method in methods.items() if method.full_gradient} == set()
    assert {name for name, method in methods.items() if method.samples_by_norm} == {"optimal_sampling"}
    assert ALGORITHMS.get("scaffold").cls(option=1).full_gradient


def test_mifa_and_fedaware_sample_all_clients_in_round_0_if_they_are_asked_to():
    for name, option in (("mifa", "init"), ("fedaware", "warmup")):
        method = ALGORITHMS.get(name).cls
        assert [method(**{option: "all"}).full_participation({}, r) for r in (0, 1, 2)] == [True, False, False]
        assert not method().full_participation({}, 0)


def test_sums_of_uploads_suffice_for_these_methods():
    """The others read single uploads: memories, second broadcasts, minimal norms, a chain, sampling by norms."""
    summed = {name for name in ALGORITHMS.names() if name not in CUT and not rows_reason(ALGORITHMS.get(name).cls())}
    plain = {"cafedavg", "fedacs", "fedadagrad", "fedadam", "fedau", "fedavg", "fedavgm", "feddyn", "fednova"}
    assert summed == plain | {"fedprox", "fedsgd", "fedyogi", "focus", "local_only", "scaffold"}
    assert rows_reason(ALGORITHMS.get("optimal_sampling").cls()) is not None
    assert "single clients" in str(rows_reason(ALGORITHMS.get("fedawe").cls()))


@pytest.mark.parametrize("name", ["focus", "push_pull", "gradient_tracking"])
def test_gradients_are_scaled_by_relative_weights_also_where_some_are_one(name):
    """N w_i = 1, 1/2, 3/2."""
    method, x = ALGORITHMS.get(name).cls(), torch.zeros(2)
    work = Work(np.ones(3), np.ones(3), np.array([1.0, 0.5, 1.5]), 0.1)
    population = Population(np.ones(3, dtype=np.int64), np.array([2, 1, 3]) / 6)
    server = method.init_server(x, population)
    rows = method.init_nodes(x, 3) if name != "focus" else method.init_clients(x, 3)
    carry = method.start(method.broadcast(server), rows, work)
    step, _ = method.direction(x.repeat(3, 1), torch.ones(3, 2), carry)
    assert step.tolist() == [[1.0, 1.0], [0.5, 0.5], [1.5, 1.5]]


@pytest.mark.parametrize("steps", [[0], [0, 0], [0, 3], [3, 0], [3, 3]])
@pytest.mark.parametrize("name", ["scaffold", "scaffnew"])
def test_a_client_without_a_step_keeps_its_variate_alone_or_among_others(name, steps):
    method, count = ALGORITHMS.get(name).cls(), len(steps)
    population = Population.of(np.ones(count))
    work = Work(np.array(steps, dtype=float), np.array(steps, dtype=float), np.ones(count), 0.1)
    own = {"h" if name == "scaffnew" else "variate": torch.randn(count, 2)}
    ((key, before),) = own.items()
    moved = (
        torch.tensor(steps, dtype=torch.float)[:, None]
        * torch.tensor([[0.5, 2.0]])
        * torch.arange(1, count + 1)[:, None]
    )
    server = {"x": torch.zeros(2), "c": torch.ones(2)}
    carry = {"x_start": torch.zeros(count, 2), **method.start({"x": server["x"], "c": server["c"]}, own, work)}
    uploads, after = method.finish(-moved, carry, own, work)
    if name == "scaffnew":
        r = recorded_round(0, list(range(count)), population, steps=steps, lr=0.1).received_view
        after = method.update_clients(server, uploads, own, r)
    still = torch.tensor(steps) == 0
    assert torch.equal(after[key][still], before[still])
    assert (after[key][~still] != before[~still]).all()
