"""Metric names: the prefix of nodes' metrics, and whether larger values are better, as inferred from the name."""

from __future__ import annotations

import re

OF_NODES = "nodes/"  # prefix of the metrics of the nodes of a graph
SCORES = {  # words in the names of metrics of which more is better
    "acc",
    "accuracy",
    "auc",
    "auroc",
    "bleu",
    "dice",
    "f1",
    "f1score",
    "fbeta",
    "iou",
    "jaccard",
    "kappa",
    "mcc",
    "ndcg",
    "precision",
    "psnr",
    "r2",
    "recall",
    "rouge",
    "score",
    "sensitivity",
    "specificity",
    "ssim",
}


def higher_is_better(metric: str) -> bool:
    """Whether larger values of this metric are better, as inferred from its name.

    True if a word of the name is in `SCORES` and the last word is not `std` (the spread of a score).

    >>> higher_is_better("test/f1"), higher_is_better("clients/accuracy_p10"), higher_is_better("test/loss")
    (True, True, False)
    """
    words = re.split(r"[^a-z0-9]+", metric.lower())
    return not SCORES.isdisjoint(words) and words[-1] != "std"
