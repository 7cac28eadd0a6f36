"""What to do: which configuration, which placement, what power swings need."""
