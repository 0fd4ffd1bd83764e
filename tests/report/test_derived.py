"""Derived figures against direct computation."""

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from raylfl.report.derived import (
    BEST,
    Stat,
    best,
    best_setting,
    cost,
    counted_axes,
    default_last,
    default_target,
    final,
    group_to_target,
    last_k,
    main_metric,
    moving_average,
    profile,
    tail,
    to_target,
    tuned_keys,
)
from raylfl.report.runs import group_runs, load_run
from tests.report.synthetic import groups_of, rows_of, seeds_of, write_run

CURVES = ([0.1, 0.5, 0.7, 0.6, 0.8], [0.2, 0.3, 0.4, 0.75, 0.7], [0.1, 0.2, 0.3, 0.4, 0.5])


@pytest.fixture
def group(tmp_path):
    return seeds_of(tmp_path, CURVES)


def test_a_target_reached_in_row_r_takes_r_plus_1_rounds_and_their_costs(group):
    run = group.runs[0]
    assert to_target(run, "test/accuracy", 0.7) == 3
    assert to_target(run, "test/accuracy", 0.7, "floats") == 3 * (1000 + 1000)
    assert to_target(run, "test/accuracy", 0.7, "steps") == 60
    assert to_target(run, "test/accuracy", 0.7, "virtual") == 1.5
    assert to_target(run, "test/accuracy", 0.81) is None
    assert to_target(run, "test/accuracy", 0.7, "computation") is None  # not counted
    assert to_target(group.runs[0], "train/loss", 2.3 / math.sqrt(3) + 1e-9) == 3
    stat = group_to_target(group, "test/accuracy", 0.7)
    assert (stat.mean, stat.count, stat.of) == (3.5, 2, 3)
    assert stat.std == pytest.approx(np.std([3, 4], ddof=1))
    assert group_to_target(group, "test/accuracy", 0.9) == Stat.over([], of=3)


def test_floats_count_every_link_and_missing_links_as_nothing(tmp_path):
    rows = [{"round": 0, "cost/uplink_floats": 5.0, "cost/peer_floats": 2.0}]
    run = load_run(write_run(tmp_path / "a", rows))
    assert cost(run, "floats").tolist() == [7.0]
    assert cost(run, "virtual") is None


def test_computation_time_equal_to_the_local_steps_is_no_separate_axis(tmp_path):
    def named(name, seconds):
        rows = [{"round": 0, "cost/local_steps": 5, "time/computation": seconds}]
        return load_run(write_run(tmp_path / name, rows))

    assert counted_axes([named("a", 5.0)]) == ["rounds", "steps"]
    assert counted_axes([named("b", 5.0), named("c", 7.5)]) == ["rounds", "steps", "computation"]
    only = load_run(write_run(tmp_path / "d", [{"round": 0, "time/computation": 5.0}]))
    assert counted_axes([only]) == ["rounds", "computation"]


def test_last_final_and_best_values_are_over_seeds(group):
    pooled = [value for values in CURVES for value in values[-2:]]
    stat = last_k(group, "test/accuracy", 2)
    assert stat.mean == pytest.approx(np.mean(pooled))
    assert stat.std == pytest.approx(np.std(pooled, ddof=1))
    assert stat.count == 6
    assert final(group, "test/accuracy").mean == pytest.approx(np.mean([0.8, 0.7, 0.5]))
    assert best(group, "test/accuracy").mean == pytest.approx(np.mean([0.8, 0.75, 0.5]))
    assert last_k(group, "test/accuracy", BEST) == best(group, "test/accuracy")
    assert best(group, "test/accuracy").std == pytest.approx(np.std([0.8, 0.75, 0.5], ddof=1))
    lowest = [min(2.3 / (r + 1) ** 0.5 for r in range(5))] * 3
    assert best(group, "train/loss").mean == pytest.approx(np.mean(lowest))


def test_the_final_value_is_the_newest_measured_where_the_last_rounds_were_not(tmp_path):
    """A running or stopped run with eval.every > 1 ends in rows without the metric."""
    rows = [{"round": r, "train/loss": 1.0} | ({"test/accuracy": 0.1 * r} if r < 3 else {}) for r in range(5)]
    (group,) = groups_of(tmp_path, (rows, {}))
    assert final(group, "test/accuracy") == Stat.over([0.2])


def test_the_last_rounds_are_rounds_not_measurements(tmp_path):
    rows = [{"round": r, "x": 0.0} | ({"test/accuracy": r / 100} if r % 5 == 0 else {}) for r in range(14)]
    run = load_run(write_run(tmp_path / "a", rows))
    assert tail(run, "test/accuracy", 5).tolist() == [0.10]  # rounds 9..13
    assert tail(run, "test/accuracy", 9).tolist() == [0.05, 0.10]  # rounds 5..13
    assert tail(run, "test/accuracy", 2).tolist() == [0.10]  # none in the window: the newest before it
    assert tail(run, "never", 2).tolist() == []


def test_a_diverged_seed_makes_the_mean_infinite_but_not_the_best(tmp_path):
    rows = [{"round": r, "train/loss": value} for r, value in enumerate([2.0, 1.0, float("nan")])]
    (group,) = groups_of(tmp_path, (rows, {}), (rows[:2], {"seed": 1}))
    assert math.isinf(last_k(group, "train/loss", 1).mean)
    assert best(group, "train/loss").mean == 1.0


@pytest.mark.parametrize("rounds", [0, 1, 3])
def test_a_diverged_run_has_no_last_final_or_best_value_and_reaches_no_target(tmp_path, rounds):
    """metrics.jsonl ends with the round before; only diverged.txt says why."""
    other, lost = (
        write_run(tmp_path / str(k), rows_of(values), {"seed": k}, finished=k == 0)
        for k, values in enumerate([[0.5] * 4, [0.9] * rounds])
    )
    (lost / "diverged.txt").touch()
    (group,) = group_runs([load_run(other), load_run(lost)])
    assert [run.state for run in group.runs] == ["finished", "diverged"]
    stats = [last_k(group, "test/accuracy", 2), last_k(group, "test/accuracy", BEST)]
    stats += [final(group, "test/accuracy"), best(group, "test/accuracy")]
    assert all(math.isinf(stat.mean) for stat in stats)
    reached = group_to_target(group, "test/accuracy", 0.4)
    assert (reached.mean, reached.count, reached.of) == (1, 1, 2)
    assert default_target([group], "test/accuracy") is None


@given(
    st.lists(st.one_of(st.floats(-10, 10), st.just(math.nan), st.just(math.inf)), min_size=1, max_size=30),
    st.integers(1, 12),
)
def test_a_moving_average_is_the_mean_of_the_values_in_the_window(values, window):
    averaged = moving_average(values, window)
    for r, value in enumerate(values):
        seen = [v for v in values[max(0, r - window + 1) : r + 1] if math.isfinite(v)]
        expected = np.mean(seen) if math.isfinite(value) else value
        np.testing.assert_allclose(averaged[r], expected, atol=1e-12)


def test_a_moving_average_of_tiny_values_is_not_swallowed_by_early_large_ones():
    values = 10.0 ** -np.arange(0.0, 20.0)
    np.testing.assert_allclose(moving_average(values, 2)[-1], (values[-1] + values[-2]) / 2, rtol=1e-12)


def test_the_main_metric_is_accuracy_then_distance_then_loss(tmp_path):
    def named(name, rows):
        return load_run(write_run(tmp_path / name, rows))

    accuracy, distance = named("a", rows_of(accuracy=[0.5])), named("b", rows_of(distance=[0.5]))
    loss = named("c", [{"round": 0, "train/loss": 1.0}])
    both = named("f", [{"round": 0, "train/loss": 1.0, "test/mae": 1.0, "test/loss": 1.0}])
    empty = write_run(tmp_path / "d", [], finished=False)
    assert main_metric([both]) == "test/loss"  # of all samples, not of the received clients'
    assert main_metric([accuracy]) == "test/accuracy"
    assert main_metric([distance]) == "global/distance"
    assert main_metric([loss]) == "train/loss"
    assert main_metric([accuracy, distance]) == "train/loss"  # metrics that both have
    assert main_metric([accuracy, load_run(empty)]) == "test/accuracy"
    assert main_metric([named("e", [{"round": 0, "algo/x": 1}])]) == "algo/x"


def test_the_default_target_is_reached_by_about_half_of_the_settings(tmp_path):
    tops = [0.31, 0.52, 0.78]
    groups = groups_of(tmp_path, *((rows_of([0.1, top]), {"local.lr": top}) for top in tops))
    assert default_target(groups, "test/accuracy") == 0.5
    assert default_target(groups, "global/distance") is None


@pytest.mark.parametrize(("lowest", "target"), [(0.0023, 0.01), (1e-3, 1e-3), (0.23, 0.3), (4.1, 5.0), (-2.0, -2.0)])
def test_default_targets_of_losses_are_round_and_no_harder_than_the_best(tmp_path, lowest, target):
    groups = groups_of(tmp_path, (rows_of(distance=[9.0, lowest]), {}))
    assert default_target(groups, "global/distance") == pytest.approx(target)


@pytest.mark.parametrize(("rounds", "last"), [([1], 1), ([40], 4), ([1000, 200], 100), ([4000], 100)])
def test_the_default_tail_is_a_tenth_of_the_longest_runs_rounds(tmp_path, rounds, last):
    runs = [([{"round": count - 1, "a": 1.0}], {"seed": k}) for k, count in enumerate(rounds)]
    assert default_last(groups_of(tmp_path, *runs)) == last


@pytest.fixture
def sweep(tmp_path):
    """Two methods x three learning rates (x two gammas for focus): final accuracy as listed."""
    table = {
        ("fedavg", 0.01, 1.0): 0.4,
        ("fedavg", 0.1, 1.0): 0.6,
        ("fedavg", 1.0, 1.0): math.nan,
        ("focus", 0.01, 1.0): 0.5,
        ("focus", 0.01, 2.0): 0.55,
        ("focus", 0.1, 1.0): 0.3,
    }
    runs = []
    for (name, lr, gamma), value in table.items():
        rows = [{"round": 0, "test/accuracy": 0.1}, {"round": 1, "test/accuracy": value}]
        runs.append((rows, {"algorithm.name": name, "local.lr": lr, "algorithm.gamma": gamma}))
    return groups_of(tmp_path, *runs)


def test_profiles_take_the_best_over_the_other_tuned_keys_and_a_diverged_setting_never(sweep):
    own = [group for group in sweep if group.method == "fedavg"]
    assert best_setting(own, "test/accuracy", 1).setting["local.lr"] == 0.1
    curves = profile(sweep, "local.lr", "test/accuracy", 1)
    assert [(lr, stat.mean) for lr, stat in curves["focus"]] == [(0.01, 0.55), (0.1, 0.3)]
    assert profile(sweep[::-1], "local.lr", "test/accuracy", 1) == curves  # for any position of the best
    assert [lr for lr, _ in curves["fedavg"]] == [0.01, 0.1, 1.0]
    assert math.isinf(curves["fedavg"][-1][1].mean)
    assert tuned_keys(sweep) == ["local.lr", "algorithm.gamma"]
    assert tuned_keys([group for group in sweep if group.setting["local.lr"] == 1.0]) == []


def test_of_losses_the_setting_with_the_lowest_is_best(tmp_path):
    losses = {0.1: 0.9, 0.2: 0.2, 0.3: 0.5}
    groups = groups_of(tmp_path, *(([{"round": 0, "train/loss": x}], {"local.lr": lr}) for lr, x in losses.items()))
    assert best_setting(groups, "train/loss", 1).setting["local.lr"] == 0.2
