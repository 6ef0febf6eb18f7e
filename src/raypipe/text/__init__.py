"""Pure functions over text: pages to text, text to chunks and words, ranking, replies. No models."""
