"""Federated next-word prediction with correlated-noise differential privacy."""
