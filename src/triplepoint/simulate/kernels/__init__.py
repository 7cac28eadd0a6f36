"""Kernel times from shapes, by efficiency tables and the roofline of each GPU."""
