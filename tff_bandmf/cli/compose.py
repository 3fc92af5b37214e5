"""`bandmf compose`: the guarantee of several runs on the same clients."""

from __future__ import annotations

import pathlib
from collections.abc import Sequence
from typing import TYPE_CHECKING, Optional

import click

from tff_bandmf import accounting, errors
from tff_bandmf.cli import options, output
from tff_bandmf.plan import plan as plan_lib
from tff_bandmf.run_files import run_json

if TYPE_CHECKING:
  from tff_bandmf.report import claim as claim_lib


@click.command()
@click.argument('runs', nargs=-1, required=True, metavar='RUN-OR-PLAN ...')
@options.delta
@options.releases
@options.as_json
def compose(runs, delta, releases):
  """Shows the joint guarantee of several runs on the same clients.

  A run is given by its folder. All planned rounds of a run count, including
  rounds that have not started; `epsilon_so_far` is the epsilon in the report of
  the run. A plan is a file that bandmf plan wrote. Epsilon is exact if no run
  has sampled cohorts. For cyclic Poisson sampling, epsilon comes from a
  convolution of privacy losses; for other sampling, epsilon is an upper bound.
  `composition` names the method. A release of another program is given by the
  noise multiplier (stddev / sensitivity) of a Gaussian query, by epsilon and
  delta, or by rho of zCDP.
  """
  _check_listed(runs)
  sources = [_source(run) for run in runs]
  guarantees = [guarantee for guarantee, _ in sources]
  together = accounting.compose([*guarantees, *releases]).to_dict(delta)
  output.warn_of_weak(together['epsilon'], delta)
  rows = [
    {
      'run': run,
      'rounds': guarantee.strategy.rounds,
      'rounds_started': claim and claim.rounds,
      'sensitivity': guarantee.sensitivity.value,
      'noise_multiplier': guarantee.noise_multiplier,
      'rho': guarantee.rho,
      'epsilon': guarantee.proved_epsilon(delta),
      'epsilon_so_far': claim and claim.claimed.proved_epsilon(delta),
    }
    for run, (guarantee, claim) in zip(runs, sources)
  ]
  for run, (guarantee, claim) in zip(runs, sources):
    if claim is not None and claim.may_grow:
      output.warn(
        f'rounds_started={claim.rounds}: {run} has {guarantee.strategy.rounds} '
        'rounds, and all of them count; epsilon_so_far is the claim of this '
        'run if it is never resumed'
      )
  rows += [
    {
      **dict.fromkeys(rows[0]),
      'run': each.name,
      'noise_multiplier': each.noise_multiplier,
      'rho': each.zcdp_rho,
      'epsilon': each.epsilon,
    }
    for each in releases
  ]
  if output.as_json():
    together = {'runs': rows, **together}
  else:
    click.echo(output.table(rows))
  output.show_result(together)


def _check_listed(runs: Sequence[str]) -> None:
  """Refuses a run listed twice, and a list that lacks an earlier run."""
  # Maps the ID of a run to its folder and its details.
  listed: dict[Optional[str], tuple[str, run_json.RunDetails]] = {}
  plans: set[pathlib.Path] = set()
  for run in runs:
    path = pathlib.Path(run).resolve()
    if path.is_file():
      if path in plans:
        output.warn(f'runs={run}: this plan is named twice, and counts twice')
      plans.add(path)
      continue
    details = run_json.RunDetails.read(pathlib.Path(run))
    # A copy of a folder, or another path to it, has the same run.
    if details.run_id in listed:
      raise errors.value_error(
        f'runs={run}: is named twice: it is the run '
        f'{listed[details.run_id][0]}; name each run once'
      )
    listed[details.run_id] = run, details
  for _, details in listed.values():
    for each in details.after or ():
      # PRIVACY: If a composition lacks an earlier run on the same clients, its
      # epsilon is too small. The command fails if a listed run names an earlier
      # run that is not listed.
      # Guard: after_test.test_runs_before_those_that_are_listed_are_asked_for.
      if each['run_id'] not in listed:
        raise errors.value_error(
          f'runs={each["run"]}: is before one of these runs, on the same '
          'clients; list it too'
        )


def _source(
  run: str,
) -> tuple[accounting.Guarantee, Optional[claim_lib.Claim]]:
  """Returns a guarantee, and the claim if `run` is the folder of a run."""
  path = pathlib.Path(run)
  if path.is_file():
    return plan_lib.Plan.load(path).guarantee, None
  # Imported here, since the files of plans do not need this module.
  from tff_bandmf.report import claim as claim_lib

  claim = claim_lib.from_run(path)
  return claim.composed, claim
