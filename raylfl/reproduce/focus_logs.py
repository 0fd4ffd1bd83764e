"""The logs of FOCUS's authors (Ying, Li & Yang, NeurIPS 2025, [1]) for figure 9, from RAYLFL_DATA/published."""

from __future__ import annotations

from pathlib import Path

from raylfl.reproduce.author_logs import measurements, path_of

DIVISOR = "SCAFFOLD, divisor 10"  # SCAFFOLD in the form of the public code and of its logs
SEQUENCE = "FedAvg in sequence"  # each client starts from the model of the client before, as in SFL
FILE = Path("published") / "focus_fig9.csv.gz"
Log = dict[int, float]  # number of finished rounds -> test accuracy as a fraction


def logs() -> dict[tuple[str, str], Log]:
    """(participation, method) -> the authors' log, for the participations and methods of the figure.

    The log of FedAvg is also that of SEQUENCE. Raises DataMissing if the file is missing.
    """
    found: dict[tuple[str, str], Log] = {}
    for line in measurements(path_of(FILE)):
        method = DIVISOR if line["method"] == "SCAFFOLD" else line["method"]
        log = found.setdefault((line["participation"].capitalize(), method), {})
        log[int(line["round"]) + 1] = float(line["test_accuracy_percent"]) / 100
    return found | {(panel, SEQUENCE): log for (panel, method), log in found.items() if method == "FedAvg"}
