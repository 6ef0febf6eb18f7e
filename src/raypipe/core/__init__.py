"""Parts shared by every layer: records, protocols, errors, configuration, digests. Imports no other package
of raypipe."""
