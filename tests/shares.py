"""Shares of long lists of cases: the usual suite runs some of them, `make test-all` the others, too."""

import pytest


def name_of(case):
    """The values of a case, classes by their names."""
    return "-".join(getattr(value, "__name__", str(value)) for value in _values(case))


def one_in(share, cases, ids=name_of):
    """Every case as a parameter of a test, a tuple as several; all but every `share`-th are marked exhaustive."""
    return [
        pytest.param(*_values(case), marks=[pytest.mark.exhaustive] if place % share else [], id=ids(case))
        for place, case in enumerate(cases)
    ]


def also(*values, **options):
    """A further case of a test, marked exhaustive."""
    return pytest.param(*values, marks=pytest.mark.exhaustive, **options)


def _values(case):
    return case if isinstance(case, tuple) else (case,)
