"""The real data sets, if RAYLFL_DATA has MNIST, FashionMNIST, cifar10-jpeg.tgz and published/."""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np
import pytest
import torch

from raylfl.data.image_folder import ImageFolder
from raylfl.data.mnist import FashionMnist, Mnist
from raylfl.report.derived import last_k
from papers.run_cache import RunCache
from papers.sfl_cells import CLIP, Cell
from papers.sfl_logs import FILE, log_of
from papers.sfl_numbers import TABLE10

HERE = Path(os.environ.get("RAYLFL_DATA", "nowhere"))


def needs(name):
    return pytest.mark.skipif(not (HERE / name).exists(), reason=f"RAYLFL_DATA has no {name}")


@pytest.mark.parametrize(
    ("cls", "name", "mean", "std"), [(Mnist, "MNIST", 0.1307, 0.3081), (FashionMnist, "FashionMNIST", 0.2860, 0.3530)]
)
def test_the_idx_files_have_the_published_counts_and_moments(cls, name, mean, std):
    if not (HERE / name).exists():
        pytest.skip(f"RAYLFL_DATA has no {name}")
    data = cls()
    x, y = data.train_dataset.tensors
    assert (tuple(x.shape), len(data.test_dataset)) == ((60_000, 1, 28, 28), 10_000)
    assert float(x.float().mean() / 255) == pytest.approx(mean, abs=1e-4)
    assert float(x.float().std() / 255) == pytest.approx(std, abs=1e-4)
    if name == "FashionMNIST":
        assert torch.bincount(y).tolist() == [6000] * 10
    else:  # LeCun's first digits
        assert y[:10].tolist() == [5, 0, 4, 1, 9, 2, 1, 3, 1, 4]


@pytest.mark.slow
@needs("cifar10-jpeg.tgz")
def test_the_jpeg_copies_of_cifar_10_are_sixty_thousand_images(tmp_path):
    data = ImageFolder("cifar10-jpeg.tgz", cache=str(tmp_path))
    x = data.train_dataset.tensors[0]
    assert (tuple(x.shape), len(data.test_dataset)) == ((50_000, 3, 32, 32), 10_000)
    assert data.classes == sorted(data.classes)
    assert torch.bincount(data.targets).tolist() == [5000] * 10
    moments = x.float().mean((0, 2, 3)) / 255
    torch.testing.assert_close(moments, torch.tensor([0.4914, 0.4822, 0.4465]), atol=2e-3, rtol=0)


@needs(FILE)
def test_the_authors_logs_are_those_of_table_10():
    """Every number of MNIST and FashionMNIST that the paper prints is the mean of a log's last 40 rounds."""
    for (task, classes, steps), numbers in TABLE10.items():
        if "MNIST" not in task:
            continue
        for method, rates, text in zip(
            ("PFL", "SFL"), ((0.01, 0.03, 0.1, 0.3), (0.003, 0.01, 0.03, 0.1)), numbers, strict=True
        ):
            for lr, value in zip(rates, text.split(), strict=True):
                where = {"task": task, "classes": classes, "steps": steps, "method": method, "lr": lr}
                series = log_of(where | {"clip": CLIP[method]}, 1000)
                mean = 100 * np.mean([accuracy for r, accuracy in series if r >= 960])
                assert mean == pytest.approx(float(value), abs=0.011), where


@needs("MNIST")
@pytest.mark.slow
def test_the_first_rounds_of_a_cell_of_table_10_are_where_the_authors_are(tmp_path):
    """Logistic regression, C=2, K=5, PFL at 0.01: 120 rounds; the logs have 85.4 to 88.7 % in rounds 80 to 120."""
    cell = Cell("MNIST, logistic", 2, 5, "PFL", 10)
    group = RunCache(tmp_path, "paper", processes=1).groups([cell.setting(0.01, 120, "paper")], [1234])[0]
    assert 0.84 < last_k(group, "test/accuracy", 40).mean < 0.90
