"""The Python API: what `import raypipe` gives, each name from the module that is imported when it is used.

A `Session` is what calls share. A result's `.to_dict()` is what --json prints, `.table()` an Arrow table."""
