"""Errors in the user's code: their messages name its file and line."""

import json
import pickle

from raylfl.errors import BadConfig, is_noted, note_own_code, own_code, traceback_text


def caught(call):
    try:
        call()
    except Exception as error:
        return error
    raise AssertionError("no error")


def bad_json():
    json.loads("{")  # raised in the standard library


def test_the_innermost_line_outside_libraries_is_named_if_there_is_one():
    error = caught(bad_json)
    line = bad_json.__code__.co_firstlineno + 1
    assert own_code(error) == f"test_errors.py:{line}, in bad_json"
    assert traceback_text(error).endswith(f"(char 1) (test_errors.py:{line}, in bad_json)\n")
    assert own_code(KeyError("x")) == ""
    assert traceback_text(KeyError("x")) == "KeyError: 'x'\n"


def test_the_note_is_added_once_and_is_pickled_with_the_error():
    error = caught(lambda: {}["x"])
    note_own_code(error)
    note_own_code(error)
    (note,) = pickle.loads(pickle.dumps(error)).__notes__
    assert note.startswith("raised at test_errors.py:")
    assert is_noted(error)


def test_an_error_with_a_message_for_the_user_has_no_note():
    def refuse():
        raise BadConfig("rounds=-1")

    error = caught(refuse)
    note_own_code(error)
    assert not is_noted(error)
