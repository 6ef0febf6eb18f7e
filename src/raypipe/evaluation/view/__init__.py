"""The page of a run or of two: what it shows of each question, as one file or served by blocks."""
