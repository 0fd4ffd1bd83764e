"""Workers and server as Ray actors. Ray is imported only here and in `raylfl.tune`."""
