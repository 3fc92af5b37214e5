"""The file of a plan: the user's request, the strategy, noise and claim.

The file stores the strategy, so that a run resumes with the same digits. A
program that resumes a run is compared with the request in the file.
"""

from __future__ import annotations

import os
import pathlib
from typing import Any, Optional, Union

import attrs

from tff_bandmf import _files, accounting, clips, errors, strategies, workloads
from tff_bandmf.plan import mechanism as mechanism_lib

FORMAT = 'tff_bandmf.plan'
VERSION = 2


def request(plan: Any) -> dict[str, Any]:
  """Returns the attributes that the user gave a plan, as a JSON object."""
  mechanism: Any = plan.mechanism
  if isinstance(mechanism, (str, os.PathLike)):
    mechanism = os.fspath(mechanism)
    if pathlib.Path(mechanism).suffix:
      mechanism = strategies.load(mechanism)[0]
  if isinstance(mechanism, mechanism_lib.Mechanism):
    mechanism = {'family': mechanism.family, **mechanism.parameters}
  elif isinstance(mechanism, strategies.Strategy):
    mechanism = {'digest': mechanism.digest()}
  return {
    **{
      field.name: getattr(plan, field.name)
      for field in attrs.fields(type(plan))
    },
    'cohorts': plan.cohorts.to_dict(),
    'workload': plan.workload.to_dict(),
    'mechanism': mechanism,
    'l2_norm_clip': clips.to_json(plan.l2_norm_clip),
  }


def save(plan: Any, path: Union[str, os.PathLike]) -> None:
  """Writes a `Plan`; see `Plan.save`."""
  path = pathlib.Path(path)
  if path.exists():
    raise errors.value_error(
      'plan', path, 'is there already', 'choose another name'
    )
  _files.write_json(
    path,
    {
      'format': FORMAT,
      'version': VERSION,
      'request': request(plan),
      'noise_multiplier': plan.found.guarantee.noise_multiplier,
      'bound': plan.bound,
      'strategy': strategies.to_document(plan.strategy),
      'runners_up': plan.found.runners_up,
      'left_out': dict(plan.found.left_out),
    },
  )


def load(kind: Any, path: Union[str, os.PathLike]) -> Any:
  """Returns the plan of a file as an instance of `kind`; see `Plan.load`."""
  path = pathlib.Path(path)
  content = _files.read_json(path)
  if not isinstance(content, dict) or content.get('format') != FORMAT:
    raise errors.value_error(
      'plan', path, 'is not a plan', 'write one with bandmf plan --out FILE'
    )
  if content.get('version') != VERSION:
    raise errors.value_error(
      'version',
      content.get('version'),
      f'{path} must have version {VERSION}',
      'make the plan again with this release',
    )
  try:
    asked = dict(content['request'])
    strategy = strategies.from_document(content['strategy'], path)
    written = asked.pop('mechanism')
    plan = kind(
      **{
        **asked,
        'cohorts': accounting.from_dict(asked['cohorts']),
        'l2_norm_clip': clips.from_json(asked['l2_norm_clip']),
        'workload': workloads.from_dict(asked['workload']),
        'mechanism': _mechanism(written, strategy),
      }
    )
    cohorts = accounting.expecting(plan.cohorts, plan.clients_per_round)
    found = mechanism_lib.Found(
      accounting.Guarantee(
        strategy,
        accounting.completed(cohorts, strategy.bands),
        float(content['noise_multiplier']),
        dimension=plan.coordinates,
        clients_per_unit=plan.clients_per_unit,
      ),
      tuple((family, rmse) for family, rmse in content['runners_up']),
      content['left_out'],
    )
  except (KeyError, TypeError, AttributeError) as error:
    raise errors.value_error(
      'plan', path, 'is damaged', 'write it again with bandmf plan'
    ) from error
  plan.accept(found)
  _check_found(plan, path, content.get('bound'))
  return plan


def _check_found(
  plan: Any, path: pathlib.Path, bound: Optional[dict[str, Any]]
) -> None:
  """Raises ValueError if the noise in a file does not give its claim."""
  # PRIVACY: an edited file could claim more privacy than its noise gives. The
  # claim is confirmed for the noise in the file, or the file is refused.
  # Guards:
  # plan_test.test_plan_with_less_noise_than_its_claim_needs_is_refused and
  # test_sampled_plan_with_less_noise_is_refused.
  guarantee = plan.found.guarantee
  holds = plan.strategy.rounds == plan.rounds
  if plan.epsilon is None or plan.delta is None:
    holds &= guarantee.noise_multiplier == plan.noise_multiplier
  else:
    try:
      found = accounting.Bound(**(bound or {}))
      holds &= found.epsilon <= plan.epsilon
      guarantee.confirm(found, plan.delta)
    except (TypeError, ValueError):
      holds = False
  if not holds:
    raise errors.value_error(
      'plan',
      path,
      'its noise does not give what it claims',
      'it was changed: make the plan again',
    )


def _mechanism(written: Any, strategy: strategies.Strategy) -> Any:
  """Returns the mechanism of a request.

  Args:
    written: the mechanism as the file has it.
    strategy: the strategy in the file.

  Raises:
    TypeError: the request names another strategy than the file holds.
  """
  if isinstance(written, str):
    return written
  if 'digest' in written:
    if written['digest'] != strategy.digest():
      raise TypeError('another strategy')
    return strategy
  return mechanism_lib.Mechanism(**written)
