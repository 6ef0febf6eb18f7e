"""Places of a run: cluster files, capacity of machines, and the pools and engines that Ray starts."""
