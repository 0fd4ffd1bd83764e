"""Whether a metric is better high or low, from the config to early stopping, summary and report; names that collide."""

import json
import math

import numpy as np
import pytest
import torch
from torch import nn
from torchmetrics.classification import MulticlassAUROC, MulticlassHingeLoss

import raylfl
from raylfl.errors import BadConfig
from raylfl.report.page import content_of
from raylfl.report.runs import group_runs, load_run, more_is_better
from tests.runtime.tiny import ONE_BY_ONE, Net, Points

SHORT = {**ONE_BY_ONE, "rounds": 3, "eval": {"every": 1}, "link": {"name": "perfect"}}


class AllPoints(Points):
    def test_dataset(self):
        return self.train_dataset()


class Dice(Net):
    """Logs a score and a loss of its own, and two metric objects that state their direction."""

    def __init__(self):
        super().__init__(norm=False, dropout=0.0)
        self.auroc, self.hinge = MulticlassAUROC(3), MulticlassHingeLoss(3)

    def test_step(self, batch, batch_idx):
        x, y = batch
        z = self.body(x)
        share = z.softmax(1)[torch.arange(len(y)), y].mean()
        self.log_dict({"dice_loss": 1 - share, "map50": share})
        self.auroc.update(z, y)
        self.hinge.update(z.softmax(1), y)
        self.log("auroc", self.auroc)
        self.log("hinge", self.hinge)


def dice(runs, *overrides):
    return raylfl.run(SHORT, [*runs, *overrides], model=Dice, data=AllPoints)


@pytest.fixture(scope="module")
def unstated(tmp_path_factory):
    return dice([f"logging.dir={tmp_path_factory.mktemp('plain')}"])


@pytest.fixture(scope="module")
def stated(tmp_path_factory):
    directions = "metrics={test/dice_loss: min, test/dise_loss: min, map50: max, train/later: min}"
    return dice([f"logging.dir={tmp_path_factory.mktemp('stated')}", "seed=1", directions])


def test_the_best_value_of_a_metric_follows_its_stated_direction(unstated, stated):
    best, values = stated.summary["best"], {name: [row[name] for row in stated.metrics] for name in stated.metrics[0]}
    assert best["test/dice_loss"] == min(values["test/dice_loss"]) < max(values["test/dice_loss"])
    assert best["test/map50"] == max(values["test/map50"])
    assert best["test/auroc"] == max(values["test/auroc"])  # stated by torchmetrics
    assert best["test/hinge"] == min(values["test/hinge"])
    assert not {"test/dice_loss", "test/map50"} & set(unstated.summary["best"])
    assert {"test/dice_loss", "test/map50"} < set(unstated.summary["final"])


def test_early_stopping_asks_for_a_direction_that_is_neither_stated_nor_known(runs):
    with pytest.raises(BadConfig, match=r"stop.metric=test/map50, .* metrics={test/map50: max}, or min"):
        dice(runs, "stop.metric=test/map50", "stop.target=0.0")
    for stated in ("stop.mode=max", "metrics.test/map50=max", "metrics={map50: max}"):
        assert len(dice(runs, "stop.metric=test/map50", "stop.target=0.0", stated).metrics) == 1
    assert len(dice(runs, "stop.metric=test/auroc", "stop.target=0.0").metrics) == 1
    assert len(dice(runs, "stop.metric=test/hinge", "stop.target=0.0").metrics) == 3  # never 0
    with pytest.raises(BadConfig, match=r"stop.mode=max, but must be auto or min, as metrics.test/map50 states"):
        dice(runs, "stop.metric=test/map50", "stop.target=0.0", "stop.mode=max", "metrics.test/map50=min")
    with pytest.raises(BadConfig, match=r"metrics=.*up"):
        dice(runs, "metrics.test/map50=up")


def test_a_report_uses_the_directions_of_its_runs_or_asks(unstated, stated):
    plain, stated = unstated.run_dir, stated.run_dir
    assert json.loads((plain / "directions.json").read_text()) == {"auroc": "max", "hinge": "min"}
    with pytest.raises(BadConfig, match=r"metric=test/map50, .*state it: --better max \(or min\)"):
        content_of([plain], metric="test/map50")
    for folder, metric, better, sign in (
        (plain, "test/map50", "max", "max"),
        (plain, "test/map50", "min", "min"),
        (plain, "test/auroc", None, "max"),
        (stated, "test/map50", None, "max"),
        (stated, "test/dice_loss", None, "min"),
    ):
        content = content_of([folder], metric=metric, better=better)
        columns = {column.key: column.better for column in content.summary(content.parts).columns}
        assert columns["last"] == columns["best"] == sign
    both = content_of([plain, stated], metric="test/map50")  # seeds of one setting, one of which states it
    (row,) = both.summary(both.parts).rows
    ends = [load_run(folder).column("test/map50").max() for folder in (plain, stated)]
    assert row["best"].mean == pytest.approx(np.mean(ends))


def test_runs_that_contradict_each_other_are_refused_until_one_is_resumed_with_the_other_direction(runs, stated):
    """Directions do not divide settings: both runs are in one group."""
    folder = dice(runs, "metrics.map50=min", "seed=2").run_dir
    (group,) = group_runs([load_run(stated.run_dir), load_run(folder)])
    with pytest.raises(BadConfig, match=r"test/map50, but must be better in one direction in all runs"):
        more_is_better(group.runs, "test/map50")
    resumed = raylfl.resume(folder, ["rounds=4", "metrics.map50=max"], model=Dice, data=AllPoints)
    assert resumed.summary["best"]["test/map50"] == max(row["test/map50"] for row in resumed.metrics)
    assert more_is_better([load_run(stated.run_dir), load_run(folder)], "test/map50")


def test_a_direction_for_a_metric_that_is_not_recorded_is_reported(stated):
    warned = [line for line in (stated.run_dir / "log.txt").read_text().splitlines() if "has no effect" in line]
    assert [line.partition(" ")[2] for line in warned] == [
        "warning: metrics.test/dise_loss has no effect: it is not recorded (did you mean test/dice_loss?)"
    ]


class TwoNames(Net):
    names = ("val_acc", "accuracy")

    def __init__(self):
        super().__init__(norm=False, dropout=0.0)

    def test_step(self, batch, batch_idx):
        for k, name in enumerate(self.names):
            self.log(name, k / 4)


class InTraining(TwoNames):
    names = ("acc",)

    def training_step(self, batch, batch_idx):
        self.log("train_acc", 0.5)
        self.log("accuracy", 0.25)
        return super().training_step(batch, batch_idx)


@pytest.mark.parametrize(
    ("model", "words"),
    [
        (TwoNames, "logs val_acc and accuracy, which are both recorded as accuracy"),
        (InTraining, "logs train_acc and accuracy, which are both recorded as accuracy"),
    ],
)
def test_two_logged_names_of_one_metric_are_refused(runs, model, words):
    with pytest.raises(BadConfig, match=words):
        raylfl.run(SHORT, runs, model=model, data=AllPoints)


class Masked(TwoNames):
    """A mean over the samples of class 2, with their number as the weight, which is 0 in most batches."""

    def test_step(self, batch, batch_idx):
        x, y = batch
        mask = y == 2
        self.log("of_class", x[mask].mean(), batch_size=int(mask.sum()))
        self.log("of_none", x[y == 7].mean(), batch_size=0)
        if int(mask.sum()):
            self.log("test_loss", nn.functional.cross_entropy(self.body(x), y))


def test_a_mean_over_a_mask_leaves_out_batches_in_which_the_mask_is_empty(runs):
    result = raylfl.run(SHORT, [*runs, "eval.batch_size=2"], model=Masked, data=AllPoints)
    data = Points()
    (x, y) = data.x, data.targets
    assert result.metrics[-1]["test/of_class"] == pytest.approx(float(x[y == 2].mean()), rel=1e-5)
    assert "test/of_none" not in result.metrics[-1]
    assert math.isfinite(result.metrics[-1]["test/loss"])  # logged in some batches, and taken from the step in others
