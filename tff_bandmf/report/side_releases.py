"""The releases of a run that have no noise."""

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
# Counts that a report itself states without noise.
COUNTS = (
  'cohort sizes, how many clients took part, how often and how far apart, exact'
)


def rows(
  directory: pathlib.Path,
  run: run_json.RunRecord,
  columns: list[str],
  amplified: bool,
) -> list[dict[str, str]]:
  """Returns the releases without noise: objects with `where` and `what`.

  Args:
    directory: folder of the run.
    run: content of `run.json`.
    columns: columns of `metrics.csv`; unknown columns count as without noise.
    amplified: whether the claim is amplified, so that the report has no counts.
  """
  table = [(run_json.RUN_FILE, 'how many clients may be drawn, exact')]
  if run.train_sha256:
    table.append((run_json.RUN_FILE, 'a digest of the training data'))
  # PRIVACY: in a run with a constant clip, a column without noise could have
  # the name of a column that adaptive clips release with noise. Columns with
  # such a name count as noised only if the clip of the run is adaptive.
  # Guard: run_clip_test.test_adaptive_clip_of_a_process_is_told.
  with_noise = metrics.RELEASED if run.claim.get('adaptive_clip') else ()
  table += [
    (
      f'{run_json.METRICS_FILE}, {column}',
      _COLUMNS.get(column, 'not known to this report'),
    )
    for column in columns
    if column not in ('round', *with_noise)
  ]
  if (directory / 'tensorboard').exists():
    table.append(('tensorboard/', f'the same as {run_json.METRICS_FILE}'))
  if (directory / run_json.RESULT_FILE).exists():
    table.append(
      (
        run_json.RESULT_FILE,
        'what the last model was measured to do',
      )
    )
  table.append(
    (
      run_json.LEDGER_FILE,
      'who took part in which round; keep it, and do not publish it'
      if (directory / run_json.LEDGER_KEY).exists()
      else 'hashes of clients, under a key that is gone',
    )
  )
  if not amplified:
    table.append(('this report', COUNTS))
  table += [('stated by the run', item) for item in run.side_releases]
  return [{'where': where, 'what': what} for where, what in table]
