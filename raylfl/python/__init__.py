"""The Python interface: runs, comparisons, saved runs as data frames, callbacks, and what a terminal shows."""
