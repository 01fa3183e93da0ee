"""Mixtures and sample orders, and the vectors of the native order."""
