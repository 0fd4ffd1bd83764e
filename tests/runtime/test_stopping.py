"""Signals and time limits in the calling process: what each calls or raises, and that handlers are put back."""

import os
import signal
import threading
import time

import pytest

from raylfl.runtime.stopping import NOTICE, handlers_kept, sigterm_interrupts, stop_on_signals, time_limit

SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGALRM)


@pytest.fixture(autouse=True)
def handlers():
    """Python's own handler of Ctrl-C, which a command in the background does not have; each test leaves all as here."""
    given = signal.signal(signal.SIGINT, signal.default_int_handler)
    before = [signal.getsignal(number) for number in SIGNALS]
    yield
    assert [signal.getsignal(number) for number in SIGNALS] == before
    signal.signal(signal.SIGINT, given)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_the_first_signal_requests_a_stop_and_the_second_interrupts(number, capfd):
    asked = []
    with stop_on_signals(lambda: asked.append(True)):
        os.kill(os.getpid(), number)
        assert asked == [True]
        assert capfd.readouterr().err.encode() == NOTICE
        with pytest.raises(KeyboardInterrupt):
            os.kill(os.getpid(), number)
    assert asked == [True]


@pytest.mark.parametrize("on_interrupt", [signal.default_int_handler, signal.SIG_IGN])
def test_sigterm_interrupts_as_ctrl_c_does_also_in_a_background_job(on_interrupt):
    signal.signal(signal.SIGINT, on_interrupt)
    with pytest.raises(KeyboardInterrupt), sigterm_interrupts():
        os.kill(os.getpid(), signal.SIGTERM)
    signal.signal(signal.SIGINT, signal.default_int_handler)
    with pytest.raises(KeyboardInterrupt), sigterm_interrupts():
        os.kill(os.getpid(), signal.SIGINT)


def test_sigterm_calls_the_handler_that_a_library_installed_for_ctrl_c():
    called = []
    with sigterm_interrupts(), handlers_kept(signal.SIGINT):
        signal.signal(signal.SIGINT, lambda number, frame: called.append(number))
        os.kill(os.getpid(), signal.SIGTERM)
    assert called == [signal.SIGINT]


def test_a_handler_that_python_cannot_name_becomes_the_default_one(monkeypatch):
    """One that C code installed before Python started; `signal` reports it as None."""
    install = signal.signal
    with handlers_kept(signal.SIGTERM):
        with monkeypatch.context() as patched:
            patched.setattr(signal, "signal", lambda number, handler: (install(number, handler), None)[1])
            patched.setattr(signal, "getsignal", lambda number: None)
            with handlers_kept(signal.SIGTERM), sigterm_interrupts():
                pass
        assert signal.getsignal(signal.SIGTERM) == signal.SIG_DFL


def test_a_time_limit_raises_again_where_the_first_error_was_caught():
    with time_limit(0.05):
        for _ in range(2):
            with pytest.raises(TimeoutError, match=r"no answer within 0\.05 s"):
                time.sleep(5)


def test_an_inner_limit_leaves_the_outer_one():
    with time_limit(0.2):
        with time_limit(60.0):
            pass
        with pytest.raises(TimeoutError, match=r"no answer within 0\.2 s"):
            time.sleep(5)


def test_what_ends_in_time_or_has_no_limit_raises_nothing():
    for seconds in (0.05, None):
        with time_limit(seconds):
            pass
        time.sleep(0.06)


def test_other_threads_run_without_handlers():
    """Python sets handlers in the main thread only."""
    done = []

    def work() -> None:
        with stop_on_signals(lambda: None), sigterm_interrupts(), time_limit(0.01):
            time.sleep(0.02)
            done.append([signal.getsignal(number) for number in SIGNALS])

    before = [signal.getsignal(number) for number in SIGNALS]
    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    assert done == [before]
