"""Places of a run: cluster files, what fits on which machine, and the pools and engines that Ray starts."""
