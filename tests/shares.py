"""Shares of long lists of cases: the usual suite runs some of them, `make test-all` the others, too."""

import pytest


def one_in(share, cases, ids=str):
    """Every case as a parameter of a test, a tuple as several; all but every `share`-th are marked exhaustive."""
    return [
        pytest.param(
            *(case if isinstance(case, tuple) else (case,)),
            marks=[pytest.mark.exhaustive] if place % share else [],
            id=ids(case),
        )
        for place, case in enumerate(cases)
    ]
