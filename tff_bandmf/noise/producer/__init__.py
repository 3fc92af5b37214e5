"""The producer of noise: rows y_0, y_1, ... on the host or on accelerators."""
