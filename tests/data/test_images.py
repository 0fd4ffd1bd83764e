"""Transforms against plain numpy and against brute force; the image sets that need no files."""

import pickle

import numpy as np
import pytest
import torch
from sklearn.datasets import load_digits

from raylfl.data.digits import Digits, SyntheticImages, stratified_split
from raylfl.data.image import ImageTransform, normalised, shift_and_mirror
from raylfl.errors import BadValue

PIXELS = torch.randint(0, 256, (5, 3, 12, 10), dtype=torch.uint8, generator=torch.Generator().manual_seed(0))


def test_normalisation_is_that_of_each_channel():
    mean, std = (0.5, 0.4, 0.3), (0.2, 0.25, 0.3)
    result = ImageTransform(mean, std)(PIXELS).numpy()
    for c in range(3):
        expected = (PIXELS[:, c].numpy() / 255 - mean[c]) / std[c]
        np.testing.assert_allclose(result[:, c], expected, rtol=1e-5, atol=1e-6)


def test_enlarging_interpolates_along_rows_and_columns():
    """Bilinear: linear along one axis, then along the other; pixel k has its centre at k + 1/2."""
    expected = PIXELS.numpy() / 255
    for axis in (2, 3):
        n = expected.shape[axis]
        points = (np.arange(28) + 0.5) * n / 28 - 0.5
        expected = np.apply_along_axis(
            lambda row, points=points: np.interp(points, np.arange(len(row)), row), axis, expected
        )
    np.testing.assert_allclose(ImageTransform(size=28)(PIXELS).numpy(), expected, atol=1e-6)


def test_transforms_keep_their_input_its_precision_and_can_be_pickled():
    transform = ImageTransform((0.5,), (0.2,))
    assert transform(PIXELS).dtype == torch.float32
    assert transform(PIXELS.double()).dtype == torch.float64
    torch.testing.assert_close(transform(PIXELS.double()).float(), transform(PIXELS))
    transform = ImageTransform((0.1, 0.2, 0.3), (1.0,), size=14, augment=True)
    before = PIXELS.clone()
    transform(PIXELS)
    transform(PIXELS.double())
    assert torch.equal(PIXELS, before)
    assert pickle.loads(pickle.dumps(transform)) == transform


def candidates(image, margin):
    """All crops of the zero-padded image, plain and mirrored."""
    padded = np.pad(image, ((0, 0), (margin, margin), (margin, margin)))
    _, height, width = image.shape
    crops = [padded[:, y : y + height, x : x + width] for y in range(2 * margin + 1) for x in range(2 * margin + 1)]
    return crops + [crop[:, :, ::-1] for crop in crops]


def test_all_places_and_both_directions_are_equally_likely():
    """5,000 draws of 9 places x 2 directions: 278 each, 3.5 sigma is 57."""
    x = torch.arange(1.0, 10).view(1, 1, 3, 3).expand(5000, 1, 3, 3)
    torch.manual_seed(0)
    codes = {crop.tobytes(): k for k, crop in enumerate(candidates(x[0].numpy(), 1))}
    counts = np.bincount([codes[out.tobytes()] for out in shift_and_mirror(x, 1).numpy()], minlength=18)
    assert counts.shape == (18,)
    assert abs(counts - 5000 / 18).max() < 57


def test_augmentation_follows_torchs_seed_and_spares_the_test_set():
    transform = normalised((0.5,), (0.2,), channels=3, augment=True)
    torch.manual_seed(3)
    one = transform(PIXELS)
    other = transform(PIXELS)
    torch.manual_seed(3)
    assert torch.equal(transform(PIXELS), one)
    assert not torch.equal(one, other)
    data = Digits()
    data.hold((PIXELS, torch.zeros(5).long()), (PIXELS, torch.zeros(5).long()), 10, transform)
    assert data.train_transform.augment
    assert torch.equal(data.test_transform(PIXELS), ImageTransform((0.5,), (0.2,))(PIXELS))


def test_padding_of_augmented_images_is_black_before_normalisation():
    white = torch.full((64, 1, 4, 4), 255, dtype=torch.uint8)
    torch.manual_seed(0)
    values = normalised((0.25,), (0.5,), channels=1, augment=True)(white).unique().tolist()
    assert values == pytest.approx([(0 - 0.25) / 0.5, (1 - 0.25) / 0.5])


@pytest.mark.parametrize(("mean", "std", "key"), [((0, 0), (1,), "mean"), ((0,), (1, 1), "std"), ((0,), (0,), "std")])
def test_statistics_that_do_not_fit_the_channels_are_refused(mean, std, key):
    with pytest.raises(BadValue, match=f"^{key}="):
        normalised(mean, std, channels=3)


def test_digits_are_scikit_learns_split_by_class():
    data, source = Digits(), load_digits()
    halves = [data.train_dataset.tensors, data.test_dataset.tensors]
    ours = sorted((int(y), x.flatten().tolist()) for xs, ys in halves for x, y in zip(xs, ys, strict=True))
    theirs = sorted((int(y), x.tolist()) for x, y in zip(source.data, source.target, strict=True))
    assert ours == theirs
    per_class = np.bincount(source.target)
    assert torch.bincount(halves[1][1]).tolist() == [round(0.2 * n) for n in per_class]
    assert torch.equal(data.targets, halves[0][1])
    assert (halves[0][0].dtype, data.targets.dtype) == (torch.uint8, torch.int64)
    x = data.train_transform(halves[0][0])
    assert (float(x.min()), float(x.max()), x.shape[1:]) == (0.0, 1.0, data.in_shape)


@pytest.mark.parametrize("upscale", [None, 28])
def test_in_shape_is_what_the_transform_makes(upscale):
    data = Digits(upscale)
    x, _ = data.train_dataset[:2]
    for transform in (data.train_transform, data.test_transform):
        assert tuple(transform(x).shape[1:]) == data.in_shape == (1, upscale or 8, upscale or 8)


def test_the_split_is_a_fixed_choice_of_a_fifth_of_every_class():
    labels = torch.tensor([0] * 10 + [5] * 21 + [7] * 2)
    train, test = stratified_split(labels)
    assert sorted([*train.tolist(), *test.tolist()]) == list(range(33))
    assert torch.bincount(labels[test], minlength=8).tolist() == [2, 0, 0, 0, 0, 4, 0, 0]
    assert torch.equal(test, stratified_split(labels)[1])
    assert test.tolist() != [0, 1, *range(10, 14)]  # a keyed choice, not the first ones


def test_synthetic_images_are_balanced_and_separable():
    data = SyntheticImages(shape=(2, 5, 6), num_classes=4, num_train=402, num_test=100, seed=1)
    x, y = data.train_dataset.tensors
    assert (x.shape, x.dtype, y.dtype, data.in_shape) == ((402, 2, 5, 6), torch.float32, torch.int64, (2, 5, 6))
    assert torch.bincount(y).tolist() == [101, 101, 100, 100]
    means = torch.stack([x[y == c].mean(dim=0) for c in range(4)])
    x, y = data.test_dataset.tensors
    nearest = torch.cdist(x.flatten(1), means.flatten(1)).argmin(dim=1)
    assert float((nearest == y).float().mean()) > 0.98
    assert torch.equal(data.test_transform(x), x)


def test_synthetic_images_have_the_configured_noise_and_depend_on_their_seed():
    x, y = SyntheticImages(num_train=2000, num_classes=2, noise=0.5).train_dataset.tensors
    assert float(x[y == 0].std(dim=0).mean()) == pytest.approx(0.5, rel=0.02)
    x, y = SyntheticImages(num_train=20, num_classes=2, noise=0.0).train_dataset.tensors
    assert len(x[y == 0].unique(dim=0)) == 1
    one, again, other = SyntheticImages(seed=1), SyntheticImages(seed=1), SyntheticImages(seed=2)
    assert torch.equal(one.train_dataset.tensors[0], again.train_dataset.tensors[0])
    assert not torch.equal(one.train_dataset.tensors[0], other.train_dataset.tensors[0])
    assert not torch.equal(one.train_dataset.tensors[0][:200], one.test_dataset.tensors[0])


@pytest.mark.parametrize(
    ("cls", "init_args", "key"),
    [
        (Digits, {"upscale": 4}, "upscale"),
        (SyntheticImages, {"shape": [8, 8]}, "shape"),
        (SyntheticImages, {"num_train": 0}, "num_train"),
        (SyntheticImages, {"noise": -1.0}, "noise"),
    ],
)
def test_impossible_options_are_refused_by_name(cls, init_args, key):
    with pytest.raises(BadValue, match=f"^{key}="):
        cls(**init_args)
