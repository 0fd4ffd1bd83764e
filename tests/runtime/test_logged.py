"""Values logged in an evaluation, by hand: weights, reductions, names, and metric objects split over workers."""

import pytest
import torch
from torchmetrics import CatMetric, MeanMetric, Metric
from torchmetrics.classification import MulticlassAccuracy, MulticlassAUROC

from raylfl.errors import BadConfig
from raylfl.runtime.workers.logged import EvaluationLog, Logged, canonical, merged


def logged(batches, between=(), **options):
    """The log of batches [(samples, [(name, value), ...]), ...], then of values between batches."""
    log = EvaluationLog()
    for samples, values in batches:
        log.begin_batch(samples)
        for name, value in values:
            log.log(name, value, **options)
        log.end_batch()
    for name, value in between:
        log.log(name, value, **options)
    return log


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("val_acc", "accuracy"),
        ("test/accuracy", "accuracy"),
        ("train_loss", "loss"),
        ("validation/f1", "f1"),
        ("test_val_f1", "val_f1"),
        ("accent", "accent"),
        ("acc", "accuracy"),
    ],
)
def test_a_metric_has_one_name_whatever_its_prefix(name, expected):
    assert canonical(name) == expected


@pytest.mark.parametrize(
    ("reduce", "expected"),
    [("mean", (3 * 1.0 + 1 * 5.0) / 4), ("avg", 2.0), ("sum", 6.0), ("min", 1.0), (torch.max, 5.0), (torch.amin, 1.0)],
)
def test_batches_are_reduced_by_samples_or_as_asked(reduce, expected):
    log = logged([(3, [("a", 1.0)]), (1, [("a", torch.tensor([5.0]))])], reduce_fx=reduce)
    assert log.finish().results() == {"a": expected}


def test_the_last_value_of_a_name_in_a_batch_counts_and_so_does_the_last_between_batches():
    log = logged([(2, [("a", 9.0), ("a", 1.0)]), (2, [("a", 3.0)])], [("end", 1.0), ("end", 2.0)])
    assert log.finish().results() == {"a": 2.0, "end": 2.0}
    assert logged([(2, [("a", 9.0)])], [("a", 5.0)]).finish().results() == {"a": 5.0}


@pytest.mark.parametrize("value", [torch.zeros(2), "text", None, [1.0, 2.0]])
def test_what_is_no_number_is_refused_by_name(value):
    with pytest.raises(BadConfig, match="the model logs val_a as"):
        logged([(1, [("val_a", value)])])


def test_another_reduction_is_refused():
    with pytest.raises(BadConfig, match="reduce_fx=median, but must be one of mean, sum, min, max"):
        logged([(1, [("a", 1.0)])], reduce_fx=torch.median)


def test_parts_of_an_evaluation_are_joined_in_order_of_their_names_and_values():
    parts = [logged([(1, [("a", 1.0)]), (2, [("a", 2.0), ("b", 1.0)])]), logged([(5, [("a", 4.0), ("c", 7.0)])])]
    whole = Logged.joined([log.finish() for log in parts])
    assert whole.series["a"].pairs == [(1.0, 1), (2.0, 2), (4.0, 5)]
    assert whole.results() == {"a": pytest.approx((1 + 4 + 20) / 8), "b": 1.0, "c": 7.0}
    assert Logged.joined([]).results() == {}


def draws(batches):
    generator = torch.Generator().manual_seed(0)
    return [(torch.rand(7, 3, generator=generator), torch.arange(7) % 3) for _ in range(batches)]


@pytest.mark.parametrize(
    "make",
    [
        lambda: MulticlassAccuracy(3, average="macro"),
        lambda: MulticlassAUROC(3, thresholds=None),
        lambda: MulticlassAccuracy(3, average="macro") + MulticlassAccuracy(3, average="micro"),
    ],
)
def test_a_metric_object_over_workers_is_that_over_all_batches(make):
    batches, parts, whole = draws(4), [], make()
    for some in (batches[:1], batches[1:]):
        log, metric = EvaluationLog(), make()
        for x, y in some:
            log.begin_batch(len(y))
            metric.update(x, y)
            log.log("val_m", metric)
        parts.append(log.finish())
    for x, y in batches:
        whole.update(x, y)
    assert Logged.joined(parts).results() == {"m": pytest.approx(float(whole.compute()), rel=1e-6)}


def test_a_metric_is_reset_after_an_evaluation_and_its_copy_is_not():
    metric = MeanMetric()
    metric.update(3.0)
    log = EvaluationLog()
    log.log("a", metric)
    finished = log.finish()
    metric.update(100.0)
    assert finished.results() == {"a": 3.0}
    assert float(metric.compute()) == 100.0


def test_a_metric_object_that_some_workers_never_fed_adds_nothing():
    fed, idle = CatMetric(), CatMetric()
    fed.update(torch.tensor([1.0, 2.0]))
    assert merged([idle, fed]).compute().tolist() == [1.0, 2.0]
    assert merged([fed]) is fed
    assert merged([CatMetric(), CatMetric()]).value == []
    log = EvaluationLog()
    log.log("a", fed)
    whole = Logged.joined([EvaluationLog().finish(), log.finish()])
    assert whole.metrics["a"].compute().tolist() == [1.0, 2.0]


class Kept(Metric):
    """A metric whose states torchmetrics gathers without reducing them."""

    def __init__(self):
        super().__init__()
        self.add_state("seen", default=[], dist_reduce_fx=None)

    def update(self, value):
        self.seen.append(torch.tensor(value))

    def compute(self):
        return torch.stack(self.seen).amax()


def test_states_that_are_gathered_without_a_reduction_stay_lists():
    parts = [Kept(), Kept()]
    for value, part in zip((3.0, 7.0), parts, strict=True):
        part.update(value)
    whole = merged(parts)
    assert [float(value) for value in whole.seen] == [3.0, 7.0]
    assert float(whole.compute()) == 7.0
