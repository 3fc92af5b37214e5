"""The cost of noise in integers, beside noise in real numbers."""
