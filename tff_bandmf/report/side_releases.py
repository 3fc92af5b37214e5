"""What is released without noise."""

from __future__ import annotations

import pathlib

from tff_bandmf.run_files import metrics, run_json

_COLUMNS = {
  'seconds': 'how long every round took',
  'clients': 'cohort size of every round, exact',
  'non_finite': (
    'how many clients of a round had an update that was not finite and '
    'counted as zero, exact'
  ),
  'accuracy': 'of released models, on validation clients without noise',
  'accuracy_of_tff': 'the same, as TFF counts',
  'accuracy_with_end_and_unknown': (
    'the same, ends of sentence and unknown words counted'
  ),
  'loss': 'of released models, on validation clients without noise',
}
# What a report itself tells without noise.
COUNTS = (
  'cohort sizes, how many clients took part, how often and how far apart, exact'
)


def of(
  directory: pathlib.Path,
  run: run_json.RunRecord,
  columns: list[str],
  amplified: bool,
) -> list[dict[str, str]]:
  """Returns what is released without noise, one by one, and where it is.

  Args:
    directory: of the run.
    run: what `run.json` says.
    columns: of `metrics.csv`; one that is not known is taken as not noised.
    amplified: whether the claim rests on chance: no counts are told.
  """
  rows = [(run_json.RUN_FILE, 'how many clients may be drawn, exact')]
  if run.train_sha256:
    rows.append((run_json.RUN_FILE, 'a digest of the training data'))
  # PRIVACY: these two have noise where the clip adapts, and only there. Guard:
  # run_test.test_adaptive_clip_of_a_process_is_told.
  noised = metrics.RELEASED if run.claim.get('adaptive_clip') else ()
  rows += [
    (
      f'{run_json.METRICS_FILE}, {column}',
      _COLUMNS.get(column, 'not known to this report'),
    )
    for column in columns
    if column not in ('round', *noised)
  ]
  if (directory / 'tensorboard').exists():
    rows.append(('tensorboard/', f'the same as {run_json.METRICS_FILE}'))
  if (directory / run_json.RESULT_FILE).exists():
    rows.append(
      (
        run_json.RESULT_FILE,
        'what the last model was measured to do',
      )
    )
  rows.append(
    (
      run_json.LEDGER_FILE,
      'who took part in which round; keep it, and do not publish it'
      if (directory / run_json.LEDGER_KEY).exists()
      else 'hashes of clients, under a key that is gone',
    )
  )
  if not amplified:
    rows.append(('this report', COUNTS))
  rows += [('stated by the run', item) for item in run.side_releases]
  return [{'where': where, 'what': what} for where, what in rows]
