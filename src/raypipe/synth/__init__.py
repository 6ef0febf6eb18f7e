"""`raypipe synth`: a data set in the format of the CRAG benchmark about an invented world, with its graph.

The demo, the test bed and the load generator. Nothing in it is real; a seed decides all of it.
"""

from raypipe.synth.ask.core import RULES
from raypipe.synth.ask.phrasings import PHRASINGS
from raypipe.synth.write import SynthSummary, write

__all__ = ["PHRASINGS", "RULES", "SynthSummary", "write"]
