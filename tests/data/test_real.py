"""The real data sets, if RAYLFL_DATA has MNIST, FashionMNIST, cifar10-jpeg.tgz and published/."""

import os
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from papers.base import find
from papers.grid import Point
from papers.run_cache import RunCache
from papers.sfl_grid import FILE, log_of, published_rates
from raylfl.data.archives import FashionMnist, Mnist
from raylfl.data.image_folder import ImageFolder
from raylfl.report.derived import last_k

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


@pytest.mark.exhaustive  # tests/data/test_image_folder.py reads a few
@needs("cifar10-jpeg.tgz")
def test_the_jpeg_copies_of_cifar_10_are_sixty_thousand_images(tmp_path):
    data = ImageFolder("cifar10-jpeg.tgz", cache=str(tmp_path))
    x = data.train_dataset.tensors[0]
    assert (tuple(x.shape), len(data.test_dataset)) == ((50_000, 3, 32, 32), 10_000)
    assert data.classes == sorted(data.classes)
    assert torch.bincount(data.targets).tolist() == [5000] * 10
    moments = x.float().mean((0, 2, 3)) / 255
    torch.testing.assert_close(moments, torch.tensor([0.4914, 0.4822, 0.4465]), atol=2e-3, rtol=0)


@pytest.mark.exhaustive  # of a file that does not change; papers/test_ledger.py reads a small one
@needs(FILE)
def test_the_authors_logs_are_those_of_table_10():
    """Every number of MNIST and FashionMNIST that the paper prints is the mean of a log's last 40 rounds."""
    for cell, numbers in published_rates().items():
        for lr, stat in numbers.items() if "MNIST" in cell[0] else ():
            where = dict(zip(("task", "classes", "steps", "method", "clip"), cell, strict=True)) | {"lr": lr}
            mean = np.mean([accuracy for r, accuracy in log_of(where, 1000) if r >= 960])
            assert mean == pytest.approx(stat.mean, abs=0.00011), where


@needs("MNIST")
@needs(FILE)
@pytest.mark.slow
def test_the_first_rounds_of_a_cell_of_table_10_are_where_the_authors_are(tmp_path):
    """Logistic regression, C=2, K=5, PFL at 0.01; the authors' mean of rounds 21 to 40 is that of one seed."""
    cell = {"task": "MNIST, logistic", "classes": 2, "steps": 5, "method": "PFL", "lr": 0.01}
    setting = find("sfl/table10").setting(Point(**cell, norm="medium", stage=0), "paper")
    setting = replace(setting, config={**setting.config, "rounds": 40})
    group = RunCache(tmp_path, "paper", jobs=1).groups([setting], [1234])[0]
    theirs = np.mean([accuracy for r, accuracy in log_of({**cell, "clip": 10}, 1000) if 20 <= r < 40])
    assert last_k(group, "test/accuracy", 20).mean == pytest.approx(theirs, abs=0.03)
