"""Counterfactuals: what one factor costs a job, by simulating the job with that factor changed."""
