"""The `bandmf` command."""
