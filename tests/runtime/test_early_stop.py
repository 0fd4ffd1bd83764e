"""Early stopping and the best model: the number of rounds, and the files of a run, also after a resume."""

import json
import shutil

import pytest
import torch

import raylfl
from raylfl.config.groups.records import StopConfig
from raylfl.errors import BadConfig, BadValue
from raylfl.runtime.round.early_stop import BestRound, EarlyStop
from tests.runtime.tiny import ONE_BY_ONE as TINY
from tests.shares import also

LOSS = "stop.metric=test/loss"


def run(runs, *overrides):
    return raylfl.run({**TINY, "eval": {"every": 1}}, [*runs, *overrides])


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    """A run without a rule, whose loss falls from round to round."""
    return run([f"logging.dir={tmp_path_factory.mktemp('whole')}"])


def rounds_until(values, name="test/accuracy", **stop):
    """The number of values until the rule ends the run; None if it never does."""
    rule = EarlyStop(StopConfig(metric=name, **stop))
    for r, value in enumerate(values):
        rule.update({"round": r, **({} if value is None else {name: value})})
        if rule.reason is not None:
            return r + 1
    return None


@pytest.mark.parametrize(
    ("values", "stop", "rounds"),
    [
        ([0.1, 0.5, 0.9, 0.8], {"target": 0.9}, 3),
        ([0.1, 0.5, 0.6, 0.8], {"target": 0.9}, None),
        ([0.5, 0.4, 0.6, 0.6, 0.5, 0.7], {"patience": 2}, 5),  # equal is no improvement
        ([0.5, None, None, None, 0.4], {"patience": 2}, 5),  # seen when it is measured
        ([0.5, 0.4, 0.3], {"patience": 2, "mode": "min"}, None),
        ([0.5, 0.6, 0.95], {"patience": 1, "target": 0.55}, 2),
        ([2.0, 1.0, 0.5], {"name": "test/loss", "target": 1.0}, 2),  # losses are better when lower
        ([2.0, 2.5, 2.5], {"name": "test/loss", "patience": 2}, 3),
    ],
)
def test_a_rule_stops_at_a_target_or_after_rounds_without_a_new_best(values, stop, rounds):
    assert rounds_until(values, **stop) == rounds


def test_the_reason_names_the_value_its_round_and_the_limit():
    reached, stalled = (
        EarlyStop(StopConfig(metric="loss", target=0.5)),
        EarlyStop(StopConfig(metric="loss", patience=2)),
    )
    for r, value in enumerate([4.0, 0.25, 3.0, 0.25]):
        stalled.update({"round": r, "loss": value})
        if reached.reason is None:
            reached.update({"round": r, "loss": value})
    assert reached.reason == "loss = 0.25 reached stop.target = 0.5"
    assert stalled.reason == "loss has not improved on 0.25 of round 1 for 2 rounds"


def test_a_stopped_run_is_finished_and_continues_with_another_target(runs, whole):
    stopped = run(runs, LOSS, f"stop.target={whole.metrics[2]['test/loss']!r}")
    short = run(runs, "rounds=3")
    assert len(stopped.metrics) == 3
    assert torch.equal(stopped.params, short.params)
    summary = json.loads((stopped.run_dir / "summary.json").read_text())
    assert (summary["status"], summary["rounds"]) == ("finished", 3)
    assert "reached stop.target" in summary["stopped_early"]
    assert f"stopped early: {summary['stopped_early']}\n" in (stopped.run_dir / "log.txt").read_text()
    assert "stopped_early" not in json.loads((short.run_dir / "summary.json").read_text())
    assert len(raylfl.resume(stopped.run_dir).metrics) == 3  # it stays finished
    further = raylfl.resume(stopped.run_dir, ["stop.target=0.0"])
    assert torch.equal(further.params, whole.params)


def test_a_metric_may_be_absent_unless_another_one_of_the_method_has_nearly_its_name():
    rule = EarlyStop(StopConfig(metric="algo/y_nrm", patience=1, mode="min"))
    with pytest.raises(BadConfig, match=r"=algo/y_nrm, but must be one that is recorded: algo/y_norm .did you mean"):
        rule.update({"round": 0, "test/loss": 1.0, "algo/y_norm": 1.0})
    rule.update({"round": 0, "test/loss": 1.0, "algo/other": 1.0})
    rule.update({"round": 3, "algo/y_norm": 1.0})  # the first round after a resume
    assert rule.reason is None


@pytest.mark.parametrize("given", [{"metric": "test/loss"}, {"patience": 3}, {"target": 1.0}])
def test_a_rule_is_a_metric_with_a_target_or_a_patience(given):
    with pytest.raises(BadValue, match="metric="):
        StopConfig(**given)


def test_a_target_of_an_accuracy_is_a_fraction():
    need = r"^target=95.0, but must be a fraction, at most 1, for test/accuracy \(95 % is 0.95\)$"
    with pytest.raises(BadValue, match=need):
        StopConfig(metric="test/accuracy", target=95.0)
    assert StopConfig(metric="test/accuracy", target=1.0).target == 1.0
    assert StopConfig(metric="test/loss", target=95.0).target == 95.0


# -- best.pt: the model of the round with the best value of a metric --------------------------------------------------


WAVES = {**TINY, "rounds": 8, "eval": {"every": 1}, "local": {**TINY["local"], "lr": 2.0}}  # the loss goes up and down


@pytest.fixture(scope="module")
def waves(tmp_path_factory):
    return raylfl.run(WAVES, [f"logging.dir={tmp_path_factory.mktemp('waves')}"])


@pytest.fixture(scope="module")
def best_round(waves):
    """The round with the lowest test loss, which is neither the first nor the last one."""
    losses = [row["test/loss"] for row in waves.metrics]
    found = losses.index(min(losses))
    assert 0 < found < 7
    return found


@pytest.fixture(scope="module")
def short(tmp_path_factory, best_round):
    """A run that ends after the best round."""
    return raylfl.run(WAVES, [f"logging.dir={tmp_path_factory.mktemp('short')}", f"rounds={best_round + 1}"])


def test_the_best_model_is_that_of_a_run_which_ends_there(runs, best_round, short):
    result = raylfl.run(WAVES, [*runs, "checkpoint.best=test/loss", "checkpoint.every=0"])
    best = raylfl.load(result.run_dir).best
    assert torch.equal(best.params, short.params)
    for name, value in short.module.state_dict().items():
        assert torch.equal(best.module.state_dict()[name], value)
    assert best.evaluate()["test/loss"] == pytest.approx(min(row["test/loss"] for row in result.metrics))
    assert torch.equal(raylfl.load(result.run_dir).params, result.params)
    assert result.summary["best_round"] == best_round
    content = torch.load(result.run_dir / "best.pt", weights_only=True)
    assert (content["round"], content["value"]) == (best_round, result.metrics[best_round]["test/loss"])


@pytest.mark.parametrize("cut", [also(1), 4])
def test_a_resumed_run_keeps_the_best_model_of_all_its_rounds(runs, best_round, short, cut):
    given = ["checkpoint.best=test/loss", "checkpoint.every=3"]
    folder = raylfl.run(WAVES, [*runs, *given, f"rounds={cut}"]).run_dir
    resumed = raylfl.resume(folder, ["rounds=8"])
    assert resumed.summary["best_round"] == best_round
    assert torch.equal(raylfl.load(folder).best.params, short.params)


def test_it_changes_nothing_else_and_may_be_switched_on_by_a_resume(runs, waves, best_round, tmp_path):
    plain, kept = (
        shutil.copytree(waves.run_dir, tmp_path / "plain"),
        raylfl.run(WAVES, [*runs, "checkpoint.best=test/loss"]),
    )
    assert torch.equal(waves.params, kept.params)
    assert not (plain / "best.pt").exists()
    with pytest.raises(BadConfig, match=r"has no best.pt: a run with checkpoint.best="):
        _ = raylfl.load(plain).best
    resumed = raylfl.resume(plain, ["rounds=9", "checkpoint.best=test/loss"])
    lost = f"checkpoint.best: the model of round {best_round}, the best so far, is not in best.pt"
    assert lost in (plain / "log.txt").read_text()
    assert resumed.summary["best_round"] in (best_round, 8)
    raylfl.resume(kept.run_dir, ["rounds=9"])
    assert "is not in best.pt" not in (kept.run_dir / "log.txt").read_text()


def test_the_direction_is_that_of_the_metric(runs):
    result = raylfl.run(WAVES, [*runs, "checkpoint.best=update/norm", "metrics.update/norm=max"])
    norms = [row.get("update/norm", 0.0) for row in result.metrics]
    assert json.loads((result.run_dir / "summary.json").read_text())["best_round"] == norms.index(max(norms))


def test_the_first_of_equal_rounds_is_the_best_and_missing_values_are_passed_over():
    best = BestRound("test/accuracy", {})
    values = [0.2, None, 0.5, 0.5, 0.4]
    rows = [{"round": r, "test/accuracy": v} if v is not None else {"round": r} for r, v in enumerate(values)]
    assert [best.update(row) for row in rows] == [True, False, True, False, False]
    assert (best.round, best.value) == (2, 0.5)
    assert not BestRound(None, {}).update(rows[0])
