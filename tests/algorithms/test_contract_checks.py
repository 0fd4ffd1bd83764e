"""Each check of the contract refuses an algorithm that breaks it, and accepts those that only look as if they did."""

import itertools
from dataclasses import dataclass
from typing import ClassVar

import pytest
import torch

from raylfl.algorithms.fedavg import FedAvg
from raylfl.algorithms.focus import Focus
from raylfl.algorithms.mifa import MIFA
from raylfl.core.algorithm import Algorithm
from raylfl.testing import CHECKS, ContractBroken, check_contract
from raylfl.testing.bench import D, after_all


@dataclass
class Undocumented(Algorithm):
    """A shipped algorithm whose module has no lines State, Sent and Assumes."""

    server_step = FedAvg.server_step


Undocumented.__module__ = "raylfl.core.algorithm"  # a module without these lines


class Private(Undocumented):
    """An algorithm in a file of its own, of which no docstring is asked."""


class Remembers(FedAvg):
    def server_step(self, server, up, r):
        self.gamma *= 0.9
        return super().server_step(server, up, r)


class KeepsANumber(FedAvg):
    def server_step(self, server, up, r):
        new, info = super().server_step(server, up, r)
        return {**new, "norm": 1.0}, info


class MovesWhenIdle(FedAvg):
    def empty_round(self, server, r):
        return {"x": 0.9 * server["x"]}


class ScalesInPlace(FedAvg):
    def direction(self, x, g, carry):
        x.mul_(2.0)
        return g, carry


class StepsInPlace(FedAvg):
    def server_step(self, server, up, r):
        server["x"].sub_(up["update"].mean(0))
        return server, {}


class KeepsTheWorkspace(FedAvg):
    def start(self, down, own, work):
        return {"last": torch.zeros(1, D)}

    def direction(self, x, g, carry):
        return g, {**carry, "last": x}


class WritesItsState(Focus):
    def direction(self, x, g, carry):
        carry["g_prev"].mul_(2.0)
        return super().direction(x, g, carry)


class DropsItsCarry(FedAvg):
    def direction(self, x, g, carry):
        return g, {}


class LooksAtItsNeighbours(FedAvg):
    def finish(self, x, carry, own, work):
        update = carry["x_start"] - x
        return {"update": update - 0.1 * update.mean(0)}, {}


class WritesTheLost(MIFA):
    def server_step(self, server, up, r):
        new, info = super().server_step(server, up, r)
        new["memory"].write(r.lost.cohort, server["x"].expand(len(r.lost.cohort), -1))
        return new, info


class Doubles(FedAvg):
    def server_step(self, server, up, r):
        return {"x": server["x"].double() - up["update"].mean(0)}, {}


class KnowsNoUpload(FedAvg):
    server_known: ClassVar[tuple[str, ...]] = ("norm",)


class CallsAModelAnUpdate(Focus):
    uploads_update: ClassVar[bool] = True


class CallsAGradientAnUpdate(FedAvg):
    def finish(self, x, carry, own, work):
        return {"update": (carry["x_start"] - x) * work.per_step(x)}, {}


class HidesItsMemory(MIFA):
    keeps_memory: ClassVar[bool] = False


class DividesBySteps(FedAvg):
    def finish(self, x, carry, own, work):
        return {"update": (carry["x_start"] - x) / torch.from_numpy(work.steps)[:, None].to(x)}, {}


class ForgetsWithoutAStep(Focus):
    def finish(self, x, carry, own, work):
        up, new = super().finish(x, carry, own, work)
        return up, {"g_prev": new["g_prev"] * torch.from_numpy(work.steps > 0)[:, None].to(x)}


class SamplesTheUnavailable(FedAvg):
    def probabilities(self, server, c):
        return c.population.weights


CALLS = itertools.count(1)


class CountsItsCalls(FedAvg):
    def sum_coefficients(self, server, r):
        return {"update": 1.0 / next(CALLS)}


class Worse(MovesWhenIdle, LooksAtItsNeighbours):
    pass


BROKEN = {
    Undocumented: "documented",
    Remembers: "keeps_nothing_on_itself",
    KeepsANumber: "survives_a_checkpoint",
    MovesWhenIdle: "an_empty_round_moves_no_vector",
    ScalesInPlace: "leaves_its_inputs_alone",
    StepsInPlace: "leaves_its_inputs_alone",
    KeepsTheWorkspace: "leaves_its_inputs_alone",
    WritesItsState: "leaves_its_inputs_alone",
    DropsItsCarry: "leaves_its_inputs_alone",
    LooksAtItsNeighbours: "rows_do_not_depend_on_neighbours",
    WritesTheLost: "a_lost_upload_leaves_no_trace",
    CountsItsCalls: "its_sums_have_the_bits_of_its_rows",
    Doubles: "keeps_the_dtype",
    KnowsNoUpload: "keeps_its_shapes",
    CallsAModelAnUpdate: "its_traits_are_true",
    CallsAGradientAnUpdate: "its_traits_are_true",
    HidesItsMemory: "its_traits_are_true",
    DividesBySteps: "a_client_without_data_does_no_harm",
    ForgetsWithoutAStep: "a_client_without_data_does_no_harm",
    SamplesTheUnavailable: "its_probabilities_are_probabilities",
}


def test_no_docstring_is_asked_of_an_algorithm_outside_the_package():
    CHECKS["documented"](Private())


@pytest.mark.parametrize(("cls", "check"), BROKEN.items(), ids=lambda value: getattr(value, "__name__", value))
def test_a_broken_algorithm_is_refused(cls: type[Algorithm], check: str):
    with pytest.raises(ContractBroken):
        CHECKS[check](cls())


class ChangesStatesAfterTheRound(FedAvg):
    """States change in `update_clients` only; `finish` is the default.

    State    server x [d]; clients a count of rounds.
    Sent     d floats down, d up.
    Assumes  nothing.
    """

    def init_clients(self, x, count):
        return {"rounds": x.new_zeros(count, 1)}

    def update_clients(self, server, uploads, client_state, r):
        return {"rounds": client_state["rounds"] + 1}


class Quantises(FedAvg):
    """One random bit for each number of a part of the model, beside the client's loss.

    State    server x [d]; clients none.
    Sent     2 floats down, 3 up.
    Assumes  nothing.
    """

    uploads_update: ClassVar[bool] = False
    full_gradient: ClassVar[bool] = True

    def broadcast(self, server):
        return {"x": server["x"][:2]}

    def start_point(self, broadcast, client_state):
        return torch.nn.functional.pad(broadcast["x"], (0, D - 2))

    def finish(self, x, carry, client_state, work):
        part = (carry["x_start"] - x)[:, :2]
        return {"bits": (work.uniform(part) < part.sigmoid()).to(x), "loss": carry["full_loss"]}, {}

    def server_step(self, server, uploads, r):
        assert tuple(uploads["loss"].shape) == (len(r.cohort), 1)
        return {"x": torch.cat([server["x"][:2] - uploads["bits"].mean(0), server["x"][2:]])}, {}


@pytest.mark.parametrize("cls", [ChangesStatesAfterTheRound, Quantises])
def test_the_contract_accepts(cls: type[Algorithm]):
    check_contract(cls())


def test_states_that_change_after_the_round_are_kept_from_round_to_round():
    states = after_all(ChangesStatesAfterTheRound()).clients
    assert {client: int(state["rounds"]) for client, state in states.items()} == {0: 2, 1: 2, 2: 1, 3: 2, 4: 2, 5: 2}


def test_the_contract_reports_all_violations_at_once_and_names_methods_that_return_something_else():
    with pytest.raises(ContractBroken, match=r"(?s)an_empty_round_moves.*x.*\n.*rows_do_not_depend.*update"):
        check_contract(Worse())
    with pytest.raises(ContractBroken) as told:
        check_contract(ReturnsNoModel())
    assert (
        str(told.value).count("ReturnsNoModel.server_step_from_sums returned {x: NoneType}, but must return a state")
        == 1
    )


class ReturnsNoModel(FedAvg):
    def server_step_from_sums(self, server, sums, r):
        return {"y": server["x"]}, {}


def test_every_check_has_an_algorithm_that_it_refuses():
    assert set(BROKEN.values()) == set(CHECKS)
