"""What each paper says of its method, as the traits that decide which options apply, which warn, what is measured."""

from __future__ import annotations

import pytest

from raylfl.core.topology import Alone, Peers, Ring, Star
from raylfl.registries import ALGORITHMS

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
    kinds = {name: type(ALGORITHMS.get(name).cls.topology) for name in ALGORITHMS.names()}
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
