"""A graph behind the mock API: what a call needs is fetched and stored as rows of tables, by domain."""
