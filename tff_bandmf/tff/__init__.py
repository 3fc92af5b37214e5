"""TFF's names, its runtime and its worker processes."""
