"""Recorded runs: jobs that something else started, watched as they run or read from their recordings."""
