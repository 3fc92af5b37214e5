"""Corpora: text that is divided among clients."""
