"""What a run leaves on disk: its directory, records, checkpoints, loggers."""
