"""The truth of a simulated step, from its timeline: time and energy by phase, waiting by cause, the critical path."""
