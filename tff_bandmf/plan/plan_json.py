"""The file of a plan: the user's request, the strategy, noise and claim.

The file stores all numbers of the strategy, so that a resumed run computes with
the same digits. The request of the program that resumes a run must be equal to
the request in the file.
"""

from __future__ import annotations

import dataclasses
import os
import pathlib
from typing import Any, Optional, Union

import attrs

from tff_bandmf import (
  _files,
  accounting,
  clipping_norm,
  errors,
  sensitivity,
  strategies,
  workloads,
)
from tff_bandmf.plan import mechanism as mechanism_lib
from tff_bandmf.plan import request as request_lib
from tff_bandmf.plan import search as search_lib

FORMAT = 'tff_bandmf.plan'
VERSION = 3

# Least epsilon and delta of a plan, as fractions of the request. Calibration
# gives an epsilon of about 1 - 1e-6 times the request. If samples bound delta,
# the bound may be well below the requested delta.
_LEAST_EPSILON, _LEAST_DELTA = 1 - 1e-4, 0.7


def to_document(request: request_lib.Request) -> _files.JsonObject:
  """Returns the attributes of a request as a JSON object.

  If the mechanism is a strategy or the file of a strategy, the object has the
  digest of this strategy.
  """
  mechanism: Any = request.mechanism
  if request.file:
    mechanism = strategies.load(request.file)[0]
  if isinstance(mechanism, mechanism_lib.Mechanism):
    mechanism = {'family': mechanism.family, **mechanism.parameters}
  elif isinstance(mechanism, strategies.Strategy):
    mechanism = {'digest': mechanism.digest()}
  return {
    **{
      field.name: getattr(request, field.name)
      for field in attrs.fields(request_lib.Request)
    },
    'cohorts': request.cohorts.to_dict(),
    'workload': request.workload.to_dict(),
    'mechanism': mechanism,
    'l2_norm_clip': clipping_norm.to_json(request.l2_norm_clip),
  }


def save(result: search_lib.Result, path: Union[str, os.PathLike]) -> None:
  """Writes the file of a plan, completely or not at all.

  Raises:
    ValueError: the file exists.
    OSError: the file cannot be written.
  """
  path = pathlib.Path(path)
  if path.exists():
    raise errors.value_error(
      f'plan={path}: is there already; choose another name'
    )
  request, bound = result.request, None
  if request.epsilon is not None and request.delta is not None:
    bound = dataclasses.asdict(result.guarantee.claim(request.delta))
  _files.write_json(
    path,
    {
      'format': FORMAT,
      'version': VERSION,
      'request': to_document(request),
      'noise_multiplier': result.guarantee.noise_multiplier,
      'bound': bound,
      'strategy': strategies.to_document(result.guarantee.strategy),
      'runners_up': result.runners_up,
      'left_out': dict(result.left_out),
    },
  )


def load(path: Union[str, os.PathLike]) -> search_lib.Result:
  """Returns the result in the file of a plan, with the request.

  Raises:
    ValueError: the file is not a plan, has another version or is damaged, or
      its noise does not prove its claim.
    OSError: the file cannot be read.
  """
  path = pathlib.Path(path)
  content = _files.read_json(path)
  if not isinstance(content, dict) or content.get('format') != FORMAT:
    raise errors.value_error(
      f'plan={path}: is not a plan; write one with bandmf plan --out FILE'
    )
  if content.get('version') != VERSION:
    raise errors.value_error(
      f'version={content.get("version")}: {path} must have version {VERSION}; '
      'make the plan again with this release'
    )
  try:
    fields = dict(content['request'])
    strategy = strategies.from_document(content['strategy'], path)[0]
    cohorts = accounting.from_dict(fields['cohorts'])
    planned = strategy.of_rounds(fields['rounds'])
    stored = request_lib.Request(
      **{
        **fields,
        'cohorts': cohorts,
        'l2_norm_clip': clipping_norm.from_json(fields['l2_norm_clip']),
        'workload': workloads.from_dict(fields['workload']),
        'mechanism': _mechanism(fields['mechanism'], planned),
      }
    )
    run_strategy, run_cohorts = sensitivity.budget.for_horizon(
      cohorts.for_cohort_size(stored.clients_per_round), planned
    )
    if run_strategy.digest() != strategy.digest():
      raise TypeError('another horizon')
    noise, most = float(content['noise_multiplier']), stored.clients_per_unit
    guarantee = accounting.Guarantee(
      strategy, run_cohorts, noise, clients_per_unit=most
    )
    runners_up = tuple((family, rmse) for family, rmse in content['runners_up'])
    left_out = {**content['left_out']}
  except (KeyError, TypeError, AttributeError) as error:
    raise errors.value_error(
      f'plan={path}: is damaged; write it again with bandmf plan'
    ) from error
  result = search_lib.Result(stored, guarantee, runners_up, left_out)
  _check_strategy(result, planned, path)
  _check_noise(result, path, content.get('bound'))
  return result


def _check_strategy(
  result: search_lib.Result, strategy: strategies.Strategy, path: pathlib.Path
) -> None:
  """Raises ValueError if a request does not lead to the strategy of a file.

  Args:
    result: content of the file.
    strategy: the strategy in the file, for the planned rounds.
    path: the file.
  """
  stored, mechanism = result.request, result.request.mechanism
  if isinstance(mechanism, str):
    mechanism = mechanism_lib.Mechanism(
      strategy.family if mechanism == mechanism_lib.BEST else mechanism
    )
  differs = strategy.rounds != stored.rounds
  if isinstance(mechanism, mechanism_lib.Mechanism):
    differs |= not mechanism.describes(strategy)
  compared = search_lib.compared(stored)
  most = search_lib.memory_copies(stored)
  differs |= most is not None and strategy.least_copies > most
  ranked = {family for family, _ in result.runners_up}
  if differs or not ranked | {*result.left_out} <= {*compared}:
    raise errors.value_error(
      f'plan={path}: its request does not lead to its strategy, '
      f'{strategy.family} for {strategy.rounds} rounds, or to its runners-up; '
      'make the plan again'
    )


def _check_noise(
  result: search_lib.Result,
  path: pathlib.Path,
  bound: Optional[_files.JsonObject],
) -> None:
  """Raises ValueError if a request does not lead to the noise of a file."""
  stored, guarantee = result.request, result.guarantee
  if stored.epsilon is None or stored.delta is None:
    holds = guarantee.noise_multiplier == stored.noise_multiplier
    if not holds or bound is not None:
      raise errors.value_error(
        f'noise_multiplier={guarantee.noise_multiplier}: {path} asks for '
        f'{stored.noise_multiplier}, and for no claim; make the plan again'
      )
    return
  # PRIVACY: An edited file could claim a smaller epsilon than its noise has.
  # Epsilon is computed again from the noise in the file, and a file with a
  # smaller epsilon is refused.
  # Guards:
  # plan_json_test.test_plan_with_less_noise_than_its_claim_needs_is_refused and
  # sampled_plan_test.test_sampled_plan_with_less_noise_is_refused.
  try:
    written = accounting.Bound(**(bound or {}))
    holds = written.epsilon <= stored.epsilon
    guarantee.confirm(written, stored.delta)
    claim = guarantee.claim(stored.delta)
  except (TypeError, ValueError):
    holds = False
  if not holds:
    raise errors.value_error(
      f'plan={path}: the noise in the file does not prove its claim; make the '
      'plan again'
    )
  # PRIVACY: A run trains with the least noise that the request of its plan
  # needs. If somebody raised the noise multiplier in the file later, a report
  # would state too low an epsilon for the run. So a plan with more noise is
  # refused.
  # Guards: plan_json_test.test_plan_with_noise_beyond_its_request_is_refused
  # and sampled_plan_test.test_sampled_plan_with_less_noise_is_refused.
  if (
    claim.epsilon < _LEAST_EPSILON * stored.epsilon
    or claim.total < _LEAST_DELTA * stored.delta
    or written.epsilon < _LEAST_EPSILON * stored.epsilon
  ):
    raise errors.value_error(
      f'noise_multiplier={guarantee.noise_multiplier}: {path} asks for '
      f'epsilon={stored.epsilon} at delta={stored.delta}, and this noise or '
      'its bound is for another claim; make the plan again'
    )


def _mechanism(written: Any, strategy: strategies.Strategy) -> Any:
  """Returns the mechanism of a request.

  Args:
    written: the mechanism of the request in the file.
    strategy: the strategy in the file, for the planned rounds.

  Raises:
    TypeError: the request names another strategy than the file has.
  """
  if isinstance(written, str):
    return written
  if 'digest' in written:
    if written['digest'] != strategy.digest():
      raise TypeError('another strategy')
    return strategy
  return mechanism_lib.Mechanism(**written)
