"""Values logged by `validation_step` against scikit-learn on the whole test set at once."""

import pytest
import torch
import torch.distributed as dist
from sklearn.metrics import f1_score, recall_score, roc_auc_score

import raylfl
from raylfl.core.oracle import Batch
from raylfl.runtime.workers.evaluate import Evaluator, Recorder
from tests.runtime.lightning_modules import Few
from tests.runtime.tiny import ONE_BY_ONE, Net
from tests.shares import also

LOGGED = {
    **ONE_BY_ONE,
    "rounds": 1,
    "data": {"class_path": "tests.runtime.lightning_modules.Few"},
    "model": {"class_path": "tests.runtime.lightning_modules.Measured"},
    "eval": {"every": 1},
}


@pytest.fixture(scope="module")
def result(tmp_path_factory):
    """A run that evaluates in batches of seven."""
    return raylfl.run(LOGGED, [f"logging.dir={tmp_path_factory.mktemp('evaluation')}", "eval.batch_size=7"])


@pytest.fixture(scope="module")
def truth(result):
    """(scores [46, 3], labels [46]) of the final model on the test set."""
    x, y = Few().test_dataset().tensors
    with torch.no_grad():
        return result.module.eval().body(x), y


def test_metric_objects_are_computed_once_over_the_whole_evaluation(result, truth):
    z, y = truth
    row, guess = result.metrics[-1], z.argmax(1)
    assert row["test/macro"] == pytest.approx(recall_score(y, guess, average="macro"), rel=1e-6)
    assert row["test/f1"] == pytest.approx(f1_score(y, guess, average="macro"), rel=1e-6)
    assert row["test/auroc"] == pytest.approx(roc_auc_score(y, z.softmax(1), multi_class="ovr"), rel=1e-6)
    assert row["test/micro"] == pytest.approx(float((guess == y).float().mean()), rel=1e-6)
    assert row["test/mean"] == pytest.approx(float(z[:, 0].mean()), rel=1e-5)
    assert row["test/hidden"] == pytest.approx(float(z[:, 1].mean()), rel=1e-5)
    assert row["test/twice"] == pytest.approx(2 * row["test/macro"])


def test_metric_objects_do_not_ask_a_process_group_of_the_program(result, runs):
    """A run is in one process of the program; raylfl merges what its own processes have measured."""
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    try:
        within = raylfl.run(LOGGED, [*runs, "eval.batch_size=7"])
    finally:
        dist.destroy_process_group()
    for name in ("macro", "f1", "auroc", "micro", "twice"):
        assert within.metrics[-1][f"test/{name}"] == pytest.approx(result.metrics[-1][f"test/{name}"], rel=1e-6)


def test_numbers_are_weighted_by_samples_or_reduced_by_reduce_fx(result, truth):
    z, y = truth
    row = result.metrics[-1]
    assert row["test/loss"] == pytest.approx(float(torch.nn.functional.cross_entropy(z, y)), rel=1e-5)
    assert row["test/highest"] == pytest.approx(float(z.max()), rel=1e-6)
    assert row["test/lowest"] == pytest.approx(float(z.min()), rel=1e-6)
    assert row["test/weighed"] == pytest.approx(float(z[:, 2].mean()) / 2, rel=1e-5)
    assert row["test/batches"] == 7
    assert row["test/first"] == 6


@pytest.mark.parametrize("size", [1, also(500)])
def test_the_number_does_not_depend_on_the_batch_size(result, runs, size):
    row = raylfl.run(LOGGED, [*runs, f"eval.batch_size={size}"]).metrics[-1]
    for name in ("macro", "f1", "auroc", "micro", "mean", "hidden", "loss", "highest", "lowest", "weighed"):
        assert row[f"test/{name}"] == pytest.approx(result.metrics[-1][f"test/{name}"], rel=1e-5), name


def model(name):
    return f"model.class_path=tests.runtime.lightning_modules.{name}"


def test_hooks_of_an_evaluation_get_all_batches_and_their_logs_are_in_the_rows(runs):
    """Batches of seven, in order, on one worker; counters and lists are the module's own."""
    row = raylfl.run(LOGGED, [*runs, model("Gathering"), "eval.batch_size=7"]).metrics[-1]
    assert row["test/samples"] == 46
    assert 1 <= row["test/uniq"] <= 3
    whole = raylfl.run(LOGGED, [*runs, model("Gathering")]).metrics[-1]
    assert row["test/macro"] == pytest.approx(whole["test/macro"], rel=1e-6)


def test_the_test_set_goes_through_test_step_and_clients_data_through_validation_step(runs):
    result = raylfl.run(LOGGED, [*runs, model("Both"), "eval.participants=true", "link={name: perfect}"])
    row = result.metrics[-1]
    assert (row["test/accuracy"], row["test/ended"]) == (0.5, 1.0)
    assert row["participants/samples"] == 30
    assert "test/samples" not in row
    assert "participants/ended" not in row


def test_what_is_not_called_or_not_recorded_is_named_at_the_start(runs):
    def said(*overrides):
        return (raylfl.run(LOGGED, [*runs, "rounds=0", *overrides]).run_dir / "log.txt").read_text()

    assert "of_a_batch not recorded in evaluations: logged with on_epoch=False" in said()
    unused = "on_validation_epoch_end, on_validation_end not called: no evaluation goes through validation_step"
    assert unused in said(model("Both"))
    assert "not called" not in said(model("Both"), "eval.clients=true")


class Returning(Net):
    """A module whose training loss is 7 and whose evaluation step returns (and logs) what it is told."""

    def __init__(self, returned, logged=None):
        super().__init__()
        self.returned, self.logged = returned, logged

    def training_step(self, batch, batch_idx):
        self.log("loss", 9.0)  # not in an evaluation
        return {"loss": torch.tensor(7.0)}

    def test_step(self, batch, batch_idx):
        if self.logged is not None:
            self.log("test_loss", self.logged)
        return self.returned


@pytest.mark.parametrize(
    ("returned", "logged", "loss"),
    [
        (None, None, 7.0),
        (torch.tensor(3.0), None, 3.0),
        (torch.tensor([3.0]), None, 3.0),
        ({"loss": torch.tensor(3.0)}, None, 3.0),
        ({"other": torch.tensor(3.0)}, None, 7.0),
        (torch.zeros(2), None, 7.0),  # predictions, say
        (3.0, None, 7.0),
        (torch.tensor(3.0), 5.0, 5.0),
    ],
)
def test_the_loss_is_the_logged_one_or_the_returned_one_or_the_training_loss(returned, logged, loss):
    module, recorder = Returning(returned, logged), Recorder()
    recorder.attach(module)
    batches = [Batch(torch.zeros(2, 4), 2)] * 2
    assert Evaluator(module, recorder).measure("test", batches).results() == {"loss": loss}
