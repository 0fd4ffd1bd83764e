"""`checkpoint.best`: best.pt is the model of the round with the best value of a metric, also after a resume."""

from __future__ import annotations

import json

import pytest
import torch

import raylfl
from raylfl.config.load import load_config
from raylfl.errors import BadConfig
from raylfl.python.api import checked
from raylfl.runtime.round.early_stop import BestRound
from tests.runtime.tiny import ONE_BY_ONE as TINY
from tests.shares import also

WAVES = {**TINY, "rounds": 8, "eval": {"every": 1}, "local": {**TINY["local"], "lr": 2.0}}  # the loss goes up and down


def after(rounds, runs):
    return raylfl.run(WAVES, [*runs, f"rounds={rounds}"])


@pytest.fixture
def best_round(runs):
    """The round with the lowest test loss, which is neither the first nor the last one."""
    losses = [row["test/loss"] for row in raylfl.run(WAVES, runs).metrics]
    found = losses.index(min(losses))
    assert 0 < found < 7
    return found


def test_the_best_model_is_that_of_a_run_which_ends_there(runs, best_round):
    result = raylfl.run(WAVES, [*runs, "checkpoint.best=test/loss", "checkpoint.every=0"])
    best, short = raylfl.load(result.run_dir).best, after(best_round + 1, runs)
    assert torch.equal(best.params, short.params)
    for name, value in short.module.state_dict().items():
        assert torch.equal(best.module.state_dict()[name], value)
    assert best.evaluate()["test/loss"] == pytest.approx(min(row["test/loss"] for row in result.metrics))
    assert torch.equal(raylfl.load(result.run_dir).params, result.params)
    assert result.summary["best_round"] == best_round
    content = torch.load(result.run_dir / "best.pt", weights_only=True)
    assert (content["round"], content["value"]) == (best_round, result.metrics[best_round]["test/loss"])


@pytest.mark.parametrize("cut", [1, also(2), 4, also(6)])
def test_a_resumed_run_keeps_the_best_model_of_all_its_rounds(runs, best_round, cut):
    given = ["checkpoint.best=test/loss", "checkpoint.every=3"]
    folder = raylfl.run(WAVES, [*runs, *given, f"rounds={cut}"]).run_dir
    resumed = raylfl.resume(folder, ["rounds=8"])
    assert resumed.summary["best_round"] == best_round
    assert torch.equal(raylfl.load(folder).best.params, after(best_round + 1, runs).params)


def test_it_changes_nothing_else_and_may_be_switched_on_by_a_resume(runs, best_round):
    plain, kept = after(8, runs), raylfl.run(WAVES, [*runs, "checkpoint.best=test/loss"])
    assert torch.equal(plain.params, kept.params)
    assert not (plain.run_dir / "best.pt").exists()
    with pytest.raises(BadConfig, match=r"has no best.pt: a run with checkpoint.best="):
        _ = raylfl.load(plain.run_dir).best
    resumed = raylfl.resume(plain.run_dir, ["rounds=9", "checkpoint.best=test/loss"])
    lost = f"checkpoint.best: the model of round {best_round}, the best so far, is not in best.pt"
    assert lost in (plain.run_dir / "log.txt").read_text()
    assert resumed.summary["best_round"] in (best_round, 8)
    raylfl.resume(kept.run_dir, ["rounds=9"])
    assert "is not in best.pt" not in (kept.run_dir / "log.txt").read_text()


def test_the_direction_is_that_of_the_metric_and_a_wrong_metric_is_refused(runs):
    with pytest.raises(BadConfig, match=r"checkpoint.best=test/f1, but must be one of test/loss"):
        raylfl.run(WAVES, [*runs, "checkpoint.best=test/f1"])
    for key in ("checkpoint.best", "stop.metric"):
        with pytest.raises(BadConfig, match=rf"{key}=val/accuracy is never measured here: it needs a validation set"):
            checked(load_config(WAVES, [f"{key}=val/accuracy"] + ["stop.target=1"] * (key == "stop.metric")))
    with pytest.raises(BadConfig, match=r"checkpoint.best=update/norm, .*state it in the config: metrics="):
        raylfl.run(WAVES, [*runs, "checkpoint.best=update/norm"])
    with pytest.raises(
        BadConfig, match=r"checkpoint.best=global/loss is never measured here: it needs eval.global=true"
    ):
        raylfl.run(WAVES, [*runs, "checkpoint.best=global/loss"])
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
