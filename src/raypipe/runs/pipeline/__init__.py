"""What each table lacks, cut into tasks, done by any runner, committed once."""
