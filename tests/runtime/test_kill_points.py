"""Kill points, at which tests end a process: each strikes once."""

from __future__ import annotations

import os

from raylfl.runtime import faults


def test_each_line_of_faults_strikes_once(tmp_path, monkeypatch):
    struck, path = [], tmp_path / "faults"
    monkeypatch.delenv(faults.VARIABLE, raising=False)
    faults.kill_point()("train", 1)
    monkeypatch.setenv(faults.VARIABLE, str(path))
    monkeypatch.setattr(faults.os, "kill", lambda process, signal: struck.append((process, signal)))
    strike = faults.kill_point()
    strike("train", 1)  # no file
    path.write_text("train:1\ncommit:2\n")
    for phase, r in [("train", 0), ("commit", 1), ("train", 1), ("train", 1)]:
        strike(phase, r)
    assert struck == [(os.getpid(), 9)]
    assert path.read_text().split() == ["commit:2"]
    strike("commit", 2)
    assert len(struck) == 2
    assert path.read_text() == ""
    assert [place.name for place in tmp_path.iterdir()] == ["faults"]
