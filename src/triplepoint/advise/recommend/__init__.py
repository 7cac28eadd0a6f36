"""What to change about a job: hardware, placement of stages, power limits."""
