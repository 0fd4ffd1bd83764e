"""What a sweep remembers survives a crash at any byte."""

from __future__ import annotations

from raylfl.tune.journal import FAILED, FINISHED, Journal, Trial

TRIALS = [Trial(f"00{k}-fedavg-s0", 0, k, 0, 6, {"local.lr": 0.1 * k}, None) for k in range(3)]


def test_a_journal_read_again_is_the_same(tmp_path):
    journal = Journal(tmp_path)
    journal.plan(*TRIALS)
    journal.end(TRIALS[0].id, FINISHED)
    journal.end(TRIALS[1].id, FAILED, "out of luck\nand lines")
    again = Journal(tmp_path)
    assert list(again.trials.values()) == TRIALS
    assert again.ends == journal.ends
    assert [again.is_over(trial) for trial in TRIALS] == [True, False, False]  # a failed trial is tried again
    again.end(TRIALS[1].id, FINISHED)
    assert Journal(tmp_path).is_over(TRIALS[1])


def test_planning_again_adds_only_what_is_new(tmp_path):
    journal = Journal(tmp_path)
    journal.plan(*TRIALS[:2])
    Journal(tmp_path).plan(*TRIALS)
    assert list(Journal(tmp_path).trials) == [trial.id for trial in TRIALS]
    assert len((tmp_path / "trials.jsonl").read_text().splitlines()) == 3


def test_a_line_cut_short_at_any_byte_is_forgotten_and_written_over(tmp_path):
    journal = Journal(tmp_path)
    journal.plan(*TRIALS[:2])
    whole = (tmp_path / "trials.jsonl").read_bytes()
    first = whole.index(b"\n") + 1
    for cut in range(first, len(whole)):
        (tmp_path / "trials.jsonl").write_bytes(whole[:cut])
        torn = Journal(tmp_path)
        assert list(torn.trials) == [TRIALS[0].id]
        torn.plan(TRIALS[1])
        assert (tmp_path / "trials.jsonl").read_bytes() == whole
