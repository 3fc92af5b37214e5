"""What the README says its example prints is what it prints."""

import pathlib
import re

_README = (
  pathlib.Path(__file__).resolve().parent.parent / 'README.md'
).read_text()


def test_first_example_prints_what_the_readme_shows(capsys):
  code, printed = re.search(
    r'```python\n(.*?)```\n\nprints\n\n```\n(.*?)```', _README, re.DOTALL
  ).groups()
  assert len(code.strip().splitlines()) <= 15
  exec(code, {})
  assert capsys.readouterr().out == printed
