"""`bandmf noise-server`: writes the noise of a run in a process of its own.

A tape is a folder of files with the noise of the next rounds. The server writes
a tape, and the training process reads it.
"""

from __future__ import annotations

import contextlib
import pathlib
import signal
import threading
import time
from collections.abc import Iterator
from typing import Optional

import click
import msgspec

from tff_bandmf import _files, errors, noise
from tff_bandmf.cli import options, output
from tff_bandmf.noise import definition, key_use
from tff_bandmf.noise.producer import stream
from tff_bandmf.noise.tape import folder as tape_folder
from tff_bandmf.noise.tape import writer as tape_lib

_PROGRESS_SECONDS = 1.0
# If written rounds wait and none was read for more than this many seconds, the
# server prints a warning.
_SILENT_SECONDS = 60.0


def _shard(ctx, param, value: str) -> tuple[int, int]:
  """Returns the index of a shard, from 1, and the number of shards."""
  try:
    index, shards = (int(part) for part in value.split('/'))
  except ValueError:
    index = shards = 0
  if not 1 <= index <= shards:
    raise errors.value_error(
      f'shard={value}: must be I/N with I from 1 to N; give 1/2 to the first '
      'of two servers'
    )
  return index, shards


@click.command()
@options.strategy_file
@options.integers(
  parameters='Number of coordinates of an update.', required=True
)
@options.numbers(
  z_stddev_per_clip='Standard deviation of z divided by the clip: z_stddev of '
  'bandmf calibrate with --clip 1, in all its digits.',
  required=True,
)
@options.integers(
  largest_cohort='Largest number of clients of a round, as in training.',
  required=True,
)
@options.switches(
  secure_sum='Training adds up the updates with secure aggregation.'
)
@options.paths(
  key_file='File of 32 secret bytes; the command creates a missing file. A key '
  'file serves one run: all shards of the run, each in its own folder.',
  required=True,
)
@options.paths(
  directory='Folder for the noise, which the training process can read.  '
  '[default: a folder in memory, which is printed]'
)
@click.option(
  '--shard',
  default='1/1',
  metavar='I/N',
  callback=_shard,
  help='Part of the coordinates for this server, if N servers share them.',
)
@options.typed(
  options.INTEGER_OR_ZERO,
  start_round='First round to serve. If the folder has served later rounds, '
  'the server continues after the last of them.',
  default=0,
)
@options.integers(
  ahead_bytes='Largest size of the noise that is written and not yet read, in '
  'bytes; the noise of two rounds is always allowed.',
  default=512 * 2**20,
)
@options.integers(
  max_memory_bytes='Largest size of past noise in memory. If past noise is '
  'larger, it goes to a temporary file.  [default: no limit]'
)
@options.typed(
  click.Choice(stream.BACKENDS),
  default=stream.NUMPY,
  backend='Library that computes the noise: numpy on the host, jax on devices.',
)
@click.option(
  '--device',
  'devices',
  multiple=True,
  help='Device of JAX, such as gpu:0. May be repeated.  [default: all GPUs, or '
  'the CPU]',
)
@options.memory_copies('any number')
@options.as_json
def noise_server(file, parameters, key_file, directory, shard, **flags):
  """Writes the noise of a run to files, ahead of its rounds.

  FILE is a strategy file. Give the --directory of every shard to
  `dp_aggregator(noise=placements.Served(...))`. The command prints a
  description of the noise, then one line of progress on standard error. SIGTERM
  or SIGINT ends the command, which then overwrites and removes unread noise. If
  the same command is given again, it continues after the last used round.
  """
  strategy, _ = output.load(file)
  with _stopped_by_signals() as stop:
    recursion = strategy.recursion()
    # PRIVACY: The tape holds noise as numbers of lattice steps. If a lattice
    # step were smaller in training than in the server, training would add too
    # little noise. Both compute the lattice by the same function. Training
    # refuses a folder with another `z_steps` (the standard deviation of z in
    # lattice steps) than training has.
    # Guard: noise_server_test.test_lattice_is_that_of_a_secure_sum_where_told.
    lattice = noise.Lattice.from_noise(
      recursion,
      flags['z_stddev_per_clip'],
      largest_cohort=flags['largest_cohort'],
      dimension=parameters,
      secure_sum=flags['secure_sum'],
    )
    defined = definition.Definition(recursion, lattice)
    if directory is not None:
      # A server that continues takes the numbers of its earlier rounds.
      path = pathlib.Path(directory) / tape_folder.DEFINITION
      defined = defined.in_file(path, make=False)
    z_steps = defined.lattice.z_steps
    if not pathlib.Path(key_file).parent.is_dir():
      # A mistyped path must not create a new key.
      raise errors.value_error(
        f'key_file={key_file}: is in a folder that does not exist; create the '
        'folder, or correct the path'
      )
    key = noise.Key.load_or_create(key_file)
    tape_id = stream.identify(key, recursion, parameters, z_steps)
    index, shards = shard
    if directory is None:
      name = f'tff_bandmf-server-{tape_id}-{index}-{shards}'
      directory = _files.memory() / name
    folder = pathlib.Path(directory)
    coordinates = stream.shard(parameters, index - 1, shards)
    use = key_use.KeyUse(pathlib.Path(key_file), tape_id, coordinates, folder)
    with contextlib.closing(use):

      def begin():
        use.record()
        defined.in_file(folder / tape_folder.DEFINITION, make=True)

      memory = stream.Memory(flags['max_memory_bytes'], flags['memory_copies'])
      device = flags['devices'], flags['backend']
      rows = stream.Stream(
        recursion, z_steps, parameters, key, memory, coordinates, *device
      )
      tape = tape_lib.Tape(
        folder,
        rows,
        start_round=flags['start_round'],
        ahead_bytes=flags['ahead_bytes'],
        resume=True,
        # PRIVACY: If a server died with noise on disk and no line for its
        # folder in the list of uses, a new server with the same key could make
        # the same noise in another folder, for other sums. The line is written
        # before noise.
        # Guard: noise_server_test.test_key_is_recorded_before_noise_is_made.
        before_noise=begin,
      )
      with contextlib.closing(tape):
        place = {
          'directory': str(tape.directory),
          'start_round': tape.start_round,
        }
        output.show({**place, **msgspec.structs.asdict(tape.description)})
        _wait(tape, stop)


@contextlib.contextmanager
def _stopped_by_signals() -> Iterator[threading.Event]:
  """Yields an event that SIGTERM and SIGINT set instead of ending a process."""
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


def _wait(tape: tape_lib.Tape, stop: threading.Event) -> None:
  """Shows the progress of a tape until the event `stop` is set.

  Raises:
    RuntimeError: the thread that writes the tape failed.
  """
  shown, last_warning = '', None
  reached, since = tape.reached, time.monotonic()
  while not stop.wait(_PROGRESS_SECONDS) and tape.error is None:
    line = (
      f'round {tape.reached} of {tape.description.rounds} is read, '
      f'{max(0, tape.written - tape.reached)} are ready'
    )
    if line != shown:
      # '\r' makes the line replace the previous one.
      click.echo(f'\r{line.ljust(len(shown))}', err=True, nl=False)
      shown = line
    if tape.reached != reached:
      reached, since = tape.reached, time.monotonic()
    warning = _warning(tape, time.monotonic() - since)
    if warning not in (None, last_warning):
      click.echo(f'\n{warning}', err=True)
    last_warning = warning
  if shown:
    click.echo(err=True)
  if tape.error is not None:
    reason = getattr(tape.error, 'strerror', None) or 'no reason given'
    raise RuntimeError(
      errors.invalid(
        f'noise-server={tape.directory}: ended with '
        f'{type(tape.error).__name__} ({reason}); give the same command again '
        'when the cause is gone'
      )
    )


def _warning(tape: tape_lib.Tape, silent: float) -> Optional[str]:
  """Returns a warning about a tape that does not advance, or None.

  Args:
    tape: the tape.
    silent: seconds since a round was last read.
  """
  if tape.is_full:
    return f'no room in {tape.directory}: rounds wait until there is'
  # The reader does not report that it has read the last round.
  last = tape.description.rounds - 1
  if silent > _SILENT_SECONDS and tape.reached < min(tape.written, last):
    return (
      f'no round was read for {_SILENT_SECONDS:.0f} s: is training alive, and '
      f'does it read {tape.directory}?'
    )
  return None
