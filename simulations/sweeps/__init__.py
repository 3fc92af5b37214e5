"""Sweeps: the runs of a grid of experiments, their tables and their plots."""
