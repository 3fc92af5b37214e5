"""Tests of every family against dense matrices and all patterns."""

import contextlib
import itertools
import math
import pathlib
import tempfile
from unittest import mock

import brute_force
import families
import hypothesis
import numpy as np
import pytest
from hypothesis import strategies as st

from tff_bandmf import (
  accounting,
  participation,
  sensitivity,
  strategies,
  workloads,
)
from tff_bandmf.sensitivity import gram, toeplitz, tree
from tff_bandmf.strategies import base

_MOST_ROUNDS = 8
_WORKLOADS = (
  workloads.PREFIX,
  workloads.Workload(0.9),
  workloads.Workload(0.0, 0.2, 0.3),
  workloads.Workload(0.95, 0.15, 0.25),
)


# Under every schema.
_EXACT = (
  'identity',
  'banded-sqrt',
  'banded-fractional',
  'inverse-plus-constant',
  'sqrt-toeplitz',
  'lti',
  'dp-cgd',
  'dp-cgd, columns normalised',
  'tree',
)

_each_family = pytest.mark.parametrize('name', families.DRAWN)


_separated = st.tuples(
  st.sampled_from([participation.MinSep, participation.FixedEpoch]),
  # 9 is past the last round.
  st.integers(1, 5) | st.just(9),
  st.none() | st.integers(1, 4),
).map(lambda drawn: drawn[0](*drawn[1:]))
_schemas = st.just(participation.Single()) | _separated


def test_every_family_is_here():
  assert set(families.EXAMPLES) == set(strategies.FAMILIES)


@pytest.mark.parametrize('rounds', [6, 7, 64, 100])
@pytest.mark.parametrize('name', families.EXAMPLES)
def test_declared_memory_is_that_of_the_noise(name, rounds):
  family = strategies.FAMILIES[name]
  strategy = families.EXAMPLES[name].make(rounds)
  assert strategy.memory_copies == strategy.recursion().memory
  if not family.optimizer:
    assert family.memory.least(rounds) <= strategy.memory_copies


@_each_family
@hypothesis.settings(max_examples=12)
@hypothesis.given(data=st.data())
def test_errors_equal_the_dense_ones(name, data):
  rounds = data.draw(st.integers(1, 40))
  strategy = data.draw(families.DRAWN[name](rounds))
  matrix = strategy.matrix()
  assert matrix.shape == (rounds, rounds)
  assert not np.any(np.triu(matrix, 1))
  np.testing.assert_allclose(
    strategy.noising_matrix() @ matrix, np.eye(rounds), atol=1e-8
  )
  for workload in _WORKLOADS:
    decoder = strategy.decoder_matrix(workload)
    np.testing.assert_allclose(
      decoder @ matrix, workload.matrix(rounds), rtol=1e-8, atol=1e-8
    )
    expected = (decoder**2).sum(1)
    np.testing.assert_allclose(
      strategy.per_query_errors(workload), expected, rtol=1e-8
    )
    np.testing.assert_allclose(
      strategy.errors(workload), (expected.mean(), expected.max()), rtol=1e-8
    )


@pytest.mark.slow
@_each_family
@hypothesis.settings(max_examples=30)
@hypothesis.given(data=st.data())
def test_sensitivity_is_safe(name, data):
  rounds = data.draw(st.integers(1, _MOST_ROUNDS))
  brute_force.checked(
    data.draw(families.DRAWN[name](rounds)), data.draw(_schemas)
  )


@_each_family
@hypothesis.settings(max_examples=4)
@hypothesis.given(data=st.data())
def test_epsilon_is_safe(name, data):
  strategy = data.draw(families.DRAWN[name](data.draw(st.integers(1, 6))))
  schema = data.draw(_schemas)
  guarantee = accounting.Guarantee(strategy, schema, 1.5)
  noise = guarantee.z_stddev_per_clip / brute_force.bound(
    strategy.matrix(), schema
  )
  epsilon = accounting.gaussian_epsilon(noise, 1e-6)
  assert guarantee.epsilon(1e-6) >= epsilon * (1 - 1e-9)


@_each_family
@hypothesis.settings(max_examples=30)
@hypothesis.given(data=st.data())
def test_sensitivity_is_safe_where_rounds_are_many(name, data):
  rounds = data.draw(st.integers(1, _MOST_ROUNDS))
  strategy = data.draw(families.DRAWN[name](rounds))
  schema = data.draw(_schemas)
  with contextlib.ExitStack() as patches:
    # Nothing is quick, and blocks are as short as they can be.
    for module, limit in (
      (base, '_ENTRIES'),
      (gram, '_LEAST_ROWS'),
      (toeplitz, '_QUICK_GRAM'),
      (toeplitz, '_QUICK_LAGS'),
      (tree, '_QUICK_LAGS'),
      (tree, '_QUICK_TABLE'),
    ):
      patches.enter_context(mock.patch.object(module, limit, 1))
    brute_force.checked(strategy, schema)


@pytest.mark.parametrize(
  'make', [participation.MinSep, participation.FixedEpoch]
)
def test_stamped_banded_inverse_overlaps(make):
  # Two bands of C^-1, but columns of C as long as the block.
  strategy = strategies.Stamped(8, strategies.DpCgd(6, 0.9))
  for min_sep, most in itertools.product(range(1, 6), (None, 2, 3)):
    brute_force.checked(strategy, make(min_sep, most))


@_each_family
@hypothesis.settings(max_examples=10)
@hypothesis.given(data=st.data())
def test_sensitivity_is_exact_where_theory_says_so(name, data):
  strategy = data.draw(
    families.DRAWN[name](data.draw(st.integers(1, _MOST_ROUNDS)))
  )
  schema = data.draw(_schemas)
  if name == 'online-tree':
    bound = brute_force.checked(strategy, schema)
    nodes = sensitivity.sensitivity(strategies.Tree(strategy.rounds), schema)
    assert (bound.value, bound.method) == (nodes.value, 'upper_bound')
    return
  single = schema.participations(strategy.rounds) == 1
  apart = not single and strategy.bands <= schema.min_sep
  fixed = isinstance(schema, participation.FixedEpoch)
  non_negative = np.all(strategy.matrix() >= 0)
  if name in _EXACT or single or apart or (fixed and non_negative):
    assert brute_force.checked(strategy, schema).method == sensitivity.EXACT


@_each_family
@hypothesis.settings(max_examples=10)
@hypothesis.given(data=st.data())
def test_file_keeps_the_strategy(name, data):
  strategy = data.draw(families.DRAWN[name](data.draw(st.integers(1, 9))))
  with tempfile.TemporaryDirectory() as folder:
    for suffix in ('.json', '.npz'):
      path = pathlib.Path(folder, f'strategy{suffix}')
      strategies.save(strategy, path)
      loaded, _ = strategies.load(path)
      assert type(loaded) is type(strategy)
      assert loaded.digest() == strategy.digest()
      np.testing.assert_array_equal(loaded.matrix(), strategy.matrix())


@_each_family
@hypothesis.settings(max_examples=15)
@hypothesis.given(data=st.data())
def test_digest_tells_matrices_apart(name, data):
  rounds = st.integers(1, 4)
  first, second = (
    data.draw(families.DRAWN[name](data.draw(rounds))) for _ in '12'
  )
  same = first.rounds == second.rounds and np.array_equal(
    first.matrix(), second.matrix()
  )
  if not same:
    assert first.digest() != second.digest()
  hypothesis.event(f'same: {same}')


@pytest.mark.parametrize(
  'strategy',
  [
    strategies.ColumnNormalized(strategies.BandedSqrt(60, 20)),
    strategies.Dense(
      strategies.ColumnNormalized(strategies.BandedSqrt(60, 20)).matrix()
    ),
  ],
  ids=['column-normalised', 'dense'],
)
def test_leftmost_pattern_of_normalised_columns_is_not_the_worst(strategy):
  matrix = strategy.matrix()
  leftmost = (matrix[:, ::12].sum(1) ** 2).sum()
  assert leftmost == pytest.approx(6.8786, abs=5e-5)
  for make in (participation.MinSep, participation.FixedEpoch):
    found = sensitivity.sensitivity(strategy, make(12, 5))
    assert found.method == sensitivity.EXACT
    assert found.value**2 == pytest.approx(6.8970, abs=5e-5)


@pytest.mark.parametrize('bands', [30, 45, 60])
def test_normalised_columns_against_many_patterns(bands):
  # Columns overlap with more than the next, at n that no small case reaches.
  strategy = strategies.ColumnNormalized(strategies.BandedSqrt(60, bands))
  gram_matrix = strategy.matrix().T @ strategy.matrix()
  columns = np.array(
    list(itertools.combinations(range(60 - 4 * 11), 5))
  ) + 11 * np.arange(5)
  true = gram_matrix[columns[:, :, None], columns[:, None]].sum((1, 2)).max()
  found = sensitivity.sensitivity(strategy, participation.MinSep(12, 5))
  assert found.method == sensitivity.EXACT
  assert found.value**2 == pytest.approx(true, rel=1e-12)


def test_unit_columns_that_do_not_overlap_give_the_root_of_k():
  strategy = strategies.ColumnNormalized(strategies.BandedSqrt(10**5, 342))
  found = sensitivity.sensitivity(strategy, participation.MinSep(342))
  assert (found.value, found.method) == (math.sqrt(293), 'exact')


def test_tree_of_the_published_setting():
  # [BandMF23, Table 2]: 118 under fixed epochs; min-separation is no worse.
  for make in (participation.MinSep, participation.FixedEpoch):
    found = sensitivity.sensitivity(strategies.Tree(2052), make(342, 6))
    assert (found.value, found.method) == (math.sqrt(118), 'exact')
  found = sensitivity.sensitivity(strategies.Tree(2052), participation.Single())
  assert found.value == math.sqrt(12)


def test_tree_under_min_separation_can_be_worse_than_fixed_epochs():
  # Two nodes of 9 rounds hold rounds 0, 8 and 9, 17; gaps of 8 hold 3 at most.
  strategy = strategies.Tree(32, arity=3)
  fixed = sensitivity.sensitivity(strategy, participation.FixedEpoch(8, 4))
  separated = sensitivity.sensitivity(strategy, participation.MinSep(8, 4))
  assert fixed.value**2 == pytest.approx(30)
  assert separated.value**2 == pytest.approx(32)
  assert separated.method == sensitivity.EXACT


def test_tree_of_many_rounds_needs_no_matrix():
  found = sensitivity.sensitivity(
    strategies.OnlineTree(10**6), participation.MinSep(50_000, 3)
  )
  # Nodes of up to 2^15 rounds hold one of the client's rounds, those of 2^16
  # two, and those of 2^17, 2^18 and 2^19 all three.
  assert found.value**2 == pytest.approx(16 * 3 + (4 + 1) + 3 * 9)


@pytest.mark.parametrize('rounds', [10**4, 10**6])
def test_columns_of_a_banded_inverse_are_counted_in_full(rounds):
  # lambda^n is not small: bands of C^-1 say nothing of the columns of C.
  strategy = strategies.DpCgd(rounds, 1.0)
  found = sensitivity.sensitivity(strategy, participation.MinSep(rounds // 2))
  assert found.value**2 == pytest.approx(rounds / 2 * (1 + 4), rel=1e-12)


def test_overflow_of_a_column_is_refused():
  for strategy in (
    strategies.BandedInverse(3000, [1.0, -2.0]),
    strategies.ColumnNormalized(strategies.BandedInverse(3000, [1.0, -2.0])),
    strategies.BandedInverse(600, [1.0, -2.0]),
  ):
    with pytest.raises(ValueError, match='C=.* overflow'):
      sensitivity.sensitivity(strategy, participation.MinSep(10))
