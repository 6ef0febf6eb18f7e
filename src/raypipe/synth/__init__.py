"""`raypipe synth`: a CRAG-format dataset about an invented world, with its knowledge graph.

It serves the demo, the tests and the load tests. Nothing in it is real; a seed decides all of it.
"""

from raypipe.synth.ask.core import RULES
from raypipe.synth.ask.phrasings import PHRASINGS
from raypipe.synth.write import SynthSummary, write

__all__ = ["PHRASINGS", "RULES", "SynthSummary", "write"]
