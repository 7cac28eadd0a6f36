"""Collective times on the levels of a fabric."""
