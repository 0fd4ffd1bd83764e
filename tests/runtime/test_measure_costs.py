"""Virtual seconds, floats sent, steps and gradients computed, against sums over the recorded rounds."""

from dataclasses import fields

import numpy as np
import pytest

from raylfl.algorithms import ALGORITHMS
from raylfl.core.algorithm import Algorithm
from raylfl.core.costs import Links
from tests.runtime.measured import DIGITS, LINKS, LOSSY, POINTS, SIZES, STEPS, D, N, received, rounds_of, walk
from tests.shares import also, one_in

# -- the virtual clock ---------------------------------------------------------------------------------------

SECONDS, FLOATS_PER_SECOND = np.array([0.5, 1.0, 2.0, 4.0, 8.0]), 10.0
CLOCK = [f"system.seconds_per_step={SECONDS.tolist()}", f"system.bandwidth={FLOATS_PER_SECOND}"]


def test_a_parallel_round_takes_as_long_as_its_slowest_client():
    virtual = computation = 0.0
    for _, metrics, row, _ in walk([*LOSSY, *CLOCK])[1]:
        cohort = np.array(row["cohort"])
        work = STEPS[cohort] * SECONDS[cohort]
        virtual += np.max(work + 2 * D / FLOATS_PER_SECOND)  # a lost upload took its time too
        computation += work.sum()
        assert metrics["time/virtual"] == pytest.approx(virtual, rel=1e-12)
        assert metrics["time/computation"] == pytest.approx(computation, rel=1e-12)


@pytest.mark.parametrize(
    ("network", "message"),
    [
        ([CLOCK[1]], D / FLOATS_PER_SECOND),
        (["topology.latency=0.25", "topology.bandwidth=4"], 0.25 + D / 4),  # the same for all hops
    ],
)
def test_a_ring_takes_the_sum_of_the_times_of_its_clients_and_hand_overs(network, message):
    virtual = 0.0
    for _, metrics, row, _ in walk([*LOSSY, CLOCK[0], *network, "algorithm.name=sfl"])[1]:
        cohort = np.array(row["cohort"])
        virtual += np.sum(STEPS[cohort] * SECONDS[cohort]) + (len(cohort) + 1) * message
        assert metrics["time/virtual"] == pytest.approx(virtual, rel=1e-12)


def test_a_round_without_clients_takes_no_virtual_time():
    last = walk(["participation.name=bernoulli", "participation.p=0.0"])[1][-1][1]
    assert last["time/virtual"] == last["time/computation"] == 0.0


def test_floats_on_a_link_that_are_a_mean_over_clients_keep_their_fraction():
    assert Links().add(np.array([[0, -1]]), np.array([2.5])).csv().endswith("0,server,1,2.5\n")


# -- what was sent and computed ------------------------------------------------------------------------------

PLAIN = [
    entry.name
    for entry in ALGORITHMS
    if not entry.cls.pattern.sequential
    and not entry.cls.pattern.peers  # tests/runtime/test_graph_runs.py
    and entry.name != "centralized"
    and "cut" not in [f.name for f in fields(entry.cls)]  # type: ignore[arg-type]
    and entry.cls.update_clients is Algorithm.update_clients
    and not entry.cls().samples_by_norm
]
DRAWN = ["participation.name=uniform", "participation.size=4", "participation.replace=true"]


def last_costs(rounds):
    return {name.removeprefix("cost/"): v for name, v in rounds[-1][1].items() if name.startswith("cost/")}


@pytest.mark.parametrize("name", one_in(4, PLAIN))
def test_counters_are_the_floats_sent_to_workers_and_back(name):
    backend, rounds = walk([*DRAWN, *LINKS, f"algorithm.name={name}", "weights=uniform", "rounds=4"])
    costs = last_costs(rounds)
    assert (costs["downlink_floats"], costs["uplink_floats"]) == (backend.down, backend.up)
    assert costs["peer_floats"] == 0
    if not ALGORITHMS.get(name).cls.one_step:
        assert costs["local_steps"] == sum(sum(row["steps"]) for _, _, row, _ in rounds)


def test_a_ring_is_entered_once_left_once_and_handed_on_in_between():
    _, rounds = walk(["participation.name=bernoulli", "participation.p=0.3", *LINKS, "algorithm.name=sfl"])
    cohorts = np.array([len(row["cohort"]) for _, _, row, _ in rounds])
    assert 0 in cohorts  # an empty round has no costs
    costs = last_costs(rounds)
    assert costs["downlink_floats"] == costs["uplink_floats"] == D * np.sum(cohorts > 0)
    assert costs["peer_floats"] == D * np.sum(np.maximum(cohorts - 1, 0))
    assert costs["busiest_node_floats"] == 2 * D * np.sum(cohorts > 0)
    assert costs["busiest_link_floats"] == D * (2 * np.sum(cohorts == 1) + np.sum(cohorts > 1))


def test_an_answer_goes_down_to_those_received_only():
    _, rounds = walk([*LOSSY, "algorithm.name=fedawe"])
    asked = sum(len(row["cohort"]) for _, _, row, _ in rounds)
    arrived = sum(len(received(row)) for _, _, row, _ in rounds)
    costs = last_costs(rounds)
    assert (costs["uplink_floats"], costs["downlink_floats"]) == (D * asked, D * arrived)


def test_a_client_that_is_not_answered_neither_waits_for_the_answer_nor_carries_it():
    message, q = 0.25 + D / 4, [0.0, 0.5, 0.9, 0.5, 0.5]
    network = ["topology.latency=0.25", "topology.bandwidth=4", "link.name=bernoulli", f"link.q={q}"]
    run = rounds_of(POINTS, [*network, "algorithm.name=fedawe"])
    arrived = np.array([row["received"] for row in run.rows])
    work = STEPS + message * (1 + arrived)  # an upload and, if it is received, the answer
    assert run.metrics[-1]["time/virtual"] == pytest.approx(work.max(axis=1).sum(), rel=1e-12)
    assert run.metrics[-1]["cost/busiest_link_floats"] == D * (1 + arrived).max(axis=1).sum()
    answers = [f"server,{i},{count},{count * D}" for i, count in enumerate(arrived.sum(axis=0)) if count]
    assert run.links.csv().splitlines()[1:-N] == answers


def test_without_a_broadcast_there_is_no_message_down():
    run = rounds_of(POINTS, ["rounds=1", "local.steps=1", "topology.latency=1", "algorithm.name=local_only"])
    assert run.metrics[0]["time/virtual"] == 2.0  # a step and an upload
    assert run.links.csv().splitlines()[1:] == [f"{i},server,1,{D}" for i in range(N)]


def test_probing_costs_a_broadcast_to_all_their_work_and_a_norm_each_and_waits_for_the_slowest():
    _, rounds = walk([*CLOCK, *LOSSY, "algorithm.name=optimal_sampling"])
    virtual, computation = 0.0, 0.0
    node = link = 0
    for _, metrics, row, _ in rounds:
        chosen = np.isin(np.arange(N), row["cohort"])
        floats = D + 1 + D * chosen  # x down, a norm up, and of the sampled clients their update
        virtual += np.max(STEPS * SECONDS + floats / FLOATS_PER_SECOND)
        computation += np.sum(STEPS * SECONDS)
        node, link = node + floats.sum(), link + floats.max()
        assert metrics["time/virtual"] == pytest.approx(virtual, rel=1e-12)
        assert metrics["time/computation"] == pytest.approx(computation, rel=1e-12)
    asked = sum(len(row["cohort"]) for _, _, row, _ in rounds)
    costs = last_costs(rounds)
    assert costs["downlink_floats"] == len(rounds) * N * D
    assert costs["uplink_floats"] == D * asked + len(rounds) * N
    assert costs["local_steps"] == len(rounds) * STEPS.sum()
    assert costs["gradients"] == len(rounds) * STEPS @ SIZES
    assert (costs["busiest_node_floats"], costs["busiest_link_floats"]) == (node, link)


def test_probing_waits_for_the_norms_and_the_uploads_of_the_slowest_link():
    latency = [0.1, 0.2, 0.3, 0.4, 5.0]
    network = ["system.seconds_per_step=0.5", f"topology.latency={latency}"]
    _, rounds = walk(
        [*network, "participation.name=uniform", "participation.size=2", "algorithm.name=optimal_sampling"]
    )
    virtual = 0.0
    for _, metrics, row, _ in rounds:
        messages = 2 + np.isin(np.arange(N), row["cohort"])
        virtual += np.max(0.5 * STEPS + messages * np.array(latency))
        assert metrics["time/virtual"] == pytest.approx(virtual, rel=1e-12)


def test_centralised_training_sends_nothing_and_computes_on_everything():
    costs = last_costs(walk(["algorithm.name=centralized", "local.steps=3"])[1])
    sent = ("uplink_floats", "downlink_floats", "peer_floats", "busiest_node_floats", "busiest_link_floats")
    nothing = dict.fromkeys(sent, 0)
    assert costs == {**nothing, "local_steps": 8 * 3, "gradients": 8 * 3 * SIZES.sum()}


@pytest.mark.parametrize(
    ("name", "ring", "relay"), [also("splitfed", False, ""), ("ssl", True, ""), ("ssl", False, "true")]
)
def test_split_learning_moves_the_client_half_and_exchanges_activations(name, ring, relay):
    """64-8-10 cut after the hidden layer: a half of 64*8 + 8, and 8 activations and gradients a sample."""
    half, width, batch = 64 * 8 + 8, 8, 16
    model = ["model.name=mlp", "model.init_args.hidden=[8]", f"algorithm.name={name}", "algorithm.cut=layers.relu1"]
    work = ["local.steps=2", f"local.batch_size={batch}", "local.sampling=with_replacement"]
    relayed = [f"algorithm.relay={relay}"] if relay else []
    _, rounds = walk([*model, *work, *relayed, "partition=iid"], DIGITS)
    asked, costs = 4 * len(rounds), last_costs(rounds)
    samples = asked * 2 * batch
    assert costs["gradients"] == samples
    travelled = len(rounds) if ring else asked
    assert costs["downlink_floats"] == costs["uplink_floats"] == half * travelled + width * samples
    assert costs["peer_floats"] == (half * 3 * len(rounds) if ring else 0)


STAR_LINKS = "server,0,2,45 server,1,21,615 0,server,2,45 1,server,21,615"
RING_LINKS = "server,0,1,30 server,1,21,615 0,server,2,45 1,server,20,600 1,0,1,15"  # from 1 to 0


@pytest.mark.parametrize(
    ("algorithm", "links", "busiest", "seconds"),
    [
        ("{name: splitfed}", STAR_LINKS, 1230, [123.0, 123.0, 9.0, 2 * 21]),
        ("{name: ssl, relay: true}", STAR_LINKS, 1230, [132.0, 123.0 + 9e-8, 9.0, 2 * 23]),
        ("{name: ssl}", RING_LINKS, 1215, [130.5, 123.0, 9.0, 2 * 21 + 3]),
    ],
    ids=["splitfed", "relay", "ssl"],
)
def test_in_split_learning_each_client_exchanges_the_activations_of_its_own_steps(algorithm, links, busiest, seconds):
    """4-3 cut: a half of 15 floats, 30 activations a batch; client 0 takes 1 step, client 1 takes 20."""
    split = {
        "rounds": 1,
        "model": {"name": "mlp", "init_args": {"hidden": [3]}},
        "data": {
            "name": "logistic_regression_synthetic",
            "init_args": {"num_clients": 2, "rows_per_client": 40, "dim": 4},
        },
        "partition": {"name": "natural"},
        "local": {"steps": [1, 20], "batch_size": 10},
        "system": {"seconds_per_step": 1e-9},
        "runtime": {"backend": "local"},
    }
    networks = ["system.bandwidth=10", "topology.bandwidth=[1e9, 10]", "topology.bandwidth=[10, 1e9]"]
    for network, expected in zip([*networks, "topology.latency=1"], seconds, strict=True):
        run = rounds_of(split, [f"algorithm={algorithm}", "algorithm.cut=layers.relu1", network])
        assert run.metrics[0]["time/virtual"] == pytest.approx(expected, abs=1e-5)
        assert run.metrics[0]["cost/busiest_link_floats"] == busiest
        assert run.links.csv().split()[1:] == links.split()


@pytest.mark.parametrize(("batch", "samples"), [("full", STEPS @ SIZES), ("2", STEPS @ np.minimum(SIZES, 2))])
def test_sample_gradients_are_counted_as_computed(batch, samples):
    overrides = [f"local.batch_size={batch}", "local.sampling=with_replacement" if batch == "2" else "rounds=8"]
    assert last_costs(walk(overrides)[1])["gradients"] == 8 * samples
