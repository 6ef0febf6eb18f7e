"""Updates of tables: the missing rows of a table are cut into tasks, computed by a runner, committed once."""
