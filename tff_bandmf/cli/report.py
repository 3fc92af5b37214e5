"""`bandmf report`: writes the privacy report of a run."""

from __future__ import annotations

import dataclasses
import pathlib
from typing import Optional

import click

from tff_bandmf import _files, errors
from tff_bandmf.cli import options, output

_SCHEMA = 'min_sep=B,max_participations=K'


def _schema(ctx, param, value: Optional[str]) -> Optional[dict[str, int]]:
  """Returns {name: number} for the value of --what-if, such as `_SCHEMA`."""
  if value is None:
    return None
  schema: dict[str, int] = {}
  for part in value.split(','):
    name, _, text = part.partition('=')
    name = name.strip().replace('-', '_')
    if name not in ('min_sep', 'max_participations') or name in schema:
      raise errors.value_error(
        f'what_if={value}: takes min_sep and max_participations, each once; '
        f'give --what-if {_SCHEMA}'
      )
    schema[name] = options.INTEGER.convert(text, param, ctx)
  return schema


def _notes(ctx, param, values: tuple[str, ...]) -> dict[str, str]:
  """Returns {NAME: TEXT}, with each name once."""
  notes: dict[str, str] = {}
  for value in values:
    name, equals, text = value.partition('=')
    if not equals:
      raise errors.value_error(
        f'note={value}: must be NAME=TEXT; give --note title=TEXT'
      )
    if name in notes:
      raise errors.value_error(
        f'note={value}: is the second note {name}; give each note once, and '
        f'several owners as --note owner="A; B"'
      )
    notes[name] = text
  return notes


@click.command()
@click.argument('run_dirs', nargs=-1, metavar='RUN_DIR')
@click.option(
  '--what-if',
  metavar=_SCHEMA,
  callback=_schema,
  help='Only print the epsilon that the noise of the run would give if every '
  'two rounds of a client were at least B apart and no client took part in '
  'more than K rounds. If B or K is missing, the planned number counts.',
)
@options.paths(
  plan='Plan file of training that ran without tff_bandmf.Run.',
  log='With --plan: participation log of the training, CSV or Parquet, or a '
  'folder of Parquet files, with the columns round and client.  [default: '
  'participation as planned]',
)
@options.log_columns
@click.option(
  '--note',
  'notes',
  metavar='NAME=TEXT',
  callback=_notes,
  multiple=True,
  help='With --plan: a note for the report, such as title, owner, '
  'contact, date, model, intended_use, region, sector or unit_of_privacy. With '
  'RUN_DIR and --public: a note that replaces the note of the run, '
  'other than unit_of_privacy. May be repeated.',
)
@options.releases
@options.switches(
  public='Write a report for the public, on one run or on several runs on the '
  'same clients. The report gives the guarantee of all runs together, rounds '
  'numbers to three digits and leaves out counts of clients.',
  registry='With --public: also write registry.yaml, a record for the registry '
  'of deployments of differential privacy.',
  card='With --public: also write card.md, a section for a model card.',
)
@options.paths(
  out='Folder to write to.  [default: the folder of the run; with --plan or '
  'several runs, the current folder]'
)
@options.as_json
def report(
  run_dirs, what_if, plan, log, notes, releases, columns, out, **kinds
):
  """Writes the privacy report of a run into its directory.

  With --plan, the report is on training that ran without tff_bandmf.Run: on the
  rounds in --log or, without a log, on the numbers in the plan. Exit status 1:
  clients took part more often, or in closer rounds, than planned; the epsilon
  of the report holds for their actual participation. With --release, the report
  lists releases of other programs on the same clients, and states the guarantee
  of all of them together; this run alone is stated too.
  """
  # Imported here, since matplotlib is slow to import.
  from tff_bandmf import report as report_lib
  from tff_bandmf.report import participation_log, registry_and_card

  _check(run_dirs, {'plan': plan, 'log': log, 'note': notes or None}, kinds)
  if what_if is not None:
    if len(run_dirs) != 1:
      raise errors.value_error(
        f'what_if={what_if}: is about the noise of one run; give one RUN_DIR'
      )
    numbers = report_lib.what_if(run_dirs[0], **what_if)
    output.show(numbers, numbers['summary'])
    return
  if run_dirs:
    sources = [report_lib.of_run(run) for run in run_dirs]
  else:
    if log is not None:
      log = participation_log.ParticipationLog(log, **columns)
    sources = [report_lib.of_plan(plan, log, notes)]
  sources[-1] = dataclasses.replace(sources[-1], releases=releases)
  for source in sources:
    output.warn(source.alike)
  folder = pathlib.Path(out or (run_dirs[0] if len(run_dirs) == 1 else '.'))
  broken = report_lib.BROKEN * any(source.claim.violated for source in sources)
  if kinds['public']:
    published = report_lib.publish(sources, notes if run_dirs else None)
    content = published.content
    line = f'{broken}epsilon {content["epsilon"]}'
    texts = {}
    if kinds['registry']:
      entry = report_lib.registry_record(content, sources[-1].run.data)
      line += f'; a record of tier {entry["tier"]}'
      texts[registry_and_card.REGISTRY_FILE] = report_lib.to_yaml(entry)
    if kinds['card']:
      texts[registry_and_card.CARD_FILE] = report_lib.card(content)
    written, name = published.write(folder), report_lib.PUBLIC_FILE
    for file, text in texts.items():
      _files.write(folder / file, text.encode())
  else:
    written = report_lib.from_source(sources[0]).write(folder)
    line, name = written['summary'], report_lib.MARKDOWN_FILE
  # A reader could take the claim so far for the claim of the whole run.
  completed = all(source.completed for source in sources)
  warnings = [] if completed else written['warnings']
  output.show(written, '\n'.join([*warnings, line, str(folder / name)]))
  if broken:
    raise output.did_not_hold(
      'violated=True: clients took part more often, or in closer rounds, than '
      'planned; the epsilon of the report holds for their actual participation'
    )


def _check(run_dirs: tuple, elsewhere: dict, kinds: dict) -> None:
  """Raises ValueError if the arguments do not go together.

  A report is on runs or on a plan, not both. Only a public report may have
  several runs. `elsewhere` maps plan, log and note to the values of these
  options. RUN_DIR allows none of them, except notes of a public report. `kinds`
  maps public, registry and card to their switches.
  """
  public = kinds['public']
  if len(run_dirs) > 1 and not public:
    raise errors.value_error(
      f'run_dir={run_dirs[1]}: is one too many, since only a public report '
      'covers several runs; give --public'
    )
  if not run_dirs and elsewhere['plan'] is None:
    raise errors.value_error(
      'plan=None: a report needs a run or a plan; give RUN_DIR, or --plan FILE '
      '[--log FILE]'
    )
  for name, value in elsewhere.items() if run_dirs else ():
    if value is not None and not (public and name == 'note'):
      raise errors.value_error(
        f'{name}={value}: is for training that ran elsewhere, but RUN_DIR is a '
        'run; leave it out; the program of a run gives notes by run.note'
      )
  for name, value in kinds.items():
    if value and not public:
      raise errors.value_error(
        f'{name}={value}: is made from the public report; give --public too'
      )
