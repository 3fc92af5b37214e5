"""TFF's API for several releases of TFF, a runtime, and remote workers."""
