"""Tests of participation schemas."""

import itertools
import json

import numpy as np
import pytest

from tff_bandmf import participation


def _longest_pattern(rounds, min_sep, max_participations):
  """Returns the size of the largest legal set of rounds, by enumeration."""
  longest = 0
  for size in range(1, rounds + 1):
    if size > (max_participations or rounds):
      break
    for pattern in itertools.combinations(range(rounds), size):
      if all(j - i >= min_sep for i, j in zip(pattern, pattern[1:])):
        longest = size
        break
  return longest


@pytest.mark.parametrize(
  'schema', [participation.MinSep, participation.FixedEpoch]
)
def test_participations_is_the_longest_pattern(schema):
  # The longest pattern of a min-separation is one of a fixed epoch too.
  for rounds, min_sep in itertools.product(range(1, 10), range(1, 12)):
    for most in (None, 1, 2, 3, 20):
      expected = _longest_pattern(rounds, min_sep, most)
      assert schema(min_sep, most).participations(rounds) == expected


def test_participations_counts_a_last_short_epoch():
  assert participation.MinSep(4).participations(9) == 3
  assert participation.MinSep(485, 3).participations(2000) == 3
  assert participation.MinSep(485).participations(2000) == 5


def test_single_is_one_participation():
  assert participation.Single().participations(10**9) == 1


@pytest.mark.parametrize('min_sep', [0, -1])
@pytest.mark.parametrize('name', ['min-sep', 'fixed-epoch'])
def test_min_sep_below_one_is_refused(name, min_sep):
  with pytest.raises(ValueError, match=f'min_sep={min_sep}: must be at least'):
    participation.from_name(name, min_sep)


@pytest.mark.parametrize('min_sep', [1.5, 4.0, True, '4'])
def test_min_sep_of_another_kind_is_refused(min_sep):
  with pytest.raises(TypeError, match=f'min_sep={min_sep}: must be an integer'):
    participation.MinSep(min_sep)


@pytest.mark.parametrize('costs', [3, [1, 2], {'limit': 1}, 'free', True])
def test_costs_of_another_kind_are_refused(costs):
  with pytest.raises(TypeError, match='costs=.*must be a Costs'):
    participation.Budget(4, 2, costs=costs)


def test_no_participation_is_refused():
  with pytest.raises(ValueError, match='max_participations=0: must be at leas'):
    participation.MinSep(3, 0)


@pytest.mark.parametrize(
  'schema',
  [
    participation.Single(),
    participation.MinSep(342),
    participation.MinSep(342, 6),
    participation.FixedEpoch(10, 2),
  ],
)
def test_from_name_reads_to_dict_back(schema):
  described = schema.to_dict()
  name = described.pop('participation')
  assert participation.from_name(name, **described) == schema


@pytest.mark.parametrize(
  ('arguments', 'message'),
  [
    (('epochs',), 'participation=epochs: is not a known schema'),
    (('min-sep',), 'min_sep=None: participation min-sep needs it'),
    (('fixed-epoch', None, 3), 'min_sep=None: participation fixed-epoch'),
    (('single', 3), 'min_sep=3: participation single does not take it'),
    (('single', None, 2), 'max_participations=2: participation single does'),
    (('single', 3, 2, 1, 9), 'min_sep=3: participation single does not take'),
    (('min-sep', 3, 2, 1, 9), 'apart=1: participation min-sep does not take'),
  ],
)
def test_from_name_refuses(arguments, message):
  with pytest.raises(ValueError, match=message):
    participation.from_name(*arguments)


def test_single_takes_one_as_max_participations():
  assert participation.from_name('single', None, 1) == participation.Single()


def test_numpy_integers_become_json():
  schema = participation.MinSep(np.int64(4), np.int32(2))
  assert json.loads(json.dumps(schema.to_dict())) == {
    'participation': 'min-sep',
    'min_sep': 4,
    'max_participations': 2,
  }


def test_rounds_between_are_one_less_than_min_sep():
  assert participation.min_sep_from_rounds_between(484) == 485
  for first, second in itertools.combinations(range(9), 2):
    between = len(range(first + 1, second))
    min_sep = participation.min_sep_from_rounds_between(between)
    assert min_sep == second - first


@pytest.mark.parametrize('value', [1.0, True, '4', None])
def test_convention_of_another_kind_is_refused(value):
  with pytest.raises(TypeError, match='rounds_between='):
    participation.min_sep_from_rounds_between(value)


def test_convention_below_consecutive_rounds_is_refused():
  with pytest.raises(ValueError, match='rounds_between=-1: must be at least 0'):
    participation.min_sep_from_rounds_between(-1)


def test_min_sep_of_a_timer_covers_the_slowest_rounds():
  assert participation.min_sep_from_timer(6, 10) == 54
  assert participation.min_sep_from_timer(6, 10, margin=0) == 60
  assert participation.min_sep_from_timer(0.01, 10) == 1
  # A client that waits 6 hours skips the rounds that begin meanwhile.
  begins = np.arange(0, 100, 1 / 10)
  for start in begins[:50]:
    later = np.flatnonzero(begins >= start + 6)[0]
    assert later - np.flatnonzero(begins == start)[0] >= 60


@pytest.mark.parametrize(
  'name, value', [('hours', 0), ('rounds_per_hour', -1), ('margin', 1)]
)
def test_timer_out_of_range_is_refused(name, value):
  arguments = {'hours': 6, 'rounds_per_hour': 10, 'margin': 0.1, name: value}
  margin = arguments.pop('margin')
  with pytest.raises(ValueError, match=f'{name}={value}: must be'):
    participation.min_sep_from_timer(**arguments, margin=margin)
