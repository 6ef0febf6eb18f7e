"""Cache by value of every embedding, score and reply."""
