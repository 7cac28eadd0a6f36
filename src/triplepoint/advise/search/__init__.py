"""Which configuration to train with."""
