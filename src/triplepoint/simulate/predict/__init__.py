"""Batch prediction: one configuration a row."""
