"""The privacy report of a run; reads the files of its directory alone."""

from tff_bandmf.report.files import (
  COMPARE_DIRECTORY,
  HTML_FILE,
  IDENTITY_KEYS,
  JSON_FILE,
  LEDGER_FILE,
  LEDGER_HEAD,
  MARKDOWN_FILE,
  METRICS_FILE,
  NOISE_KEY_ID,
  RESULT_FILE,
  RUN_FILE,
  RUN_FORMAT,
  RUN_ID,
  RUN_VERSION,
  STRATEGY_FILE,
  read_run,
  row_digest,
)
from tff_bandmf.report.report import (
  FORMAT,
  VERSION,
  Report,
  build,
  json_schema,
  what_if,
  write,
)
from tff_bandmf.report.transparency import code_digest, versions
