"""The entry point of `bandmf`, which prints errors and returns exit statuses.

Exit status: 0 done, 1 a claim, comparison or search failed, 2 bad input (one
line on standard error, no traceback), 130 interrupted, 141 another program,
such as `head`, closed the output.
"""

from __future__ import annotations

import contextlib
import os
import re
import sys
from collections.abc import Sequence
from typing import Optional

import click

from tff_bandmf import errors
from tff_bandmf.cli import commands

_DONE, _BAD_INPUT = 0, 2
_INTERRUPTED = 130
# Exit status that a shell reports if SIGPIPE ends a program.
_CLOSED = 141
# Names of arguments in a remedy: a name with an underscore; a name before '=';
# and a name after 'give', 'and', 'use' or 'with' in a remedy.
_ARGUMENT = re.compile(
  r'(?<![\w.-])(?:'
  r'[a-z0-9]+(?:_[a-z0-9]+)+'
  r'|[a-z]\w*(?==)'
  r'|(?<=\bgive )[a-z]\w*(?= and\b|,| or\b|\.|$)'
  r'|(?<=\band )[a-z]\w*(?=,|\.|$)'
  r'|(?<=\buse )(?:participation|workload|amplification)\b'
  r'|(?<=\bwith )[a-z]\w*(?= to\b)'
  r')'
)


def main(arguments: Optional[Sequence[str]] = None) -> int:
  """Returns the exit status of `bandmf` with these arguments.

  Args:
    arguments: arguments after the name of the program; if None,
      `sys.argv[1:]`.
  """
  try:
    status = _run(list(sys.argv[1:] if arguments is None else arguments))
    if sys.stdout is not None:  # The stream is None if a program closed it.
      sys.stdout.flush()
    return status
  except BrokenPipeError:
    # When the interpreter ends, it writes the rest of the buffers.
    nowhere = os.open(os.devnull, os.O_WRONLY)
    for stream in (sys.stdout, sys.stderr):
      with contextlib.suppress(OSError, ValueError):
        os.dup2(nowhere, stream.fileno())
    return _CLOSED


def _run(arguments: list[str]) -> int:
  """Returns the exit status of `bandmf`, and prints errors in one line.

  Raises:
    BrokenPipeError: nobody reads the output any more.
  """
  # This keeps TensorFlow from printing remarks about the machine.
  os.environ.setdefault('TF_CPP_MIN_LOG_LEVEL', '3')
  try:
    with commands.bandmf.make_context('bandmf', arguments) as context:
      commands.bandmf.invoke(context)
    return _DONE
  # A claim did not hold, or the command was called with --help.
  except click.exceptions.Exit as stop:
    return stop.exit_code
  except BrokenPipeError:
    raise
  except KeyboardInterrupt:
    click.echo('interrupted; a file is written whole or not at all.', err=True)
    return _INTERRUPTED
  except click.UsageError as error:
    message = _usage(error, arguments)
  except OSError as error:
    message = _file(error)
  except (MemoryError, OverflowError) as error:
    message = f'{error}; use fewer rounds, or fewer bands.'
  except (ImportError, RuntimeError, TypeError, ValueError) as error:
    missing = errors.missing(error, f'bandmf {arguments[0]}')
    message = _with_flags(str(missing or error), arguments[0])
  click.echo(' '.join(message.split()), err=True)
  return _BAD_INPUT


def _file(error: OSError) -> str:
  """Returns the error message for an `OSError`."""
  if len(error.args) == 1:
    return str(error)  # The message of this library names the file.
  if isinstance(error, FileNotFoundError):
    return errors.invalid(
      f'file={error.filename}: does not exist; check the path'
    )
  return errors.invalid(
    f'file={error.filename}: cannot be used ({error.strerror}); check the path '
    'and its permissions'
  )


def _with_flags(message: str, command: str) -> str:
  """Returns an error message whose remedy names flags, not arguments.

  The library names the arguments of its functions, such as `l2_norm_clip`, and
  values in the form name=value. Names of flags of the command are replaced in
  the part of the message after the last semicolon.

  Args:
    message: message of an error of the library.
    command: name of a command of `bandmf`.
  """
  parameters = getattr(commands.bandmf.get_command(None, command), 'params', ())
  flags = {
    each.name: each.opts[0]
    for each in parameters
    if isinstance(each, click.Option)
  }
  rule, semicolon, remedy = message.rpartition('; ')
  remedy = _ARGUMENT.sub(lambda match: flags.get(match[0], match[0]), remedy)
  return rule + semicolon + remedy


def _usage(error: click.UsageError, arguments: Sequence[str]) -> str:
  """Returns the error message for a command line that click could not parse.

  Args:
    error: the exception that click raised.
    arguments: arguments of `bandmf`, the name of the command first.
  """
  name = error.ctx.command_path if error.ctx else 'bandmf'
  see_help = f'see {name} --help'
  if isinstance(error, click.NoSuchOption):
    if error.possibilities:
      see_help = f'did you mean {" or ".join(error.possibilities)}? {see_help}'
    return errors.invalid(
      f'option={error.option_name}: is not an option of {name}; {see_help}'
    )
  if isinstance(error, click.MissingParameter) and error.ctx is not None:
    # click reports only one of the missing parameters.
    command = error.ctx.command
    parsed = command.make_context(
      name, [*arguments[1:]], resilient_parsing=True
    )
    required = [each.name for each in command.params if each.required]
    absent = [each for each in required if parsed.params.get(each) is None]
    return commands.missing(error.ctx, absent)
  if isinstance(error, click.BadParameter) and error.param is not None:
    # click's message is '... is not ...', with the value perhaps in quotes.
    value, _, rule = error.message.rpartition(' is ')
    value = value.strip('\'"')
    return errors.invalid(
      f'{error.param.name}={value}: is {rule.rstrip(".")}; give '
      f'another {error.param.opts[0]}'
    )
  return f'{error.format_message().rstrip(".")}; {see_help}.'


if __name__ == '__main__':
  sys.exit(main())
