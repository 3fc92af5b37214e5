"""The files of a run's folder by name, and what the first and the last say.

run.json        what is going to be claimed, see `RunRecord`
plan.json       what the user wrote, and what was found for it
strategy.json   C
ledger.sqlite   who took part in which round, as keyed hashes, and the digests
                of what each round released and of its row of metrics
metrics.csv     a row a round
result.json     what the last model was measured to do, and the head of the
                ledger's chain, whose last event has a digest of that; written
                last
private/        mode 0700, never publish it:
  noise.key       the key of the noise
  sampling.key    the key of the draws, where cohorts are sampled
  place.json      which folder, host and file system the keys were made on
  ledger.key      the key of the hashes
  ledger.url      where the ledger is, if it is not in the folder
  checkpoints/    states, which may hold noise
"""

from __future__ import annotations

import json
import math
import pathlib
import re
import unicodedata
from typing import TYPE_CHECKING, Any, Optional

import attrs

from tff_bandmf import _files, clips, errors

if TYPE_CHECKING:
  from tff_bandmf.noise import key as key_lib

RUN_FORMAT = 'tff_bandmf.run'
RUN_VERSION = 2

RUN_FILE = 'run.json'
PLAN_FILE = 'plan.json'
STRATEGY_FILE = 'strategy.json'
LEDGER_FILE = 'ledger.sqlite'
METRICS_FILE = 'metrics.csv'
RESULT_FILE = 'result.json'
PRIVATE = 'private'
NOISE_KEY = 'private/noise.key'
# Ends the name of a key until the run is there.
NEW_KEY = '.new'
LEDGER_KEY = 'private/ledger.key'
LEDGER_URL = 'private/ledger.url'
SAMPLING_KEY = 'private/sampling.key'
PLACE = 'private/place.json'
CHECKPOINTS = 'private/checkpoints'
# Marks of what rounds released, by `noise.position`.
RELEASED = 'private/released'

LEDGER_HEAD = 'ledger_head'

# What a run says under `not_covered` of updates that added nothing.
SOME_ZERO = (
  'that updates of some rounds were zero or not finite, and added nothing'
)
ALL_ZERO = (
  'that all updates of some rounds were zero or not finite: these rounds '
  'released noise alone'
)

# What stands in `run.json` and follows from the rest and the key.
IDENTITY_KEYS = ('run_id', 'noise_key_id')
# These may differ once a run is over: nothing of it is made again.
_CODE_KEYS = ('versions', 'code_sha256')
_PARTS = {
  'claim': (
    'noise_multiplier',
    'z_stddev_per_clip',
    'delta',
    'l2_norm_clip',
    'clients_per_round',
  ),
  'enforced': ('min_sep', 'max_participations', 'by'),
}
# At which a plan without one is reported.
_DELTA = 1e-6
_IDENTITY = re.compile('[0-7][0-9a-f]{15}')
_HEAD = re.compile('[0-9a-f]{64}')


def _field(
  kind: type, default: Any = attrs.NOTHING, noted: bool = False
) -> Any:
  """Returns a field; a noted one is of who runs the program, and may change."""
  return attrs.field(default=default, metadata={'kind': kind, 'noted': noted})


@attrs.frozen(kw_only=True)
class RunRecord:
  """What a run says of itself, in `run.json`, before its first round.

  What is None the report calls 'not stated'.

  Attributes:
    claim: `Guarantee.to_dict()`, `delta`, `l2_norm_clip`,
      `clients_per_round`.
    unit_of_privacy: whose contributions become zero.
    population: clients that may be drawn, and those that left; None where they
      come by themselves.
    highest_client: the highest index of these, >= -1, where clients have
      indices; None is `population` - 1.
    data: the corpus, in a few words.
    released: what the guarantee is for.
    not_covered: sentences.
    side_releases: sentences.
    config: the experiment; the report shows none.
    clients_left: the most clients that took part and are not in the population
      any more, >= 0; None is 0.
    setting: a sentence: who is trusted.
    covered: a sentence: what data accesses the guarantee counts.
    noise_key: a sentence: where the key came from.
    noise_generator: 'chacha20'.
    tuning: a sentence: what was tuned, and on which data.
    model_selection: a sentence: how the released model was chosen.
    pre_training: a sentence: what the initial weights come from.
    process: a sentence: what was found of clients past the aggregator.
    key_after: a sentence: what became of the key, tapes and buffers.
    enforced: `min_sep`, `max_participations`, `by`.
    clipped_by: a sentence: who clips an update.
    simulated: what a larger cohort, that the run's stands for, would have; the
      report then claims nothing for a deployment.
    versions: package to version.
    code_sha256: digest of the code.
    train_sha256: digest of the train data.
    run_id: which run, 63 bits, as 16 hexadecimal digits; what the ledger is
      bound to.
    noise_key_id: which key, likewise.
    sampling_key_id: which key draws the cohorts, likewise; None where chance
      does not decide.
    title: of what was trained, for a report that is published.
    owner: who answers for it.
    contact: where to ask.
    date: of the training, as its owner writes dates.
    model: what was trained, in a few words.
    intended_use: a sentence: what the model is for.
    region: where the people live whose data it learned from.
    sector: one of `report.registry.SECTORS`.
    after: runs on the same clients before it: `run`, a folder relative to that
      of this run, and `run_id`.
  """

  claim: dict[str, Any] = _field(dict)
  unit_of_privacy: str = _field(str, noted=True)
  data: str = _field(str, noted=True)
  released: str = _field(str)
  not_covered: list[str] = _field(list, noted=True)
  side_releases: list[str] = _field(list, noted=True)
  config: dict[str, Any] = _field(dict, attrs.Factory(dict))
  population: Optional[int] = _field(int, None, noted=True)
  highest_client: Optional[int] = _field(int, None, noted=True)
  clients_left: Optional[int] = _field(int, None, noted=True)
  setting: Optional[str] = _field(str, None)
  covered: Optional[str] = _field(str, None)
  noise_key: Optional[str] = _field(str, None)
  noise_generator: Optional[str] = _field(str, None)
  tuning: Optional[str] = _field(str, None, noted=True)
  model_selection: Optional[str] = _field(str, None, noted=True)
  pre_training: Optional[str] = _field(str, None, noted=True)
  process: Optional[str] = _field(str, None, noted=True)
  key_after: Optional[str] = _field(str, None, noted=True)
  enforced: Optional[dict[str, Any]] = _field(dict, None)
  clipped_by: Optional[str] = _field(str, None)
  simulated: Optional[dict[str, Any]] = _field(dict, None)
  versions: Optional[dict[str, str]] = _field(dict, None)
  code_sha256: Optional[str] = _field(str, None)
  train_sha256: Optional[str] = _field(str, None)
  run_id: Optional[str] = _field(str, None)
  noise_key_id: Optional[str] = _field(str, None)
  sampling_key_id: Optional[str] = _field(str, None)
  title: Optional[str] = _field(str, None, noted=True)
  owner: Optional[str] = _field(str, None, noted=True)
  contact: Optional[str] = _field(str, None, noted=True)
  date: Optional[str] = _field(str, None, noted=True)
  model: Optional[str] = _field(str, None, noted=True)
  intended_use: Optional[str] = _field(str, None, noted=True)
  region: Optional[str] = _field(str, None, noted=True)
  sector: Optional[str] = _field(str, None, noted=True)
  after: Optional[list[dict[str, str]]] = _field(list, None)

  def __attrs_post_init__(self):
    wrong = [
      field.name
      for field in attrs.fields(RunRecord)
      if not isinstance(
        value := getattr(self, field.name), field.metadata['kind']
      )
      and not (value is None and field.default is None)
      or not _is_printable(value)
    ]
    wrong += [
      f'{part}.{name}'
      for part, names in _PARTS.items()
      for name in names
      if part not in wrong and name not in (getattr(self, part) or names)
    ]
    wrong += [
      name
      for name in IDENTITY_KEYS
      if name not in wrong
      and not _IDENTITY.fullmatch(getattr(self, name) or '0' * 16)
    ]
    if not all(
      isinstance(named, dict)
      and named.keys() == {'run', 'run_id'}
      and all(isinstance(value, str) for value in named.values())
      for named in self.after or ()
    ):
      wrong.append('after')
    if wrong:
      raise ValueError(f'lacks {", ".join(wrong)}, or holds another kind')

  @classmethod
  def of_plan(
    cls, plan: Any, claim: Optional[dict[str, Any]] = None, **said: Any
  ) -> RunRecord:
    """Returns what training by a plan says of itself.

    Args:
      plan: a `Plan`.
      claim: what the claim says beside the figures of the plan.
      **said: attributes that the plan does not tell.
    """
    return cls(
      claim={
        **plan.guarantee.to_dict(),
        'delta': plan.delta or _DELTA,
        **clips.claim(plan.l2_norm_clip),
        'clients_per_round': plan.clients_per_round,
        **(claim or {}),
      },
      unit_of_privacy=plan.unit,
      data='not stated',
      released='the model after every round',
      not_covered=[],
      side_releases=[],
      **said,
    )

  def to_dict(self) -> dict[str, Any]:
    """Returns what stands in the file."""
    said = attrs.asdict(self, recurse=False)
    return {
      'format': RUN_FORMAT,
      'version': RUN_VERSION,
      **{name: value for name, value in said.items() if value is not None},
    }

  def of_key(self, key: key_lib.Key) -> RunRecord:
    """Returns the record with what names the run and its key; one-way."""
    fixed = {
      name: value
      for name, value in self._fixed().items()
      if name not in IDENTITY_KEYS
    }
    content = json.dumps(fixed, sort_keys=True).encode()
    return attrs.evolve(
      self,
      # PRIVACY: whoever edits the file cannot make the one that belongs to it.
      # Guard: folder_test.test_edited_copy_is_refused.
      run_id=f'{key.identify(content):016x}',
      noise_key_id=f'{key.identify(b""):016x}',
    )

  def _fixed(self) -> dict[str, Any]:
    """Returns what stands in the file and never changes."""
    return {
      name: value
      for name, value in self.to_dict().items()
      if name not in _NOTES
    }

  def noted(self, notes: dict[str, Any]) -> RunRecord:
    """Returns the record with other statements of those that may change.

    Raises:
      ValueError: one is not known, is fixed, or is of another kind.
    """
    fixed = sorted({*notes} - {*_NOTES})
    if fixed:
      raise errors.value_error(
        fixed[0],
        notes[fixed[0]],
        'is not a statement that a run notes',
        f'use one of {", ".join(_NOTES)}',
      )
    return attrs.evolve(self, **notes)

  def notes(self) -> dict[str, Any]:
    """Returns the statements that may change, for `noted`."""
    return {name: getattr(self, name) for name in _NOTES}

  def bound(self) -> tuple[int, int]:
    """Returns what the ledger is bound to: run and noise key."""
    if self.run_id is None or self.noise_key_id is None:
      raise ValueError(f'lacks {" or ".join(IDENTITY_KEYS)}')
    return int(self.run_id, 16), int(self.noise_key_id, 16)

  def enforced_digest(self, directory: pathlib.Path) -> bytes:
    """Returns the digest of all that is fixed before the first round.

    Args:
      directory: of the run, with its plan and its strategy.
    """
    # PRIVACY: one number edited in a file made the report claim a fraction of
    # epsilon. The chain has this digest from the start of every round, so no
    # statement but the notes changes later. Guard:
    # forgery_test.test_forged_run_is_refused_by_report_and_verifier.
    files = [
      _files.sha256(directory / name) if (directory / name).exists() else None
      for name in (PLAN_FILE, STRATEGY_FILE)
    ]
    return _files.json_digest([self._fixed(), *files])

  def write(self, directory: pathlib.Path) -> None:
    """Writes `run.json`; see `of_key`."""
    self.bound()
    _files.write_json(directory / RUN_FILE, self.to_dict())

  @classmethod
  def read(cls, directory: pathlib.Path) -> RunRecord:
    """Returns what `run.json` says.

    Raises:
      ValueError: there is none, or it is of another format or version.
    """
    path = directory / RUN_FILE
    try:
      found = _files.read_json(path)
    except FileNotFoundError as error:
      raise errors.value_error(
        'run',
        directory,
        f'has no {RUN_FILE}',
        'give the output directory of a training run',
      ) from error
    except ValueError as error:
      raise errors.value_error(
        'run', path, 'is damaged', 'train again'
      ) from error
    if not isinstance(found, dict) or (
      found.pop('format', None),
      found.pop('version', None),
    ) != (RUN_FORMAT, RUN_VERSION):
      raise errors.value_error(
        'run',
        path,
        f'must be {RUN_FORMAT} version {RUN_VERSION}',
        'end it with the release that began it, or train again',
      )
    try:
      names = [field.name for field in attrs.fields(cls)]
      record = cls(**{name: found.pop(name, None) for name in names})
      record.bound()
      if found:
        raise ValueError(f'holds what is not known, {", ".join(found)}')
      return record
    except ValueError as error:
      raise errors.value_error(
        'run', path, str(error), 'restore the file'
      ) from error

  def check_same(self, wanted: RunRecord, ended: bool) -> None:
    """Raises ValueError, naming what differs, unless this is the wanted run.

    Args:
      wanted: what the program that goes on says; it names no run and no key.
      ended: whether the run has its result.
    """
    mine, wanted_here = (
      _flat(json.loads(json.dumps(record.to_dict())))
      for record in (self, wanted)
    )
    # The configuration first: the rest follows from it.
    for name in sorted(
      {*mine, *wanted_here} - {*IDENTITY_KEYS},
      key=lambda name: (not name.startswith('config.'), name),
    ):
      if ended and name.split('.')[0] in _CODE_KEYS:
        continue
      if mine.get(name) != wanted_here.get(name):
        raise errors.value_error(
          name,
          wanted_here.get(name),
          'another configuration, corpus or version than the run started '
          f'with, {mine.get(name)}',
          'go back to that, or choose another directory',
        )


# What may be said later: who runs the program, not what it does.
_NOTES = tuple(
  field.name for field in attrs.fields(RunRecord) if field.metadata['noted']
)


def write_result(
  directory: pathlib.Path, results: dict[str, float], ledger: Any
) -> None:
  """Ends a run: its results are in the chain of the ledger, then in a file.

  Args:
    directory: of the run.
    results: what the last model was measured to do.
    ledger: of the run, open; all its rounds have ended.
  """
  numbers = {name: float(value) for name, value in results.items()}
  ledger.record_end(result_digest(numbers))
  content = {**numbers, LEDGER_HEAD: ledger.head()}
  _files.write_json(directory / RESULT_FILE, content)


def result_digest(numbers: dict[str, float]) -> bytes:
  """Returns the digest that the chain has of what a model was measured."""
  return _files.json_digest(numbers)


def read_result(
  directory: pathlib.Path,
) -> tuple[dict[str, float], Optional[str]]:
  """Returns what `result.json` measures, and the head of the ledger's chain.

  That is the head when the run ended; ({}, None) for a run that goes on.
  """
  path = directory / RESULT_FILE
  if not path.exists():
    return {}, None
  try:
    result = _files.read_json(path)
    head = result.pop(LEDGER_HEAD)
    numbers = {key: float(value) for key, value in result.items()}
    if not all(map(math.isfinite, numbers.values())):
      raise ValueError('NaN or infinity')
    if not is_head(head):
      raise ValueError('no head')
    return numbers, head
  except (
    AttributeError,
    KeyError,
    OverflowError,
    TypeError,
    ValueError,
  ) as error:
    raise errors.value_error(
      'result',
      path,
      'is damaged',
      'restore it; without it the report is of a run that goes on',
    ) from error


def is_head(text: str) -> bool:
  """Returns whether a text has the form of a head of a ledger's chain."""
  return bool(_HEAD.fullmatch(text))


def _is_printable(value: Any) -> bool:
  """Returns whether no text in a JSON value has control characters.

  They, and halves of characters, could make a report read as another one.
  """
  if isinstance(value, dict):
    return all(map(_is_printable, (*value, *value.values())))
  if isinstance(value, list):
    return all(map(_is_printable, value))
  return not isinstance(value, str) or not any(
    unicodedata.category(character) in ('Cc', 'Cs') for character in value
  )


def _flat(tree: Any, prefix: str = '') -> dict[str, Any]:
  """Returns dotted names to leaves."""
  if not isinstance(tree, dict):
    return {prefix: tree}
  return {
    name: leaf
    for key, value in tree.items()
    for name, leaf in _flat(value, f'{prefix}.{key}' if prefix else key).items()
  }
