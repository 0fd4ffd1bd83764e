"""A planned round has the right values of each client, in any order of the cohort."""

import numpy as np
import pytest
import torch

from raylfl.config.load import load_config
from raylfl.experiment.assemble import assemble
from raylfl.heterogeneity.trace import write_trace
from raylfl.runtime.round.plan import Planner, drop_uploads, same_array
from raylfl.runtime.round.state import RoundResult
from tests.runtime.tiny import TINY

N = 12
Q = [0.05 + 0.9 * (i % 2) for i in range(N)]  # every other client's uploads are mostly lost
BUSY = {
    **TINY,
    "num_clients": N,
    "link": {"name": "bernoulli", "q": Q},
    "participation": {"name": "uniform", "size": 4},
    "local": {"steps": list(range(1, N + 1)), "batch_size": {"linspace": [1, 4]}, "momentum": 0.5, "lr": 0.05},
}


def planner(*overrides):
    experiment = assemble(load_config(BUSY, list(overrides)))
    return experiment, Planner(experiment)


@pytest.mark.parametrize("algorithm", ["fedavg", "sfl"])
@pytest.mark.parametrize("participation", ["uniform, size: 4", "uniform, size: 9, replace: true", "weighted, size: 4"])
def test_what_is_planned_for_a_client_is_looked_up_by_its_id_and_not_its_place(algorithm, participation):
    """Losses, q, steps, batch sizes and |a| of a cohort are entries of the values of all clients."""
    e, plans = planner(f"algorithm.name={algorithm}", f"participation={{name: {participation}}}")
    everyone = np.arange(N)
    for r in range(20):
        planned = plans.plan(r, {})
        all_of_it = plans.round_of(r, type(e.participation.draw(r, e.world)).once(everyone), None)
        where = np.argsort(all_of_it.cohort)[planned.cohort]
        for name in ("received", "steps", "batch_sizes", "a_norm", "failure"):
            theirs = np.asarray(getattr(all_of_it, name))[where]
            assert np.array_equal(np.asarray(getattr(planned, name)), theirs), name
        assert planned.failure.tolist() == [Q[c] for c in planned.cohort]
        assert planned.steps.tolist() == [c + 1 for c in planned.cohort]


def test_a_ring_has_a_new_order_each_round_and_keeps_each_clients_number_of_draws():
    e, plans = planner("algorithm.name=sfl", "participation={name: uniform, size: 30, replace: true}")
    orders = set()
    for r in range(10):
        planned = plans.plan(r, {})
        drawn = e.participation.draw(r, e.world)
        counts = dict(zip(drawn.cohort.tolist(), drawn.draws.tolist(), strict=True))
        assert dict(zip(planned.cohort.tolist(), planned.draws.tolist(), strict=True)) == counts
        assert max(counts.values()) > min(counts.values())
        orders.add(tuple(planned.cohort.tolist()))
    assert len(orders) == 10
    _, full = planner("algorithm.name=sfl", "participation={name: full}")
    assert len({tuple(full.plan(r, {}).cohort.tolist()) for r in range(10)}) == 10


@pytest.mark.parametrize(
    ("link", "recorded"),
    [
        ("{name: perfect}", False),
        ("{name: bernoulli, q: {uniform: [0, 0.5]}}", False),
        ("{name: bernoulli, q: {uniform: [0, 0.5]}, dynamic: true}", True),
        ("{name: bernoulli, q: {phases: [{until: 0.5, value: 0.1}, {value: 0.6}]}}", True),
        (
            f"{{name: bernoulli, q: {{groups: [{{count: {N - 1}, value: 0.2}}, "
            "{count: 1, phases: [{until: 0.5, value: 0.1}, {uniform: [0.3, 0.6]}]}]}}",
            True,
        ),
    ],
)
def test_a_row_holds_the_failure_probabilities_where_they_change(link, recorded):
    e, plans = planner(f"link={link}")
    planned = plans.plan(2, {})
    planned = planned[0] if isinstance(planned, tuple) else planned
    row = plans.row(planned)
    assert ("q" in row) is recorded
    if recorded:
        assert row["q"] == e.link.failure(2, planned.cohort, e.world).tolist()


def test_a_replay_has_the_failure_probabilities_of_the_phases_that_were_recorded(tmp_path):
    """Those of clients that were not sampled are not recorded: they are those of the replay's own links."""
    link = "link={name: bernoulli, q: {phases: [{until: 0.5, value: 0.1}, {value: 0.6}]}}"
    _, plans = planner(link, "rounds=4")
    rows = [plans.row(plans.plan(r, {})) for r in range(4)]
    write_trace(tmp_path / "t.jsonl", rows)
    _, replay = planner(f"participation={{name: trace, path: {tmp_path}/t.jsonl}}", "link=perfect", "rounds=4")
    for r, q in enumerate([0.1, 0.1, 0.6, 0.6]):
        planned = replay.plan(r, {})
        assert planned.failure.tolist() == [q] * len(planned.cohort)
        sampled = np.isin(np.arange(N), planned.cohort)
        assert replay.system(r).failure.tolist() == np.where(sampled, q, 0.0).tolist()
        assert replay.row(planned) == rows[r]


@pytest.mark.parametrize(("a", "again"), [("its own", False), ("a view", False), ("frozen", True), ("equal", True)])
def test_coefficients_are_computed_again_if_an_argument_may_have_changed(a, again):
    """A process of a user may return one array in every round, and change it in place."""
    b = np.arange(4.0)
    other = {"its own": b, "a view": b[:], "frozen": b, "equal": b.copy()}[a]
    if a == "frozen":
        b.flags.writeable = False
    assert same_array(other, b) is again
    assert not same_array(b + 1, b)


def test_a_number_of_steps_that_the_algorithm_draws_holds_for_all_that_take_a_step():
    _, plans = planner("algorithm.name=scaffnew", "participation={name: full}", "algorithm.p=0.2", "local.steps=1")
    drawn = [plans.plan(r, {}).steps for r in range(20)]
    assert all(len(set(steps.tolist())) == 1 for steps in drawn)
    assert min(steps[0] for steps in drawn) >= 1 < max(steps[0] for steps in drawn)


def test_the_rate_of_a_round_follows_its_schedule():
    _, plans = planner("local.lr_schedule={name: exponential, decay: 0.5}")
    assert [plans.lr(r) for r in range(3)] == [0.05, 0.025, 0.0125]
    assert plans.plan(2, {}).lr == plans.system(2).lr == 0.0125


def test_clients_are_drawn_by_weighted_norms_of_their_own_updates():
    """A client without a computed update is not available; the others have p_i = w_i |U_i| / sum."""
    e, plans = planner("algorithm=optimal_sampling", "link=perfect")
    everyone = plans.plan(0, {})
    assert everyone.received.all()
    failed = drop_uploads(everyone, np.array([4, 7]))
    updates = torch.randn(N, 3, generator=torch.Generator().manual_seed(0))
    rows = updates[torch.from_numpy(failed.received_view.cohort)]
    result = RoundResult(round=failed, reports=None, uploads={"update": rows}, client_states=[], up_floats=3)
    found = plans.sample_by_norms(result, {})
    weighted = np.where(np.isin(np.arange(N), [4, 7]), 0.0, e.world.population.weights * updates.norm(dim=1).numpy())
    drawn = found.round.cohort
    np.testing.assert_allclose(found.round.inclusion, (weighted / weighted.sum())[drawn], rtol=1e-6)
    assert not {4, 7} & set(found.round.cohort.tolist())
    assert torch.equal(found.uploads["update"], updates[torch.from_numpy(found.round.received_view.cohort)])


@pytest.mark.parametrize(
    ("participation", "algorithm", "law"),
    [
        ("{name: bernoulli, p: 0.3}", "fedavg", "independent"),
        ("{name: markov, p_on: 0.3, p_off: 0.2}", "fedavg", "independent"),
        ("{name: weighted, size: 3, replace: true}", "fedavg", "with_replacement"),
        ("{name: uniform, size: 3}", "fedavg", "without_replacement"),
        ("{name: uniform, size: 3}", "fedacs", "with_replacement"),
    ],
)
def test_the_law_of_the_draws_is_that_of_the_process_or_of_the_method_that_samples(participation, algorithm, law):
    _, plans = planner(f"participation={participation}", f"algorithm={algorithm}")
    assert plans.expected_draws(plans.system(0), {})[1] == law
