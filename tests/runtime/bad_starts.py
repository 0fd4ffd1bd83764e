"""Workers that start slowly or not at all, in a separate module, so that no other import slows their start."""

import os
import signal
import time


class Slow:
    def __init__(self, seconds):
        time.sleep(seconds)

    def ping(self, shared):
        return None


class Dying(Slow):
    def ping(self, shared):
        os.kill(os.getpid(), signal.SIGKILL)


class Lacking(Slow):
    def __init__(self, module):
        __import__(module)


class Differing(Slow):
    """A worker on a node that lacks what the driver's node has: its ping raises the error (type, message)."""

    def __init__(self, error):
        self.type, self.message = error

    def ping(self, shared):
        raise self.type(self.message)
