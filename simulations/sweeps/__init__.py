"""Many runs of one grid, their table and their plots."""
