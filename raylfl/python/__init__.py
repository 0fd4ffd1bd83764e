"""The Python interface: runs, streams, comparisons, saved runs as data frames, callbacks, and what a terminal shows."""
