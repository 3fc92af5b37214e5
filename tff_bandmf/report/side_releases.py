"""The releases of a run that have no noise."""

from __future__ import annotations

import pathlib

from tff_bandmf.report import claim as claim_lib
from tff_bandmf.run_files import metrics, run_json

_COLUMNS = {
  'seconds': 'duration of every round',
  'memory_mib': 'memory of the program after every round',
  'clients': 'cohort size of every round, exact',
  'non_finite': (
    'exact number of clients of every round whose update was not finite and '
    'counted as zero'
  ),
  'accuracy': (
    'accuracy of released models on validation clients, without noise'
  ),
  'accuracy_of_tff': (
    "accuracy on validation clients by TFF's definition, without noise"
  ),
  'accuracy_with_end_and_unknown': (
    'accuracy on validation clients, with ends of sentence and unknown words, '
    'without noise'
  ),
  'loss': 'loss of released models on validation clients, without noise',
}
# Counts that a report itself states without noise.
COUNTS = (
  'exact counts: the cohort sizes, the number of clients, and the largest '
  'number and the least distance of the rounds of a client'
)


def rows(
  directory: pathlib.Path,
  run: run_json.RunRecord,
  columns: list[str],
  claim: claim_lib.Claim,
) -> list[dict[str, str]]:
  """Returns the releases without noise: objects with `where` and `what`.

  Args:
    directory: folder of the run.
    run: statements on the run.
    columns: columns of `metrics.csv`; unknown columns count as without noise.
    claim: claim of the run. The report of an amplified claim does not state the
      counts `COUNTS`, and the result leaves them out.
  """
  table = []
  if run.train_sha256:
    table.append((run_json.RUN_FILE, 'a digest of the training data'))
  # PRIVACY: the columns in `metrics.RELEASED` have noise only if the clip is
  # adaptive. If the clip is constant, a table without these columns would hide
  # releases without noise. So they are left out only if the clip is adaptive.
  # Guard: run_clip_test.test_adaptive_clip_of_a_process_is_told.
  with_noise = metrics.RELEASED if claim.adaptive_clip else ()
  table += [
    (
      f'{run_json.METRICS_FILE}, {column}',
      _COLUMNS.get(column, 'a column that this report does not know'),
    )
    for column in columns
    if column not in ('round', *metrics.PLANNED, *with_noise)
  ]
  if claim.observed.ended is not None:
    table.append((run_json.RESULT_FILE, 'measured results of the last model'))
  if run.population is not None:
    table.append(
      (run_json.LEDGER_FILE, 'exact number of clients that may be drawn')
    )
  table.append(
    (
      run_json.LEDGER_FILE,
      'hashes of the clients of each round; keep the ledger secret'
      if (directory / run_json.LEDGER_KEY).exists()
      else 'hashes of the clients of each round, under a key that is destroyed',
    )
  )
  if claim.amplified is None:
    table.append(('this report', COUNTS))
  table += [('stated by the run', item) for item in run.side_releases]
  return [{'where': where, 'what': what} for where, what in table]
