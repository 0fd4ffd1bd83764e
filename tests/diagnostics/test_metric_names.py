"""The better direction of a metric: known, stated, or asked for."""

import pytest

from raylfl.diagnostics.metric_names import direction, higher_is_better, stated_directions
from raylfl.errors import BadValue


@pytest.mark.parametrize(
    ("metric", "better"),
    [
        ("test/accuracy", "max"),
        ("accuracy", "max"),
        ("clients/accuracy_p10", "max"),
        ("nodes/accuracy_min", "max"),
        ("clients/accuracy_std", "min"),
        ("global/distance", "min"),
        ("train/loss", "min"),
        ("nodes/loss_max", "min"),
        ("average/gap", "min"),
    ],
)
def test_losses_accuracies_and_distances_are_known(metric, better):
    assert direction(metric) == better


@pytest.mark.parametrize(
    "metric",
    [
        "test/dice_loss",  # a loss by its name, a score by another word of it
        "test/map50",
        "test/top1",
        "test/f1",
        "test/accuracy_gap",
        "test/error",
        "test/brier_score",
        "test/accuracy_std",
        "test/lossless",
        "update/norm",
        "cost/uplink_floats",
        "time/round",
        "algo/y_norm",
        "",
    ],
)
def test_nothing_else_is_inferred_from_a_name(metric):
    assert direction(metric) is None
    with pytest.raises(BadValue, match=r"better high or low \(state it in the config: metrics={.*: max}, or min\)"):
        higher_is_better(metric)


@pytest.mark.parametrize(
    ("stated", "metric", "better"),
    [
        ({"test/dice_loss": "min"}, "test/dice_loss", "min"),
        ({"dice_loss": "min"}, "val/dice_loss", "min"),
        ({"dice": "max"}, "nodes/dice_mean", "max"),
        ({"test/dice": "max"}, "val/dice", None),  # stated for the test set only
        ({"loss": "max"}, "test/loss", "max"),  # a statement comes before what is known
        ({"test/loss": "max", "loss": "min"}, "test/loss", "max"),  # the more specific one counts
        ({"dice_mean": "min", "dice": "max"}, "nodes/dice_mean", "min"),
    ],
)
def test_a_statement_holds_for_a_metric_or_for_a_logged_name(stated, metric, better):
    assert direction(metric, stated) == better


def test_a_config_states_directions_by_metrics_and_by_the_mode_of_early_stopping():
    stop = {"metric": "test/f1", "mode": "max"}
    assert stated_directions({"metrics": {"a": "min"}, "stop": stop}) == {"a": "min", "test/f1": "max"}
    assert stated_directions({"stop": {"metric": "test/f1", "mode": "auto"}}) == {}
    assert stated_directions({}) == stated_directions({"metrics": None, "stop": None}) == {}
    assert stated_directions({"metrics": {"a": "up", "b": "max"}}) == {"b": "max"}  # damaged
    with pytest.raises(BadValue, match=r"stop.mode=max, but must be auto or min, as metrics.test/f1 states"):
        stated_directions({"metrics": {"test/f1": "min"}, "stop": stop})
