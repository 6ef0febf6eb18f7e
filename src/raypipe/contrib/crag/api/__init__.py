"""Functions behind the commands `kg` and `facts`."""
