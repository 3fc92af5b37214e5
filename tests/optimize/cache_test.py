"""Tests of what is kept of searches: only what they would find again."""

import attrs
import pytest

from tff_bandmf import optimize, participation, strategies, workloads
from tff_bandmf.optimize import cache, solver
from tff_bandmf.strategies import families

_REQUEST = solver.Request(
  16,
  participation.MinSep(4),
  family=families.get('banded-toeplitz'),
  parameters={'bands': 4},
)


@pytest.fixture
def folder(tmp_path, monkeypatch):
  monkeypatch.setenv(cache.VARIABLE, str(tmp_path / 'kept'))
  return tmp_path / 'kept'


class _Search:
  """Finds a strategy, and counts how often it is asked."""

  def __init__(self, converged=True):
    self.calls = 0
    self._converged = converged

  def __call__(self, request):
    self.calls += 1
    strategy = strategies.BandedSqrt(request.rounds, 4)
    return solver.Optimized(strategy, 1.0, 7, self._converged)


def test_optimised_strategy_is_found_again(folder):
  first, second = (
    optimize.optimize('banded-toeplitz', 40, participation.MinSep(8))
    for _ in range(2)
  )
  assert first.strategy.digest() == second.strategy.digest()
  assert first.evaluations > 0 == second.evaluations
  assert second.converged and second.loss == pytest.approx(first.loss)
  (path,) = folder.iterdir()
  assert path.name.endswith(f'-{first.strategy.digest()}.npz')


@pytest.mark.parametrize(
  'change',
  [
    dict(family=families.get('robust-toeplitz')),
    dict(rounds=17),
    dict(participation=participation.MinSep(4, 2)),
    dict(participation=participation.FixedEpoch(4)),
    dict(workload=workloads.Workload(0.5)),
    dict(objective=solver.MAX),
    dict(parameters={'bands': 3}),
    dict(parameters={}),
    dict(memory_copies=9),
  ],
)
def test_another_request_is_searched_for(folder, change):
  search = _Search()
  cache.load_or_search(_REQUEST, search)
  cache.load_or_search(_REQUEST, search)
  assert search.calls == 1
  cache.load_or_search(attrs.evolve(_REQUEST, **change), search)
  assert search.calls == 2


def test_other_code_searches_again(folder, monkeypatch):
  search = _Search()
  cache.load_or_search(_REQUEST, search)
  monkeypatch.setattr('tff_bandmf._files.code_digest', lambda: 'changed')
  cache.load_or_search(_REQUEST, search)
  assert search.calls == 2


def test_damaged_entry_is_searched_for_again(folder, tmp_path):
  search = _Search()
  cache.load_or_search(_REQUEST, search)
  (path,) = folder.iterdir()
  whole = path.read_bytes()
  strategies.save(strategies.BandedSqrt(16, 3), tmp_path / 'other.npz')
  other = (tmp_path / 'other.npz').read_bytes()
  for calls, content in enumerate((b'', whole[:-100], other), 2):
    path.write_bytes(content)
    best = cache.load_or_search(_REQUEST, search)
    assert search.calls == calls
    assert best.strategy == strategies.BandedSqrt(16, 4)
    # It is whole again.
    assert path.read_bytes() == whole


def test_search_that_did_not_converge_is_done_again(folder):
  search = _Search(converged=False)
  for _ in range(2):
    cache.load_or_search(_REQUEST, search)
  assert search.calls == 2 and not folder.exists()


def test_folder_that_cannot_be_made_is_done_without(folder):
  folder.write_text('a file')
  search = _Search()
  for _ in range(2):
    cache.load_or_search(_REQUEST, search)
  assert search.calls == 2


def test_cache_is_that_of_the_user_or_off(folder, tmp_path, monkeypatch):
  search = _Search()
  monkeypatch.setenv(cache.VARIABLE, '')
  monkeypatch.setenv('XDG_CACHE_HOME', str(tmp_path))
  for _ in range(2):
    cache.load_or_search(_REQUEST, search)
  assert search.calls == 2 and not (tmp_path / 'tff_bandmf').exists()
  monkeypatch.delenv(cache.VARIABLE)
  cache.load_or_search(_REQUEST, search)
  assert len(list((tmp_path / 'tff_bandmf' / 'strategies').iterdir())) == 1
