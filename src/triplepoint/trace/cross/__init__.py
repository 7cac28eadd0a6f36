"""What only the ranks together show: clocks, late arrivals, the critical path, stragglers."""
