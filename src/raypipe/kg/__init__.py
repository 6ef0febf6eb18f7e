"""Knowledge graph: tables, entity linking, execution of call programs, verbalization, the CRAG mock API."""
