"""A program whose types mypy checks: right ones pass, and wrong ones do not.

`lint_test` runs mypy, which refuses an `ignore` that ignores no error. So each
line with one fails if the library takes that argument for `Any`.
"""

import pathlib

import tff_bandmf


def right(folder: pathlib.Path) -> str:
  """Returns the statement of a run; every argument has a type that it may."""
  plan: tff_bandmf.Plan = tff_bandmf.Plan(
    rounds=60,
    clients_per_round=10,
    cohorts=tff_bandmf.MinSep(12, max_participations=4),
    epsilon=4,
    delta=1e-6,
    l2_norm_clip=(0.3, 0.4),
    mechanism=tff_bandmf.Mechanism('banded', bands=8),
    memory_copies=None,
    workload=tff_bandmf.Workload(0.9, warmup=0.1),
  )
  rounds: int = plan.rounds
  epsilon: float = plan.guarantee.epsilon(1e-6)
  tff_bandmf.Plan(
    rounds=rounds,
    clients_per_round=10,
    cohorts=tff_bandmf.BMinSep(12, population=1000),
    noise_multiplier=epsilon,
    l2_norm_clip=tff_bandmf.AdaptiveClip(0.1),
    mechanism=folder / 'c.json',
  )
  with tff_bandmf.Run(folder, plan) as run:
    return run.report().statement


def wrong(plan: tff_bandmf.Plan) -> None:
  """Has one wrong type a statement."""
  text: str = plan.rounds  # type: ignore[assignment]
  tff_bandmf.Plan(  # type: ignore[call-arg]
    rounds=60,
    clients_per_round=10,
    cohorts=tff_bandmf.Single(),
    l2_norm_clip=1.0,
    epsilons=4.0,
  )
  tff_bandmf.Plan(
    rounds='x',  # type: ignore[arg-type]
    clients_per_round=1.5,  # type: ignore[arg-type]
    cohorts=12,  # type: ignore[arg-type]
    l2_norm_clip='1',  # type: ignore[arg-type]
    epsilon='4',  # type: ignore[arg-type]
    delta='1e-6',  # type: ignore[arg-type]
    noise_multiplier='1',  # type: ignore[arg-type]
    mechanism=3,  # type: ignore[arg-type]
    memory_copies='8',  # type: ignore[arg-type]
    largest_cohort='9',  # type: ignore[arg-type]
    zeroing_norm='9',  # type: ignore[arg-type]
    workload='prefix',  # type: ignore[arg-type]
    objective=1,  # type: ignore[arg-type]
    dimension='9',  # type: ignore[arg-type]
    clients_per_unit='1',  # type: ignore[arg-type]
    stands_for='9',  # type: ignore[arg-type]
  )
  tff_bandmf.MinSep('12')  # type: ignore[arg-type]
  tff_bandmf.MinSep(12, '4')  # type: ignore[arg-type]
  tff_bandmf.FixedEpoch(None)  # type: ignore[arg-type]
  tff_bandmf.Budget(12, apart='3')  # type: ignore[arg-type]
  tff_bandmf.Budget(12, horizon='3')  # type: ignore[arg-type]
  tff_bandmf.BMinSep('12')  # type: ignore[arg-type]
  tff_bandmf.BMinSep(12, '0.1')  # type: ignore[arg-type]
  tff_bandmf.BallsInBins('12')  # type: ignore[arg-type]
  tff_bandmf.BallsInBins(12, population='9')  # type: ignore[arg-type]
  tff_bandmf.CyclicPoisson('0.1')  # type: ignore[arg-type]
  tff_bandmf.CyclicPoisson(groups='6')  # type: ignore[arg-type]
  tff_bandmf.Workload('0.9')  # type: ignore[arg-type]
  tff_bandmf.Workload(warmup='0.9')  # type: ignore[arg-type]
  tff_bandmf.AdaptiveClip(0.1, quantile='0.5')  # type: ignore[arg-type]
  tff_bandmf.Run(3, plan)  # type: ignore[arg-type]
  tff_bandmf.Run('runs/mine', 'plan.json')  # type: ignore[arg-type]
  print(text)
