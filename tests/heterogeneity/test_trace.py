"""Recorded runs are read, written and replayed unchanged."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from raylfl.config.components import build
from raylfl.core.population import Population
from raylfl.errors import BadConfig, BadValue
from raylfl.heterogeneity.links.bernoulli import Bernoulli as BernoulliLink
from raylfl.heterogeneity.participation import PARTICIPATION
from raylfl.heterogeneity.participation.availability import Bernoulli
from raylfl.heterogeneity.participation.trace import Trace
from raylfl.heterogeneity.participation.uniform import Uniform
from raylfl.heterogeneity.trace import encode_row, make_row, read_trace, write_trace
from raylfl.heterogeneity.world import RunContext

PUBLISHED = (  # the line that the interface documents
    '{"round": 0, "cohort": [3, 5, 9], "draws": [1, 2, 1], "received": [true, false, true], "steps": [4, 2, 2]}\n'
)
WORLD = RunContext(0, Population.of(np.full(10, 10)), 6)


@st.composite
def rows(draw):
    cohort = draw(st.lists(st.integers(0, 10**6), unique=True, max_size=6))
    probabilities = st.lists(st.floats(0, 1), min_size=len(cohort), max_size=len(cohort))
    size = {"min_size": len(cohort), "max_size": len(cohort)}
    return {
        "cohort": cohort,
        "draws": draw(st.lists(st.integers(1, 9), **size)),
        "received": draw(st.lists(st.booleans(), **size)),
        "steps": draw(st.lists(st.integers(0, 99), **size)),
        "p": draw(st.none() | probabilities),
        "q": draw(st.none() | probabilities),
    }


def test_a_row_is_written_as_published_with_the_keys_of_others(tmp_path):
    arrays = (np.array([3, 5, 9]), np.array([1, 2, 1]), np.array([True, False, True]), np.array([4, 2, 2]))
    assert encode_row(make_row(np.int64(0), *arrays)) == PUBLISHED
    line = PUBLISHED.replace("}", ', "note": "mine"}')
    path = tmp_path / "t.jsonl"
    path.write_text(line)
    assert encode_row(read_trace(path)[0]) == line


@given(many=st.lists(rows(), max_size=4))
def test_reading_and_writing_again_gives_the_same_bytes(tmp_path_factory, many):
    path = tmp_path_factory.mktemp("trace") / "participation.jsonl"
    write_trace(path, [make_row(r, **row) for r, row in enumerate(many)])
    first = path.read_bytes()
    write_trace(path, read_trace(path))
    assert path.read_bytes() == first


def record(path, process, rounds=6):
    link, out = BernoulliLink(0.3), []
    for r in range(rounds):
        drawn = process.draw(r, WORLD)
        received = ~link.lost(r, drawn.cohort, WORLD)
        out.append(make_row(r, drawn.cohort, drawn.draws, received, drawn.cohort + 1))
    write_trace(path, out)
    return out


@pytest.mark.parametrize("process", [Bernoulli(0.3), Uniform(size=4, replace=True)])
def test_a_replay_samples_the_clients_of_the_recorded_run(tmp_path, monkeypatch, process):
    recorded = record(tmp_path / "t.jsonl", process)
    monkeypatch.setenv("HOME", str(tmp_path))
    replay = Trace(path="~/t.jsonl")
    replay.check(WORLD)
    for r in (3, 0, 5, 1, 2, 4):  # any order: rows are looked up
        ours, theirs = replay.draw(r, WORLD), process.draw(r, WORLD)
        assert np.array_equal(ours.cohort, theirs.cohort)
        assert np.array_equal(ours.draws, theirs.draws)
        assert replay.row(r) == recorded[r]


def test_a_replay_keeps_the_order_of_a_ring_and_empty_rounds(tmp_path):
    path = tmp_path / "t.jsonl"
    write_trace(path, [make_row(0, [7, 2, 5], [1, 1, 1], [True] * 3, [1] * 3), make_row(1, [], [], [], [])])
    replay = Trace(path=str(path), on_empty="resample")
    assert replay.draw(0, WORLD).cohort.tolist() == [7, 2, 5]
    assert replay.draw(1, WORLD).cohort.tolist() == []


def test_running_out_of_rows_names_the_round(tmp_path):
    path = tmp_path / "t.jsonl"
    write_trace(path, [make_row(r, [0], [1], [True], [1]) for r in (0, 1, 2, 5)])
    replay = Trace(path=str(path))
    with pytest.raises(
        BadValue, match=r"without round 3, but must be a record of every round.*the record has 4 rounds"
    ):
        replay.check(WORLD)
    with pytest.raises(BadValue, match="without round 9"):
        replay.draw(9, WORLD)


@pytest.mark.parametrize(
    ("line", "says"),
    [
        ("{", "not JSON"),
        ("3", "not an object"),
        ('{"round": 1}', "no cohort, draws, received, steps"),
        (PUBLISHED, "a second row of round 0"),
        (PUBLISHED.replace('"round": 0', '"round": -1'), "round is -1"),
        (PUBLISHED.replace("[4, 2, 2]", "[4, 2]"), "not lists of one length"),
        (PUBLISHED.replace("[4, 2, 2]", "4"), "not lists of one length"),
        (PUBLISHED.replace("[3, 5, 9]", "[3, 3, 9]"), "distinct client ids"),
        (PUBLISHED.replace("[1, 2, 1]", "[1, 0, 1]"), "draws is not a list of"),
        (PUBLISHED.replace("true, false", "1, false"), "received is not a list of"),
        (PUBLISHED.replace("}", ', "p": [2]}'), "p is not a list of probabilities"),
        (PUBLISHED.replace("}", ', "q": [0, 0, 0, 1]}'), "q has 4 entries, not one per sampled client"),
    ],
)
def test_a_bad_row_is_refused_by_its_line(tmp_path, line, says):
    path = tmp_path / "t.jsonl"
    path.write_text(PUBLISHED + line)
    with pytest.raises(BadValue) as caught:
        read_trace(path)
    assert caught.value.key == "path"
    assert "line 2" in str(caught.value)
    assert says in str(caught.value)


def test_a_missing_file_is_one_clear_error():
    with pytest.raises(BadValue, match=r"path=nowhere\.jsonl, but must be a readable participation\.jsonl"):
        Trace(path="nowhere.jsonl")
    with pytest.raises(BadConfig, match=r"participation\.path is missing: the participation\.jsonl of a run"):
        build(PARTICIPATION, {"name": "trace"}, "participation")


@pytest.mark.parametrize(("count", "fits"), [(10, True), (9, False), (4, False)])
def test_a_record_fits_a_run_that_has_all_its_clients(tmp_path, count, fits):
    path = tmp_path / "t.jsonl"
    path.write_text(PUBLISHED)  # clients 3, 5 and 9
    replay, run = Trace(path=str(path)), RunContext(0, Population.of(np.full(count, 10)), 1)
    if fits:
        replay.check(run)
        return
    with pytest.raises(BadValue, match=rf"clients 0\.\.{count - 1} \(num_clients={count}\)"):
        replay.check(run)
