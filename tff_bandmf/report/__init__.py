"""The privacy report of a run, built from the files in the run's folder."""

from tff_bandmf._files import code_digest
from tff_bandmf.report.document import json_schema
from tff_bandmf.report.inputs import Source, of_plan, of_run
from tff_bandmf.report.public import HTML_FILE as PUBLIC_FILE
from tff_bandmf.report.public import Public, publish
from tff_bandmf.report.registry_and_card import card, registry_record, to_yaml
from tff_bandmf.report.report import (
  HTML_FILE,
  JSON_FILE,
  MARKDOWN_FILE,
  Report,
  build,
  from_source,
  versions,
  what_if,
  write,
)
from tff_bandmf.report.sentences import BROKEN
