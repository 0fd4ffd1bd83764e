"""Pairs of algorithms that must coincide, on random problems and rounds.

Each pair states the rounds in which it holds: bit for bit if both do the same operations, otherwise to rounding.
"""

import itertools
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from raylfl.algorithms.adaptive import FedAdagrad, FedAvgM
from raylfl.algorithms.aggregation import RULES
from raylfl.algorithms.cafedavg import CAFedAvg
from raylfl.algorithms.centralized import Centralized, LocalOnly
from raylfl.algorithms.fedau import FedAU
from raylfl.algorithms.fedavg import FedAvg, FedSGD
from raylfl.algorithms.fedaware import FedAWARE
from raylfl.algorithms.fedawe import FedAWE
from raylfl.algorithms.feddyn import FedDyn
from raylfl.algorithms.fednova import FedNova
from raylfl.algorithms.fedprox import FedProx
from raylfl.algorithms.focus import Focus
from raylfl.algorithms.mifa import MIFA, FedVARP
from raylfl.algorithms.scaffnew import Scaffnew
from raylfl.algorithms.scaffold import Scaffold
from raylfl.algorithms.sfl import SFL
from raylfl.algorithms.split import SSL, SplitFed
from raylfl.core.algorithm import Algorithm
from tests.algorithms.worlds import D, RunContext, constant_rate, world

FAR = 1e8  # a tau far above any update


@dataclass(frozen=True)
class Twins:
    """Two algorithms that coincide in these worlds."""

    one: Algorithm
    other: Algorithm
    world: Callable[[int], RunContext]
    tolerance: float = 1e-11  # 0: the same bits


full, lossless = partial(world, full=True), partial(world, lossless=True)


def calm(seed: int) -> RunContext:
    """Full participation of four clients with one step of full-batch gradients, at a constant rate."""
    return constant_rate(world(seed, full=True, steps=1, noise=0.0, clients=4))


TWINS = {
    "FedProx without a spring is FedAvg": Twins(FedProx(mu=0.0), FedAvg(), world, 0),
    "FedAvgM without momentum is FedAvg": Twins(FedAvgM(gamma=0.7, beta=0.0), FedAvg(gamma=0.7), world),
    "Adagrad far from adapting is FedAvg": Twins(FedAdagrad(gamma=2 * FAR, tau=FAR), FedAvg(), world),
    "and with b1 FedAvgM": Twins(FedAdagrad(gamma=2 * FAR / (1 - 0.6), b1=0.6, tau=FAR), FedAvgM(beta=0.6), world),
    "FedNova with equal K is FedAvg by weight": Twins(FedNova(), FedAvg(aggregate="weighted"), partial(world, steps=3)),
    "MIFA under full participation is FedAvg": Twins(MIFA(gamma=0.7), FedAvg(gamma=0.7), full),
    "FedVARP under full participation is FedAvg": Twins(FedVARP(gamma=0.7), FedAvg(gamma=0.7), full),
    "FedVARP that loses nothing has nothing to reuse": Twins(
        FedVARP(lost="reuse"), FedAvg(aggregate="anonymous"), lossless
    ),
    "FedAU under full participation is FedAvg": Twins(FedAU(gamma=0.7), FedAvg(gamma=0.7), full),
    "FedAWE under full participation is FedAvg": Twins(FedAWE(gamma=0.7), FedAvg(gamma=0.7), full),
    "c-a-FedAvg over perfect links is FedAvg": Twins(CAFedAvg(), FedAvg(aggregate="anonymous"), lossless),
    "SFL of one client a round is FedAvg": Twins(SFL(gamma=0.7), FedAvg(gamma=0.7), partial(world, size=1)),
    "SSL is SFL": Twins(SSL(cut="layer", gamma=0.7), SFL(gamma=0.7), world, 0),
    "SplitFed is FedAvg": Twins(SplitFed(cut="layer", gamma=0.7), FedAvg(gamma=0.7), world, 0),
    "SCAFFOLD's first round is FedAvg's": Twins(
        Scaffold(gamma=0.7), FedAvg(gamma=0.7), partial(world, count=1, draws=False)
    ),
    "SCAFFOLD with equal K is Scaffnew": Twins(Scaffold(), Scaffnew(), partial(world, full=True, steps=3)),
    "Scaffnew with one step is FedSGD": Twins(Scaffnew(), FedSGD(), partial(world, full=True, steps=1)),
    "local training's first round is FedAvg's": Twins(LocalOnly(), FedAvg(aggregate="full"), partial(world, count=1)),
    # FOCUS steps by eta along N grad F; eta / N here against eta there
    "FOCUS with one step descends on N F": Twins(Focus(gamma=0.02), FedAvg(gamma=1.6, aggregate="full"), calm),
    "and so does training on all data": Twins(Focus(gamma=0.05 / 4), Centralized(), calm),
}


@pytest.mark.parametrize("pair", TWINS)
@settings(max_examples=4, deadline=None)
@given(seed=st.integers(0, 10**6))
def test_they_coincide(pair: str, seed: int):
    twins = TWINS[pair]
    here = twins.world(seed)
    torch.testing.assert_close(
        here.models(twins.one), here.models(twins.other), rtol=twins.tolerance, atol=twins.tolerance
    )


@pytest.mark.parametrize("pair", TWINS)
def test_they_do_not_stand_still(pair: str):
    """A pair that never moves would coincide trivially."""
    x = TWINS[pair].world(3).models(TWINS[pair].one)
    assert (x[-1] - torch.linspace(-1, 2, D, dtype=torch.float64)).norm() > 1e-3


def test_these_worlds_tell_methods_apart():
    """Methods that need not coincide do not."""
    methods = [
        *(FedAvg(aggregate=rule) for rule in RULES),
        *(FedAvgM(), FedProx(mu=1.0), FedNova(), MIFA(), FedVARP(), FedAU(), FedAWE(), FedAWARE(), CAFedAvg()),
        *(Scaffold(), Scaffold(option=1), Scaffnew(), FedDyn(alpha=0.5), Focus(), SFL(), LocalOnly()),
        *(FedAdagrad(), Centralized(), FedSGD(), FedVARP(lost="reuse")),
    ]
    last = [world(3).models(method)[-1] for method in methods]
    for (a, x), (b, y) in itertools.combinations(zip(methods, last, strict=True), 2):
        assert (x - y).norm() > 1e-6, f"{a} ends where {b} does"
