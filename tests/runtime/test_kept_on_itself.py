"""An algorithm that keeps state on itself is found in its run, wherever it runs."""

from dataclasses import dataclass, field

import pytest

import raylfl
from raylfl.algorithms.fedavg import FedAvg
from raylfl.errors import BadConfig
from tests.runtime.tiny import ONE_BY_ONE as TINY


@dataclass
class AtServer(FedAvg):
    """Momentum of the server in an attribute."""

    momentum: list = field(default_factory=list)

    def server_step_from_sums(self, server, sums, r):
        if r.index == 2:
            self.momentum.append(1.0)
        return super().server_step_from_sums(server, sums, r)


@dataclass
class AtClient(FedAvg):
    """A control variate of the client in an attribute."""

    def direction(self, x, g, carry):
        self.kept = g.clone()
        return super().direction(x, g, carry)


@dataclass
class AtClass(FedAvg):
    """A counter in its class."""

    steps = 0

    def direction(self, x, g, carry):
        AtClass.steps += 1
        return super().direction(x, g, carry)


@pytest.mark.parametrize(
    ("method", "words"),
    [
        (AtServer, "round 2 changed its attribute momentum"),
        (AtClient, "round 0 changed its attribute kept"),
        (AtClass, "round 0 changed its attribute steps"),
    ],
)
def test_state_on_an_algorithm_ends_the_run_that_makes_it(tmp_path, method, words):
    with pytest.raises(BadConfig, match=words):
        raylfl.run(TINY, [f"logging.dir={tmp_path}", "participation.name=full"], algorithm=method())
