"""The logs of FOCUS's authors (Ying, Li & Yang, NeurIPS 2025, [1]) for figure 9, from RAYLFL_DATA/published."""

from __future__ import annotations

from pathlib import Path

from papers.author_logs import measurements, path_of

DIVISOR = "SCAFFOLD, divisor 10"  # SCAFFOLD in the form of the public code and of its logs
SEQUENCE = "FedAvg in sequence"  # each client starts from the model of the client before, as in SFL
DROPOUT = {"FOCUS, dropout": "FOCUS", "SCAFFOLD, divisor 10, dropout": DIVISOR}  # with another network -> without
SHARED = {SEQUENCE: "FedAvg"} | DROPOUT  # variant -> the method with whose log it is compared
FILE = Path("published") / "focus_fig9.csv.gz"
Log = dict[int, float]  # number of finished rounds -> test accuracy as a fraction


def logs() -> dict[tuple[str, str], Log]:
    """(participation, method) -> the authors' log, for the participations and methods of the figure.

    A variant in SHARED has the log of its method. Raises DataMissing if the file is missing.
    """
    logs: dict[tuple[str, str], Log] = {}
    for line in measurements(path_of(FILE)):
        method = DIVISOR if line["method"] == "SCAFFOLD" else line["method"]
        log = logs.setdefault((line["participation"].capitalize(), method), {})
        log[int(line["round"]) + 1] = float(line["test_accuracy_percent"]) / 100
    shared = {(panel, line): log for line, name in SHARED.items() for (panel, key), log in logs.items() if key == name}
    return logs | shared
