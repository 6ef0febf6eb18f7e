"""Python API behind `import raypipe`; the module of a name is imported when the name is first used. Calls
share a `Session`. A result has `.to_dict()`, the object that --json prints, and `.table()`, an Arrow
table."""
