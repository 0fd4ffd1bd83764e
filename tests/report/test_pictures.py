"""The selection of pictures of the clients in a report."""

import json

import numpy as np
import pytest

from raylfl.report.pictures import participation_pictures, partition_drawer, partition_pictures
from raylfl.report.runs import group_runs, load_run
from tests.report.synthetic import rows_of, write_run


def groups_of(folder, *changes):
    paths = [write_run(folder / str(i), rows_of([0.1, 0.2]), change) for i, change in enumerate(changes)]
    return group_runs([load_run(path) for path in paths])


def test_methods_and_seeds_of_one_world_share_its_pictures(tmp_path):
    changes = [{"algorithm.name": m, "seed": s} for m in ("fedavg", "focus") for s in (0, 1)]
    groups = groups_of(tmp_path, *changes)
    (partition,), (participation,) = partition_pictures(groups), participation_pictures(groups)
    assert partition.name == "partition"
    counts = groups[0].runs[0].partition_counts[1].sum(axis=1)
    assert partition.caption == f"Partition, seed 0: 8 clients, {counts.min()} to {counts.max()} samples each."
    assert participation.caption == "Participation, seed 0."


def test_each_world_has_its_partition(tmp_path):
    pictures = partition_pictures(groups_of(tmp_path, *({"partition.alpha": a} for a in (0.1, 0.5))))
    assert [picture.name for picture in pictures] == ["partition_1", "partition_2"]
    assert pictures[1].caption.startswith("Partition of alpha=0.5, seed 0")


def test_the_last_picture_says_that_there_are_more(tmp_path):
    pictures = partition_pictures(groups_of(tmp_path, *({"partition.alpha": a / 10} for a in range(1, 9))))
    assert [" of 8 are drawn" in picture.caption for picture in pictures] == [False] * 5 + [True]


@pytest.fixture
def ring(tmp_path):
    """Two methods of one scenario, the participation file of the second."""
    groups = groups_of(tmp_path, {"algorithm.name": "fedavg"}, {"algorithm.name": "sfl"})
    return groups, groups[1].runs[0].path / "participation.jsonl"


def test_the_same_cohort_in_another_order_is_the_same_participation(ring):
    groups, path = ring
    rows = [json.loads(line) for line in path.read_text().splitlines()]
    keys = ("cohort", "draws", "received", "steps")
    turned = [row | {key: row[key][::-1] for key in keys} for row in rows]
    path.write_text("".join(json.dumps(row) + "\n" for row in turned))
    assert len(participation_pictures(groups)) == 1


def test_a_method_that_samples_itself_has_a_separate_picture(ring):
    groups, path = ring
    rows = [json.loads(line) for line in path.read_text().splitlines()]
    other = [row | {"cohort": [(client + 1) % 8 for client in row["cohort"]]} for row in rows]
    path.write_text("".join(json.dumps(row) + "\n" for row in other))
    captions = [picture.caption for picture in participation_pictures(groups)]
    assert captions == ["Participation of FedAvg, seed 0.", "Participation of SFL, seed 0."]


def test_runs_without_records_have_no_pictures(tmp_path):
    path = write_run(tmp_path / "a", rows_of([0.1]))
    (path / "partition_counts.json").unlink()
    (path / "participation.jsonl").unlink()
    groups = group_runs([load_run(path)])
    assert partition_pictures(groups) == participation_pictures(groups) == []
    assert partition_drawer(groups) is None


def test_the_partition_is_that_of_the_run(tmp_path):
    groups = groups_of(tmp_path, {"partition.alpha": 0.3})
    draw = partition_drawer(groups)
    np.testing.assert_array_equal(draw.keywords["counts"], groups[0].runs[0].partition_counts[1])
