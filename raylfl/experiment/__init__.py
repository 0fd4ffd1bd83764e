"""The parts of a run, assembled from its config."""
