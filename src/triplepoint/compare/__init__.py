"""Comparisons: a user's own measured values with the results, and two runs or traces with one another."""
