"""Workers and server as Ray actors; Ray is imported here, in `raylfl.tune`, and nowhere else."""
