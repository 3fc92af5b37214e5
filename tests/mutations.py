"""Mutations of a program: small changes of its syntax tree.

`Source(content).mutations(line)` has the changes of the statement after a
comment, or those of each statement of a function, if the comment stands before
the function or the line belongs to its docstring.
"""

import ast
import copy
import dataclasses
import math
from collections.abc import Iterator
from typing import Any, Optional, Union

_DEFINITIONS = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)
_OPERATORS = (
  ast.boolop, ast.cmpop, ast.expr_context, ast.operator, ast.unaryop,
)  # fmt: skip
_NEIGHBOURS: dict[type, type] = {
  ast.Lt: ast.LtE, ast.LtE: ast.Lt, ast.Gt: ast.GtE, ast.GtE: ast.Gt,
  ast.Eq: ast.NotEq, ast.NotEq: ast.Eq, ast.In: ast.NotIn, ast.NotIn: ast.In,
  ast.Is: ast.IsNot, ast.IsNot: ast.Is, ast.And: ast.Or, ast.Or: ast.And,
  ast.Add: ast.Sub, ast.Sub: ast.Add, ast.Mult: ast.Div, ast.Div: ast.Mult,
  ast.BitAnd: ast.BitOr, ast.BitOr: ast.BitAnd,
}  # fmt: skip
# Names of functions and constants, each with the one that takes its place.
_OPPOSITES = {
  name: other
  for pair in (
    ('min', 'max'), ('minimum', 'maximum'), ('fmin', 'fmax'), ('ceil', 'floor'),
    ('any', 'all'), ('reduce_any', 'reduce_all'), ('argmin', 'argmax'),
    ('ROUND_CEILING', 'ROUND_FLOOR'), ('left', 'right'),
  )
  for name, other in (pair, pair[::-1])
} | {'sum': 'max'}  # fmt: skip


@dataclasses.dataclass(frozen=True)
class Mutation:
  """A changed file.

  Attributes:
    line: where the changed node begins, from 1.
    change: the old text of the node and the new text, in one line.
    content: what the file has.
    takes_statement_out: whether the whole statement of the mark, a call or a
      refusal, is gone.
    takes_refusal_out: whether the program goes on where it raised an error.
  """

  line: int
  change: str
  content: str
  takes_statement_out: bool
  takes_refusal_out: bool


class Source:
  """The syntax tree of a file."""

  def __init__(self, content: str):
    self._lines = content.splitlines()
    self._tree = ast.parse(content)
    # Docstrings, each with the statements that it is about.
    self._docstrings = [
      (node.body[0], node.body[1:])
      for node in ast.walk(self._tree)
      if isinstance(node, _DEFINITIONS) and ast.get_docstring(node, False)
    ]
    # Where a node stands: its parent, a field of the parent, and an index.
    self._places: dict[ast.AST, tuple[ast.AST, str, Optional[int]]] = {}
    for parent in ast.walk(self._tree):
      for field, value in ast.iter_fields(parent):
        for i, child in enumerate(
          value if isinstance(value, list) else [value]
        ):
          # Python has one object for all equal operators.
          if isinstance(child, ast.AST) and not isinstance(child, _OPERATORS):
            index = i if isinstance(value, list) else None
            self._places[child] = parent, field, index
    # If several nodes begin in one place, the outermost node is the first.
    self._ordered = sorted(self._places, key=_start)

  def mutations(self, line: int) -> list[Iterator[Mutation]]:
    """Returns the mutations of each statement that a mark is about."""
    return [self._of(node, whole) for node, whole in self._marked(line)]

  def _marked(self, line: int) -> list[tuple[ast.AST, bool]]:
    """Returns nodes that a mark is about, each with or without its block."""
    for text, body in self._docstrings:
      if text.lineno <= line <= (text.end_lineno or 0):
        return [(each, False) for part in body for each in _statements(part)]
    while self._lines[line - 1].lstrip()[:1] in ('', '#'):
      line += 1
    node = next(each for each in self._ordered if _start(each) >= (line, 0))
    if isinstance(node, _DEFINITIONS):
      return [(each, False) for each in _statements(node)]
    parent, field, index = self._places[node]
    if isinstance(parent, ast.Dict):
      return [(parent.values[index or 0], True)]
    marked: list[tuple[ast.AST, bool]] = [(node, True)]
    # Names that are assigned matter in the next statement.
    while (
      isinstance(node, (ast.Assign, ast.AnnAssign, ast.AugAssign))
      and not isinstance(parent, (ast.Module, ast.ClassDef))
      and index is not None
      and index + 1 < len(getattr(parent, field))
    ):
      index += 1
      node = getattr(parent, field)[index]
      marked.append((node, True))
    return marked

  def _of(self, node: ast.AST, whole: bool) -> Iterator[Mutation]:
    """Yields mutations of a node, and not of its block unless `whole`."""
    top = self._tree_of(node, ast.Module)
    head = self._lines[: _start(top)[0] - 1]
    tail = self._lines[top.end_lineno :]
    tried = set()
    for old, new in self._changes(node, whole):
      texts = ast.unparse(old), ast.unparse(new)
      if texts[0] == texts[1] or (old, texts[1]) in tried:
        continue
      tried.add((old, texts[1]))
      parent, field, index = self._places[old]
      _put(parent, field, index, new)
      text = ast.unparse(new if old is top else top)
      _put(parent, field, index, old)
      change = ' -> '.join(' '.join(each.split())[:70] for each in texts)
      raises = isinstance(
        old.body[-1] if isinstance(old, ast.If) else old, ast.Raise
      )
      yield Mutation(
        getattr(old, 'lineno', 0),
        change,
        '\n'.join([*head, text, *tail, '']),
        old is node
        and texts[1].startswith(('pass', 'if False:'))
        and (raises or isinstance(old, ast.Expr)),
        raises,
      )

  def _tree_of(self, node: Any, kinds: Any) -> Any:
    """Returns the outermost node below a parent of these kinds."""
    while not isinstance(self._places[node][0], kinds):
      node = self._places[node][0]
    return node

  def _changes(
    self, node: ast.AST, whole: bool
  ) -> Iterator[tuple[ast.AST, ast.AST]]:
    """Yields nodes, each with another one that can take its place."""
    parent, field, index = self._places[node]
    if (
      not isinstance(node, (ast.stmt, ast.ExceptHandler)) and index is not None
    ):
      yield parent, _without(parent, field, index)
    elif isinstance(parent, ast.BinOp) and field == 'right':
      yield parent, parent.left
    nodes = [node]
    while nodes:
      each = nodes.pop(0)
      for other in self._others(each):
        yield each, other
      nodes = [child for child in _parts(each, whole)] + nodes

  def _others(self, node: Any) -> Iterator[ast.AST]:
    """Yields what can take the place of a node."""
    if isinstance(node, (ast.If, ast.While)):
      yield _with(node, test=ast.Constant(False))
      if not isinstance(node.body[-1], ast.Raise):
        yield _with(node, test=ast.Constant(True))
    elif isinstance(node, (ast.For, ast.comprehension)):
      yield _with(node, iter=ast.Tuple([], ast.Load()))
      if getattr(node, 'ifs', None):
        yield _with(node, ifs=[])
    elif isinstance(node, ast.With):
      yield ast.If(ast.Constant(True), node.body, [])
    elif isinstance(node, ast.ExceptHandler) and node.type:
      yield _with(node, type=ast.Name('ZeroDivisionError', ast.Load()))
    elif isinstance(node, (ast.Expr, ast.AugAssign, ast.Delete, ast.Raise)):
      yield ast.Pass()
    elif isinstance(node, ast.Assign) and not isinstance(
      node.targets[0], (ast.Name, ast.Tuple)
    ):
      yield ast.Pass()
    elif isinstance(node, ast.Compare):
      for i, operator in enumerate(node.ops):
        ops = [*node.ops]
        ops[i] = _NEIGHBOURS[type(operator)]()
        yield _with(node, ops=ops)
    elif isinstance(node, ast.BoolOp):
      for i in range(len(node.values)):
        yield _without(node, 'values', i)
      yield _with(node, op=_NEIGHBOURS[type(node.op)]())
    elif isinstance(node, ast.BinOp):
      yield node.left
      yield node.right
      if type(node.op) in _NEIGHBOURS:
        yield _with(node, op=_NEIGHBOURS[type(node.op)]())
    elif isinstance(node, ast.UnaryOp):
      yield node.operand
    elif isinstance(node, ast.Call):
      for each in node.args[:2]:
        if not isinstance(each, (ast.Constant, ast.JoinedStr, ast.Starred)):
          yield each
      for i in range(len(node.keywords)):
        yield _without(node, 'keywords', i)
      for i in range(1, len(node.args)):
        args = [*node.args]
        args[i - 1 : i + 1] = args[i], args[i - 1]
        yield _with(node, args=args)
    elif isinstance(node, ast.IfExp):
      yield node.body
      yield node.orelse
    elif isinstance(node, ast.Subscript) and isinstance(node.slice, ast.Slice):
      yield node.value
    elif isinstance(node, (ast.Tuple, ast.List, ast.Set)):
      for i in range(len(node.elts)):
        yield _without(node, 'elts', i)
    elif isinstance(node, ast.Dict):
      for i in range(len(node.values)):
        yield _without(node, 'values', i)
    elif isinstance(node, ast.Constant):
      yield from map(ast.Constant, _other_values(node.value))
    elif isinstance(node, ast.Return) and isinstance(node.value, ast.Name):
      for name in self._assigned(node):
        yield _with(node, value=ast.Name(name, ast.Load()))
    elif isinstance(node, ast.Name) and node.id in _OPPOSITES:
      yield ast.Name(_OPPOSITES[node.id], node.ctx)
    elif isinstance(node, ast.Attribute):
      yield from self._other_attributes(node)

  def _assigned(self, node: ast.AST) -> list[str]:
    """Returns names that the function of a node assigns, the nearest first."""
    function = self._places[self._tree_of(node, _DEFINITIONS)][0]
    names = [
      each.id
      for each in ast.walk(function)
      if isinstance(each, ast.Name) and isinstance(each.ctx, ast.Store)
    ]
    return names[::-1]

  def _other_attributes(self, node: ast.Attribute) -> Iterator[ast.expr]:
    """Yields the opposite, or other attributes of the object, nearest first.

    The last one is an argument of a call, plus 1.
    """
    if node.attr in _OPPOSITES:
      yield _with(node, attr=_OPPOSITES[node.attr])
      return
    parent, field, _ = self._places[node]
    if field == 'func' or isinstance(parent, ast.Attribute):
      return
    others = {
      each.attr: abs(each.lineno - node.lineno)
      for each in reversed(self._ordered)
      if isinstance(each, ast.Attribute)
      and each.attr != node.attr
      and ast.dump(each.value) == ast.dump(node.value)
      and self._places[each][1] != 'func'
    }
    for attr in sorted(others, key=others.__getitem__)[:3]:
      yield _with(node, attr=attr)
    if isinstance(parent, ast.Call):
      yield ast.BinOp(node, ast.Add(), ast.Constant(1))


def _start(node: ast.AST) -> tuple[int, int]:
  """Returns the line and the column in which a node begins."""
  line, column = getattr(node, 'lineno', 0), getattr(node, 'col_offset', 0)
  decorators = getattr(node, 'decorator_list', None)
  return (decorators[0].lineno, column) if decorators else (line, column)


def _statements(node: ast.AST) -> Iterator[ast.AST]:
  """Yields a statement and those of its blocks, but for docstrings."""
  if not (isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)):
    yield node
  for child in ast.iter_child_nodes(node):
    if isinstance(child, (ast.stmt, ast.ExceptHandler)):
      yield from _statements(child)


def _parts(node: Any, whole: bool) -> Iterator[ast.AST]:
  """Yields the children of a node that matter to what a program does."""
  if isinstance(node, (ast.Raise, ast.JoinedStr)):
    return
  for field, value in ast.iter_fields(node):
    if field in ('annotation', 'returns', 'ctx'):
      continue
    for child in value if isinstance(value, list) else [value]:
      is_block = isinstance(child, (ast.stmt, ast.ExceptHandler))
      if isinstance(child, ast.AST) and (whole or not is_block):
        yield child


def _with(node: Any, **fields: Any) -> Any:
  """Returns a node with other fields."""
  other = copy.copy(node)
  for field, value in fields.items():
    setattr(other, field, value)
  return other


def _without(node: Any, field: str, index: int) -> Any:
  """Returns a node with a list that lacks an element."""
  fields = ('keys', 'values') if isinstance(node, ast.Dict) else (field,)
  lists = {each: [*getattr(node, each)] for each in fields}
  for each in lists.values():
    del each[index]
  if isinstance(node, ast.BoolOp) and len(lists['values']) == 1:
    return lists['values'][0]
  return _with(node, **lists)


def _put(
  parent: ast.AST, field: str, index: Optional[int], node: ast.AST
) -> None:
  if index is None:
    setattr(parent, field, node)
  else:
    getattr(parent, field)[index] = node


def _other_values(value: Any) -> list[Union[bool, int, float, str]]:
  """Returns constants that can take the place of one."""
  if isinstance(value, bool):
    return [not value]
  if isinstance(value, str):
    return [_OPPOSITES[value]] if value in _OPPOSITES else []
  if isinstance(value, int):
    return [value + 1, value - 1]
  if isinstance(value, float):
    return [2 * value, value / 2, math.inf, 0.0]
  return []
