"""Fixtures of tests of noise."""

import pytest
import tapes


@pytest.fixture(params=['numpy', 'graph'])
def each_reader(request, monkeypatch):
  """Reads tapes in NumPy, then in TensorFlow; gives the module that reads."""
  if request.param == 'numpy':
    from tff_bandmf.noise.tape import reader
  else:
    import tensorflow  # noqa: F401

    from tff_bandmf.noise.tape import graph_reader as reader

    monkeypatch.setattr(tapes, 'release', tapes.release_in_a_graph)
  return reader
