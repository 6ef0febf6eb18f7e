"""Parts that every layer shares: records, protocols, errors, configuration, digests. Imports no other
package."""
