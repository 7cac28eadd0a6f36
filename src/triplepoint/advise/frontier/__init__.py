"""Which clocks save energy in a pipeline."""
