"""Partition files are written, read and refused with a message; statistics of a split against direct computation."""

import json
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays
from omegaconf import OmegaConf
from scipy.stats import entropy

from raylfl.errors import BadValue
from raylfl.heterogeneity.partition import PARTITIONS, Samples, Split
from raylfl.heterogeneity.partition.given import File, as_text, load
from raylfl.heterogeneity.partition.stats import class_counts, emd, label_entropy, per_client, summary, table

CONF = Path(__file__).parents[2] / "conf" / "partition"


@given(owner=st.lists(st.integers(0, 5), min_size=6, max_size=60))
def test_a_written_file_gives_the_same_split(owner, tmp_path_factory):
    path = tmp_path_factory.mktemp("partition") / "partition.json"
    clients = [np.flatnonzero(np.array(owner) == i) for i in range(6)]  # some may be empty
    path.write_text(as_text(clients))
    split = File(str(path)).split(Samples(len(owner)), 6, seed=0)
    assert split.dropped == 0
    assert all(map(np.array_equal, split.clients, clients))


def test_a_written_file_is_plain_json_with_clients_in_order():
    text = as_text([np.array([2, 4]), np.array([], dtype=np.int64), np.array([0])])
    assert list(json.loads(text).items()) == [("0", [2, 4]), ("1", []), ("2", [0])]


def test_a_published_sfl_file_is_read_unchanged(tmp_path):
    """One line, string keys, unsorted indices: json.dump of {int: list}, as its code writes it."""
    path = tmp_path / "cifar10_M[3]_exdir[2 10.0].txt"
    path.write_text(json.dumps({0: [5, 1, 3], 1: [0, 2], 2: [4]}))
    assert [c.tolist() for c in load(path)] == [[5, 1, 3], [0, 2], [4]]
    split = File(str(path)).split(Samples(6), 3, seed=0)
    assert [c.tolist() for c in split.clients] == [[1, 3, 5], [0, 2], [4]]
    assert File(str(path)).fixed_clients(Samples(6)) == 3
    path.write_text('{"1": [7], "0": [1, 2]}')  # samples in no list are counted
    split = File(str(path)).split(Samples(9), 2, seed=0)
    assert (split.dropped, split.clients[1].tolist()) == (6, [7])


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("{0: [1]}", "Expecting property name"),
        ("[[0], [1]]", "its keys are not the numbers"),
        ("{}", "its keys are not the numbers"),
        ('{"0": [0], "2": [1]}', "its keys are not the numbers"),
        ('{"0": [0], "1": 1}', "client 1 has no list of whole numbers"),
        ('{"0": [0.5], "1": [1]}', "client 0 has no list of whole numbers"),
        ('{"0": [true], "1": [1]}', "client 0 has no list of whole numbers"),
        ('{"0": [9223372036854775808], "1": [1]}', "client 0 has no list of whole numbers"),
        ('{"0": [0], "1": [5]}', "client 1 has 5"),
        ('{"0": [0, 3], "1": [3]}', "3 is listed by clients 0 and 1"),
    ],
)
def test_a_file_that_is_no_partition_is_refused_with_a_message(tmp_path, text, words):
    path = tmp_path / "p.json"
    path.write_text(text)
    with pytest.raises(BadValue, match=words) as refused:
        File(str(path)).split(Samples(5), 2, seed=0)
    assert refused.value.key == "path"


def test_a_missing_file_and_another_number_of_clients_are_refused(tmp_path):
    with pytest.raises(BadValue, match=r"^path=.*No such file"):
        File(str(tmp_path / "none.json")).split(Samples(5), 2, seed=0)
    (tmp_path / "p.json").write_text('{"0": [0], "1": [1]}')
    with pytest.raises(BadValue, match=r"^num_clients=3, but must be 2 or null, "):
        File(str(tmp_path / "p.json")).split(Samples(5), 3, seed=0)


@pytest.mark.parametrize("entry", PARTITIONS, ids=lambda entry: entry.name)
def test_conf_has_each_partition_with_its_default_options(entry):
    path = CONF / f"{entry.name}.yaml"
    assert path.read_text().startswith("# raylfl partition ")
    options = OmegaConf.to_container(OmegaConf.load(path))["partition"]
    assert options.pop("name") == entry.name
    assert f"partition.name={entry.name}" in path.read_text().splitlines()[0]
    checked = OmegaConf.merge(OmegaConf.structured(entry.cls), options)  # types and names of all options
    assert set(checked) == set(options)
    if entry.name != "file":
        assert entry.cls(**options) == entry.cls()


LABELS = np.array([7, 7, 3, 3, 3, 9])
SPLIT = Split([np.array([0, 1, 2]), np.array([3, 4]), np.array([], dtype=np.int64)], dropped=1)
COUNTS = arrays(np.int64, st.tuples(st.integers(1, 8), st.integers(1, 6)), elements=st.integers(0, 50))


def test_counts_are_samples_of_each_label_at_each_client():
    samples = Samples(6, LABELS)
    assert samples.classes.tolist() == [3, 7, 9]
    assert class_counts(SPLIT, samples).tolist() == [[1, 2, 0], [2, 0, 0], [0, 0, 0]]


@given(counts=COUNTS.filter(lambda counts: counts.sum(axis=1).min() > 0))
def test_label_entropy_is_scipys(counts):
    np.testing.assert_allclose(label_entropy(counts), entropy(counts, axis=1), rtol=1e-12, atol=1e-12)


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


def test_unlabelled_data_has_sizes_only_and_no_sample_is_dropped_unless_said():
    assert [row["measure"] for row in summary(SPLIT, Samples(6))] == ["samples"]
    assert table(SPLIT, Samples(6))[1] == {"client": 1, "samples": 2}
    with pytest.raises(BadValue):
        class_counts(SPLIT, Samples(6))
    assert Split([np.array([1, 0])]).dropped == 0
    assert Split.of(np.array([1, -1, 0, -1, 1]), 3).dropped == 2
    assert [own.tolist() for own in Split.of(np.array([1, -1, 0, -1, 1]), 3).clients] == [[2], [0, 4], []]
