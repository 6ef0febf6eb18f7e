"""`raypipe synth`: a CRAG-format dataset about an invented world, with its knowledge graph; or a
collection of invented papers.

It serves the demo, the tests and the load tests. Nothing in it is real; a seed decides all of it.
"""

from raypipe.synth.ask.questions import templates
from raypipe.synth.collection import CollectionSummary, write_collection
from raypipe.synth.write import SynthSummary, write

__all__ = ["CollectionSummary", "SynthSummary", "templates", "write", "write_collection"]
