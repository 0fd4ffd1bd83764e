"""torchmetrics in parts: what Lightning needs without the rest, and the rest for whoever wants it."""

import pytest

from tests.test_compat import python

LEAN = "from raylfl import lean; lean.install(); import sys, lightning.pytorch as pl\n"
HEAVY = "[m for m in ('torchvision', 'scipy.signal', 'matplotlib', 'torchmetrics.functional') if m in sys.modules]"


def test_lightning_loads_without_what_it_does_not_need():
    code = (
        "import torch, torch.nn as nn\n"
        "class Net(pl.LightningModule):\n"
        "    def __init__(self):\n        super().__init__(); self.body = nn.Linear(2, 2)\n"
        f"Net(); print({HEAVY}, any('lean' in type(f).__module__ for f in sys.meta_path))"
    )
    assert python(LEAN + code) == "[] False"


def test_the_rest_is_there_for_whoever_asks():
    code = (
        "import torchmetrics; from torchmetrics import Metric, MetricCollection\n"
        "before = 'torchmetrics.functional' in sys.modules\n"
        "accuracy = torchmetrics.Accuracy(task='binary')\n"
        "import torch; accuracy.update(torch.tensor([1, 0]), torch.tensor([1, 1]))\n"
        "from lightning.pytorch.core.module import Metric as theirs\n"
        "print(before, float(accuracy.compute()), isinstance(accuracy, Metric))\n"
        "print(Metric is theirs is torchmetrics.Metric)\n"
        "missing = [n for n in torchmetrics.__all__ if not hasattr(torchmetrics, n)]\n"
        "print(missing, hasattr(torchmetrics, 'no_such_thing'), torchmetrics.__version__[:2])"
    )
    assert python(LEAN + code).splitlines() == ["False 0.5 True", "True", "[] False 1."]


@pytest.mark.parametrize("metric", ["torchmetrics.MeanMetric()", "MetricCollection({'mean': MeanMetric()})"])
def test_a_metric_can_be_plotted(metric):
    code = (
        "import torchmetrics; from torchmetrics import MeanMetric, MetricCollection\n"
        f"metric = {metric}; metric.update(2.0); before = 'matplotlib' in sys.modules\n"
        "drawn = metric.plot(); figure, axes = drawn[0] if isinstance(drawn, list) else drawn\n"
        "print(before, type(figure).__name__, len(axes.lines) + len(axes.collections) > 0)"
    )
    assert python(LEAN + code) == "False Figure True"


@pytest.mark.parametrize(
    "statement",
    [
        "from torchmetrics.classification import MulticlassAccuracy",
        "from torchmetrics.functional import accuracy",
        "from torchmetrics import F1Score, functional",
    ],
)
def test_parts_of_it_may_be_imported_on_their_own(statement):
    assert python(LEAN + statement + "; import torchmetrics; torchmetrics.Accuracy; print('fine')") == "fine"


def test_a_version_arranged_otherwise_is_imported_whole():
    code = LEAN.replace("lean.install()", "lean.NEEDED['Metric'] = 'torchmetrics.elsewhere'; lean.install()")
    assert python(
        code + "import torchmetrics; print(torchmetrics.Metric, 'torchmetrics.functional' in sys.modules)"
    ) == ("<class 'torchmetrics.metric.Metric'> True")


def test_what_was_imported_before_stays_as_it_is():
    code = "import raylfl, torchmetrics; from raylfl import lean; lean.install(); import sys\n"
    assert python(code + "print(any('lean' in type(f).__module__ for f in sys.meta_path))") == "False"
