"""What a job would be on more GPUs."""
