"""The format number of the files of a run or a sweep; docs/formats.md describes when it changes.

A new release has a larger number if it could misread files of earlier releases. New options, metrics and keys do not
change the number: where a saved run lacks an option, the option's default applies.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from raylfl.errors import BadConfig

FORMAT = 2  # in config.yaml and sweep.yaml as `format`, in a checkpoint's manifest as `version`
KEY = "format"


def refuse_other(number: Any, where: str | Path) -> None:
    """Checks the format number of a file or checkpoint; raises BadConfig if it is not `FORMAT`.

    where: the name of the file or checkpoint, for the message.
    """
    if type(number) is not int:
        raise BadConfig(f"{where}: format={number}, but must be {FORMAT}, a whole number that raylfl writes itself")
    if number != FORMAT:
        writer = "a newer raylfl" if number > FORMAT else "an older raylfl"
        remedy = f"this one reads {FORMAT}: use the version that wrote it"
        raise BadConfig(f"{where} has format {number}, which {writer} writes; {remedy}")
