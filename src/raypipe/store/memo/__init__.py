"""Every embedding, score and reply, cached by value."""
