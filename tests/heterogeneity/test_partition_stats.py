"""Statistics of a split against direct computation."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays
from scipy.stats import entropy

from raylfl.errors import BadValue
from raylfl.heterogeneity.partition import Samples, Split
from raylfl.heterogeneity.partition.stats import (
    class_counts,
    emd,
    label_entropy,
    per_client,
    summary,
    table,
)

LABELS = np.array([7, 7, 3, 3, 3, 9])
SPLIT = Split([np.array([0, 1, 2]), np.array([3, 4]), np.array([], dtype=np.int64)], dropped=1)
COUNTS = arrays(np.int64, st.tuples(st.integers(1, 8), st.integers(1, 6)), elements=st.integers(0, 50))


def test_counts_are_samples_of_each_label_at_each_client():
    samples = Samples(6, LABELS)
    assert samples.classes.tolist() == [3, 7, 9]
    assert class_counts(SPLIT, samples).tolist() == [[1, 2, 0], [2, 0, 0], [0, 0, 0]]


@settings(deadline=None)
@given(counts=COUNTS.filter(lambda counts: counts.sum(axis=1).min() > 0))
def test_label_entropy_is_scipys(counts):
    np.testing.assert_allclose(label_entropy(counts), entropy(counts, axis=1), rtol=1e-12, atol=1e-12)


@settings(deadline=None)
@given(counts=COUNTS.filter(lambda counts: counts.sum(axis=1).min() > 0))
def test_emd_is_zero_for_the_global_mix_and_below_two(counts):
    distances = emd(counts)
    assert np.all((distances >= 0) & (distances < 2))
    np.testing.assert_allclose(emd(np.vstack([counts.sum(axis=0)] * 3)), 0, atol=1e-12)


def test_emd_by_hand():
    """p = (1/2, 1/2): (3/4, 1/4) is |1/4| + |1/4| away, one class alone 1."""
    assert emd(np.array([[3, 1], [1, 3]])) == pytest.approx([0.5, 0.5])
    assert emd(np.array([[4, 0], [0, 4]])) == pytest.approx([1.0, 1.0])


def test_a_client_without_samples_has_no_mix():
    rows = table(SPLIT, Samples(6, LABELS))
    assert rows[0]["client"] == 0
    assert rows[0]["classes"] == 2
    assert rows[0]["label_entropy"] == pytest.approx(np.log(3) - 2 / 3 * np.log(2))
    assert rows[1]["label_entropy"] == 0
    assert rows[2]["samples"] == rows[2]["classes"] == 0
    assert np.isnan([rows[2]["label_entropy"], rows[2]["emd"]]).all()


def test_the_summary_is_that_of_the_columns():
    samples = Samples(6, LABELS)
    rows = {row["measure"]: row for row in summary(SPLIT, samples)}
    assert list(rows) == ["samples", "classes", "label_entropy", "emd"]
    sizes = {"measure": "samples", "min": 0.0, "median": 2.0, "mean": 5 / 3, "max": 3.0}
    assert rows["samples"] == pytest.approx(sizes | {"std": np.std([3, 2, 0])})
    assert rows["emd"]["mean"] == pytest.approx(np.nanmean(per_client(SPLIT, samples)["emd"]))


def test_unlabelled_data_has_sizes_only():
    assert [row["measure"] for row in summary(SPLIT, Samples(6))] == ["samples"]
    assert table(SPLIT, Samples(6))[1] == {"client": 1, "samples": 2}
    with pytest.raises(BadValue):
        class_counts(SPLIT, Samples(6))


def test_no_sample_is_dropped_unless_said():
    assert Split([np.array([1, 0])]).dropped == 0
    assert Split.of(np.array([1, -1, 0, -1, 1]), 3).dropped == 2
    assert [own.tolist() for own in Split.of(np.array([1, -1, 0, -1, 1]), 3).clients] == [[2], [0, 4], []]
