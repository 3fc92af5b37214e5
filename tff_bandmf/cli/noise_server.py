"""`bandmf noise-server`: a tape made in a process of its own."""

from __future__ import annotations

import contextlib
import dataclasses
import signal
import threading
from collections.abc import Iterator
from typing import Any

import click

from tff_bandmf import errors
from tff_bandmf.cli import options, output

_PROGRESS_SECONDS = 1.0


class _Shard(click.ParamType):
  """`I/N`: number I, from 1, of N shards."""

  name = 'shard'

  def get_metavar(self, param, ctx=None):
    return 'I/N'

  def convert(self, value, param, ctx):
    try:
      index, shards = (int(part) for part in value.split('/'))
    except ValueError:
      index = shards = 0
    if not 1 <= index <= shards:
      raise ValueError(
        errors.invalid(
          'shard',
          value,
          'must be I/N with I from 1 to N',
          'give 1/2 to the first of two servers',
        )
      )
    return index, shards


@click.command()
@options.strategy_file
@click.option(
  '--parameters',
  required=True,
  type=options.INTEGER,
  help='Of the model: how many numbers an update has.',
)
@click.option(
  '--key-file',
  required=True,
  type=click.Path(),
  help='16 secret bytes, made from the entropy of the system if missing. One '
  'file serves one run, and all its shards.',
)
@click.option(
  '--directory',
  type=click.Path(),
  help='Of the noise, seen by the process that runs the rounds.  [default: one '
  'in memory, printed]',
)
@click.option(
  '--shard',
  default='1/1',
  show_default=True,
  type=_Shard(),
  help='Which part of the parameters, where several servers share them.',
)
@click.option(
  '--start-round',
  default=0,
  show_default=True,
  type=options.INTEGER_OR_ZERO,
  help='First round to serve. A folder that has served later ones goes on '
  'with those.',
)
@click.option(
  '--ahead-bytes',
  default=512 * 2**20,
  show_default=True,
  type=options.INTEGER,
  help='Bound on noise that waits to be read, two rounds at least.',
)
@click.option(
  '--max-memory-bytes',
  type=options.INTEGER,
  help='Past noise that is larger goes to a file in the folder for temporary '
  'files.  [default: no bound]',
)
@click.option(
  '--secure-noise',
  is_flag=True,
  help='AES in counter mode instead of Philox, which is not cryptographic.',
)
@click.option(
  '--device',
  'devices',
  multiple=True,
  help="Of TensorFlow, like GPU:0, once for each; 'host' takes none.  "
  '[default: all GPUs, or host]',
)
@options.as_json
def noise_server(
  file,
  parameters,
  key_file,
  directory,
  shard,
  start_round,
  ahead_bytes,
  max_memory_bytes,
  secure_noise,
  devices,
  as_json,
):
  """Writes the noise of a run to files, ahead of the rounds that read them.

  FILE is a strategy file. Give --directory, of every shard, to
  correlated_noise_aggregator as noise_server. Prints what it serves, then
  progress in one line on standard error, until SIGTERM or SIGINT: then unread
  noise is wiped. The same command goes on where an ended one was.
  """
  strategy, _ = output.load(file)
  with _stopped_by_signals() as stop:
    # Takes seconds: the other commands do without TensorFlow.
    from tff_bandmf import noise
    from tff_bandmf.noise import private_files, stream

    plan = noise.Plan.of(strategy)
    key = noise.Key.load_or_create(key_file)
    generator = noise.AES_CTR if secure_noise else noise.PHILOX
    index, shards = shard
    if directory is None:
      name = f'{plan.identify(key, parameters, generator)}-{index}-{shards}'
      directory = private_files.memory() / f'tff_bandmf-server-{name}'
    tape = noise.Tape(
      directory,
      plan,
      parameters,
      key,
      start_round,
      ahead_bytes,
      generator,
      max_memory_bytes,
      stream.shard(parameters, index - 1, shards),
      None if not devices else [name for name in devices if name != 'host'],
      resume=True,
    )
    with contextlib.closing(tape):
      record = {
        'directory': str(tape.directory),
        'start_round': tape.start_round,
        **dataclasses.asdict(tape.description),
      }
      output.show(record, as_json)
      _wait(tape, stop)
  return output.DONE


@contextlib.contextmanager
def _stopped_by_signals() -> Iterator[threading.Event]:
  """Gives an event that SIGTERM and SIGINT set, instead of what they do."""
  stop = threading.Event()
  before = {
    number: signal.signal(number, lambda *_: stop.set())
    for number in (signal.SIGTERM, signal.SIGINT)
  }
  try:
    yield stop
  finally:
    for number, handler in before.items():
      signal.signal(number, handler)


def _wait(tape: Any, stop: threading.Event) -> None:
  """Returns when told to stop; meanwhile shows how far the tape is.

  Raises:
    RuntimeError: the producer ended.
  """
  shown = ''
  while not stop.wait(_PROGRESS_SECONDS) and tape.error is None:
    line = (
      f'round {tape.reached} of {tape.description.rounds} is read, '
      f'{max(0, tape.written - tape.reached)} are ready'
      + (f'; no room in {tape.directory}' if tape.is_full else '')
    )
    if line != shown:
      # Over the line before it.
      click.echo(f'\r{line.ljust(len(shown))}', err=True, nl=False)
      shown = line
  if shown:
    click.echo(err=True)
  if tape.error is not None:
    raise RuntimeError(
      errors.invalid(
        'noise-server',
        tape.directory,
        f'ended with {type(tape.error).__name__}'
        + f' ({getattr(tape.error, "strerror", None) or "no more is said"})',
        'give the same command again when the cause is gone',
      )
    )
