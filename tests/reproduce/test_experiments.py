"""Every experiment at every scale: its settings are valid, its tables hold the published numbers, its figures draw."""

from __future__ import annotations

import pytest
from matplotlib.figure import Figure

from raylfl.report.render import to_csv, to_markdown
from raylfl.reproduce.base import EXPERIMENTS, find
from tests.reproduce.labs import DryLab

CASES = [(entry.name, scale) for entry in EXPERIMENTS for scale in entry.cls.scales or ("smoke",)]
PUBLISHED = {  # a number of the paper that must stand in the experiment's table
    "sfl/table3": "67.61 ± 4.02",
    "sfl/table11": "95.91 ± 0.33",
    "sfl/table7": "34.89",
    "sfl/table10": "90.95",
    "sfl/fig2": "58.63",
    "fedacs/table1": "3549",
    "fedacs/table4": "20.0k",
    "fedacs/table5": "149",
    "fedaware/table1": "64.54 ± 0.38",
    "focus/fig9": "78–80",
}


@pytest.mark.parametrize(("name", "scale"), CASES)
def test_an_experiment_has_valid_settings_tables_claims_and_figures(name, scale, tmp_path):
    lab = DryLab(tmp_path, scale)
    findings = find(name).run(lab)
    assert findings.figures
    assert all(isinstance(figure, Figure) for figure in findings.figures.values())
    assert all(claim.text and claim.evidence for claim in findings.claims)
    assert all(claim.holds in (True, False, None) for claim in findings.claims)
    for table in findings.tables:
        assert table.rows
        assert to_markdown(table)
        assert to_csv(table)
    if name in PUBLISHED and scale == "paper":
        assert PUBLISHED[name] in "".join(map(to_markdown, findings.tables))
