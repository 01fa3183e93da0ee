"""Requests to stores: downloads in ranges, retries, bounds, and what errors mean."""
