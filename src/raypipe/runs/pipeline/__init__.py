"""Tables brought up to date: what each lacks, cut into tasks, done by any runner, committed once."""
