"""Programs that run a workload, one for each platform, as its documentation writes them."""
