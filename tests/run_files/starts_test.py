"""Tests of starts that ended anywhere: no two folders ever share a key.

A start is killed, or fails, before each thing that it does to a file. The
folder is then copied, file by file and by hard links, and everything is begun.
"""

import errno
import os
import shutil
import subprocess
import sys

import processes
import pytest

import tff_bandmf
from tff_bandmf import accounting, participation, run, strategies
from tff_bandmf.ledger import database

# Else each process that is started here would import TensorFlow again.
from tff_bandmf.noise import released_sums  # noqa: F401
from tff_bandmf.run_files import run_json

_ROUNDS = 4
# What changes a file or a folder, as Python tells it before it happens.
_CHANGES = ('open', 'os.link', 'os.mkdir', 'os.remove', 'os.rename')
_COHORTS = {
  'enforced': participation.MinSep(2),
  'drawn': accounting.CyclicPoisson(0.5, groups=2, population=8),
}


def _plan(cohorts):
  return tff_bandmf.Plan(
    rounds=_ROUNDS,
    clients_per_round=2,
    cohorts=cohorts,
    delta=1e-5,
    l2_norm_clip=1.0,
    noise_multiplier=1.0,
    mechanism=strategies.BandedToeplitz(_ROUNDS, [1.0, 0.5]),
  )


class _Steps:
  """Counts what a process does to a folder; ends or fails one step of it."""

  def __init__(self, directory, end, kill):
    self._directory, self._end, self._kill = str(directory), end, kill
    self.count = 0

  def audit(self, event, arguments):
    if event in _CHANGES:
      path, flags = arguments[0], arguments[2] if event == 'open' else 0
      reads = event == 'open' and not flags & (os.O_WRONLY | os.O_RDWR)
      if str(path).startswith(self._directory) and not reads:
        self.step()

  def step(self):
    self.count += 1
    if self.count == self._end:
      if self._kill:
        os._exit(1)
      raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


def _start(directory, plan, end, kill):
  """Starts a run in a process that ends at a step; returns whether it ran."""
  child = os.fork()
  if not child:
    status = 1
    try:
      steps = _Steps(directory, end, kill)
      transaction = database.transaction

      def counted(engine):
        steps.step()
        return transaction(engine)

      # Each module calls it by the name of its module.
      database.transaction = counted
      sys.addaudithook(steps.audit)
      with run.Run(directory, plan):
        pass
      status = 0 if steps.count < end else 1
    except BaseException:
      pass
    finally:
      os._exit(status)
  return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0


def _keys(directory, plan):
  """Returns the keys with which a folder goes on; [] where it is refused."""
  try:
    with run.Run(directory, plan):
      pass
  except ValueError as error:
    assert 'is a copy' in str(error) or 'hard links' in str(error), error
    return []
  names = [run_json.NOISE_KEY, run_json.SAMPLING_KEY]
  found = [
    (directory / name).read_bytes()
    for name in names[: 1 + (plan.sampled is not None)]
  ]
  assert bytes(32) not in found
  return found


def _end_anywhere(folder, kill):
  """Ends starts before each of their steps, and begins everything again."""
  processes.to_files(folder)
  # No power fails here.
  os.fsync = lambda handle: None
  plan = _plan(_COHORTS['drawn'])
  begun = 0
  for end in range(1, 200):
    original, copy, linked = (
      folder / f'{end}-{name}' for name in ('original', 'copy', 'linked')
    )
    ended = _start(original, plan, end, kill)
    if not original.exists():
      continue
    shutil.copytree(original, copy)
    subprocess.run(['cp', '-al', original, linked], check=True)
    # Of links there are two: neither may go on with the key of the other.
    keys = _keys(linked, plan)
    shutil.rmtree(linked)
    keys += _keys(copy, plan)
    # The folder of the start goes on, wherever it ended.
    first = _keys(original, plan)
    assert first
    assert len({*keys, *first}) == len([*keys, *first]), end
    begun += not keys
    if ended:
      break
  assert ended and 20 < end and begun > 5


@pytest.mark.slow
@pytest.mark.parametrize('kill', [True, False], ids=['killed', 'failed'])
def test_start_that_ended_anywhere_gives_no_copy_its_keys(tmp_path, kill):
  # From a small process: a copy of one that ran TFF takes 0.2 s.
  process = processes.start(_end_anywhere, tmp_path, kill)
  process.join()
  assert process.exitcode == 0, (tmp_path / 'err').read_text()


def test_key_of_draws_that_outlived_its_run_is_refused(tmp_path):
  """Two runs drew the same cohorts, and composed as if they had not."""
  plan = _plan(_COHORTS['drawn'])
  with run.Run(tmp_path / 'run', plan):
    pass
  kept = (tmp_path / 'run' / run_json.SAMPLING_KEY).read_bytes()
  for name in (
    run_json.RUN_FILE,
    run_json.LEDGER_FILE,
    run_json.NOISE_KEY,
    run_json.PLACE,
  ):
    (tmp_path / 'run' / name).unlink()
  shutil.rmtree(tmp_path / 'run' / run_json.CHECKPOINTS)
  with pytest.raises(ValueError, match=r'holds a run \(private/sampling.key'):
    with run.Run(tmp_path / 'run', plan):
      pass
  # Nor is it taken for a key that has served nothing.
  path = tmp_path / 'run' / run_json.SAMPLING_KEY
  path.rename(path.with_name(path.name + run_json.NEW_KEY))
  with run.Run(tmp_path / 'run', plan):
    pass
  assert path.read_bytes() != kept


def test_copy_made_of_hard_links_is_refused(tmp_path):
  """Both went on with one noise: the inode of the key was the same."""
  plan = _plan(_COHORTS['enforced'])
  with run.Run(tmp_path / 'run', plan):
    pass
  subprocess.run(['cp', '-al', tmp_path / 'run', tmp_path / 'copy'], check=True)
  for name in 'copy', 'run':
    for moved in False, True:
      with pytest.raises(ValueError, match='noise.key: has 2 names') as caught:
        run.Run(tmp_path / name, plan, moved=moved)
      assert '\n' not in str(caught.value)
  # Where a tool breaks the links of the key's copy, the folder is another.
  shutil.rmtree(tmp_path / 'copy')
  with run.Run(tmp_path / 'run', plan):
    pass
  (tmp_path / 'other').mkdir()
  for path in list((tmp_path / 'run').iterdir()):
    path.rename(tmp_path / 'other' / path.name)
  with pytest.raises(ValueError, match='is a copy, or was moved'):
    run.Run(tmp_path / 'other', plan)
