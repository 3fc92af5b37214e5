"""TFF's runtime, its worker processes and its data sources."""
