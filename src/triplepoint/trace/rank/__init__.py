"""What one rank did: work, steps, phases, and where its time went."""
