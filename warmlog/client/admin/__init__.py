"""Administration: topics, explanations of fetches, and mirrors."""
