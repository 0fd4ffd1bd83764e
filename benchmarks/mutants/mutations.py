"""The small errors: one changed operator, number, condition, name, argument or statement at a time."""

from __future__ import annotations

import ast
import hashlib
import re
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

OPERATORS: dict[type[ast.AST], tuple[str, str]] = {
    ast.Add: ("+", "-"),
    ast.Sub: ("-", "+"),
    ast.Mult: ("*", "/"),
    ast.Div: ("/", "*"),
    ast.FloorDiv: ("//", "*"),
    ast.Mod: ("%", "*"),
    ast.Pow: ("**", "*"),
    ast.BitAnd: ("&", "|"),
    ast.BitOr: ("|", "&"),
    ast.BitXor: ("^", "&"),
    ast.LShift: ("<<", ">>"),
    ast.RShift: (">>", "<<"),
    ast.And: ("and", "or"),
    ast.Or: ("or", "and"),
    ast.Lt: ("<", "<="),
    ast.LtE: ("<=", "<"),
    ast.Gt: (">", ">="),
    ast.GtE: (">=", ">"),
    ast.Eq: ("==", "!="),
    ast.NotEq: ("!=", "=="),
    ast.Is: ("is", "is not"),
    ast.IsNot: ("is not", "is"),
    ast.In: ("in", "not in"),
    ast.NotIn: ("not in", "in"),
}
NAMES = {"min": "max", "minimum": "maximum", "any": "all", "floor": "ceil", "argmin": "argmax", "zeros": "ones"}
NAMES |= {there: here for here, there in NAMES.items()}
INSIDE = (ast.FunctionDef, ast.AsyncFunctionDef, ast.If, ast.For, ast.While, ast.Try, ast.ExceptHandler)
UNTOUCHED = (ast.Raise, ast.Assert, ast.JoinedStr, ast.Import, ast.ImportFrom)  # messages, and claims of our own


@dataclass(frozen=True)
class Mutant:
    """One error: a range of bytes of a file and its replacement; block: the innermost block around it, or ""."""

    path: str
    start: int
    end: int
    text: str
    block: str
    source: bytes

    @property
    def function(self) -> str:
        return self.block.partition("#")[0]

    @property
    def mutated(self) -> bytes:
        return self.source[: self.start] + self.text.encode() + self.source[self.end :]

    @property
    def line(self) -> int:
        return self.source.count(b"\n", 0, self.start) + 1

    @property
    def compiles(self) -> bool:
        try:
            ast.parse(self.mutated)
        except SyntaxError:
            return False
        return True

    @cached_property
    def sides(self) -> tuple[list[str], list[str]]:
        """The changed lines before and after."""
        first, last = self.source.rfind(b"\n", 0, self.start) + 1, self.source.find(b"\n", self.end)
        whole = (
            self.source[first:last],
            self.source[first : self.start] + self.text.encode() + self.source[self.end : last],
        )
        before, after = ([line.strip() for line in text.decode().splitlines()] for text in whole)
        while before and after and before[0] == after[0]:
            before, after = before[1:], after[1:]
        while before and after and before[-1] == after[-1]:
            before, after = before[:-1], after[:-1]
        return before, after

    @property
    def changed(self) -> str:
        """The changed lines as a diff without line numbers, which does not depend on their place in the file."""
        before, after = self.sides
        return "\n".join([*(f"-{line}" for line in before), *(f"+{line}" for line in after)])

    @property
    def key(self) -> str:
        """The path and the changed lines, by which `equivalent.yaml` names it."""
        return f"{self.path}\n{self.changed}"

    @property
    def lines(self) -> str:
        """The change as one line: before -> after."""
        return " -> ".join(" ".join(side) or "(gone)" for side in self.sides)

    @cached_property
    def id(self) -> str:
        return hashlib.sha256(f"{self.path}:{self.function}:{self.changed}".encode()).hexdigest()[:12]


def mutants(root: Path, path: str) -> list[Mutant]:
    """All errors for a file; a few of them do not compile."""
    source = (root / path).read_bytes()
    starts = [0, *(match.end() for match in re.finditer(b"\n", source))]
    found: dict[str, Mutant] = {}
    tree = ast.parse(source)
    mark_blocks(tree)
    for node in nodes(tree):
        for start, end, text in changes(node, source, starts):
            mutant = Mutant(path, start, end, text, node.block, source)  # type: ignore[attr-defined]
            found.setdefault(mutant.id, mutant)
    return list(found.values())


def mark_blocks(tree: ast.AST) -> list[tuple[list[ast.stmt], str]]:
    """Gives each node the name of its block as an attribute; returns the statements and the name of each block.

    A block is a body that is entered as a whole, such as a function's, or one side of a condition: "Class.name#3" is
    the fourth block of this function. Code outside functions has the name "".
    """
    found: list[tuple[list[ast.stmt], str]] = []
    count: dict[str, int] = {}

    def enter(statements: list[ast.stmt], names: tuple[str, ...]) -> None:
        function = ".".join(names)
        name = f"{function}#{count.setdefault(function, 0)}"
        count[function] += 1
        found.append((statements, name))
        for statement in statements:
            mark(statement, names, name)

    def mark(node: ast.AST, names: tuple[str, ...], block: str) -> None:
        node.block = block  # type: ignore[attr-defined]
        is_function = isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
        inner = (*names, node.name) if is_function or isinstance(node, ast.ClassDef) else names  # type: ignore[attr-defined]
        for field, value in ast.iter_fields(node):
            body = field in ("body", "orelse", "finalbody") and isinstance(node, INSIDE)
            if body and value and (is_function or block):
                enter(value, inner)
            else:
                for child in value if isinstance(value, list) else [value]:
                    if isinstance(child, ast.AST):
                        mark(child, inner, block)

    mark(tree, (), "")
    return found


def nodes(tree: ast.AST) -> Iterator[ast.AST]:
    """The nodes that may be changed."""
    for name, value in ast.iter_fields(tree):
        if name in ("annotation", "returns", "decorator_list", "bases", "type_comment"):
            continue
        for child in value if isinstance(value, list) else [value]:
            if not isinstance(child, ast.AST) or isinstance(child, UNTOUCHED) or is_for_readers(child):
                continue
            if isinstance(child, ast.FunctionDef) and child.name == "__repr__":
                continue
            yield child
            yield from nodes(child)


def is_for_readers(node: ast.AST) -> bool:
    """Whether a node has no effect in a run: `if TYPE_CHECKING`, types, abstract methods, docstrings, `strict=True`."""
    if isinstance(node, ast.keyword):
        return node.arg == "strict"
    if isinstance(node, ast.If):
        return ast.unparse(node.test).endswith("TYPE_CHECKING")
    if isinstance(node, ast.Assign) and isinstance(node.value, ast.Subscript | ast.BinOp):
        return bool(re.fullmatch("[A-Z]+[a-z]+[^(]*", ast.unparse(node)))
    if isinstance(node, ast.FunctionDef):
        return any("abstractmethod" in ast.unparse(d) for d in node.decorator_list)
    return isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)


Change = tuple[int, int, str]


def changes(node: ast.AST, source: bytes, starts: list[int]) -> Iterator[Change]:
    """Yields (start, end, text) of every change to this node, not to nodes inside it."""

    def span(part: ast.AST) -> tuple[int, int]:
        return (
            starts[part.lineno - 1] + part.col_offset,  # type: ignore[attr-defined]
            starts[part.end_lineno - 1] + part.end_col_offset,  # type: ignore[attr-defined]
        )

    def between(left: ast.AST, right: ast.AST, operator: ast.AST) -> Iterator[Change]:
        at, end = span(left)[1], span(right)[0]
        if type(operator) in OPERATORS and b"#" not in source[at:end]:
            old, new = OPERATORS[type(operator)]
            place = source[at:end].decode().find(old)
            yield at + place, at + place + len(old), new

    if isinstance(node, ast.BinOp) and not isinstance(node.left, ast.Constant | ast.JoinedStr | ast.List):
        yield from between(node.left, node.right, node.op)
    elif isinstance(node, ast.BoolOp):
        yield from between(node.values[0], node.values[1], node.op)
    elif isinstance(node, ast.Compare):
        yield from between(node.left, node.comparators[0], node.ops[0])
    elif isinstance(node, ast.UnaryOp):
        yield span(node)[0], span(node.operand)[0], ""
    elif isinstance(node, ast.Constant) and not isinstance(node.value, (str, bytes)) and node.value not in (None, ...):
        yield (*span(node), other(node.value))
    elif isinstance(node, (ast.If, ast.While, ast.IfExp)):
        start, end = span(node.test)
        yield start, end, f"(not ({source[start:end].decode()}))"
    elif isinstance(node, ast.comprehension):
        for test in node.ifs:
            yield (*span(test), "True")
    elif (
        isinstance(node, ast.AugAssign)
        or (isinstance(node, ast.Expr) and isinstance(node.value, ast.Call))
        or isinstance(node, ast.Break)
    ):
        yield (*span(node), "pass")
    elif isinstance(node, ast.Subscript) and isinstance(node.ctx, ast.Load) and isinstance(node.slice, ast.Name):
        if ast.unparse(node.value) not in ("list", "dict", "set", "tuple"):
            yield span(node.value)[1], span(node)[1], ""
    elif isinstance(node, ast.Name) and node.id in NAMES:
        yield (*span(node), NAMES[node.id])
    elif isinstance(node, ast.Attribute) and node.attr in NAMES:
        end = span(node)[1]
        yield end - len(node.attr), end, NAMES[node.attr]
    elif isinstance(node, ast.Call):
        for keyword in node.keywords:
            if is_for_readers(keyword):
                continue
            start, end = span(keyword)
            before = source[:start].rstrip()
            yield (before.rfind(b","), end, "") if before.endswith(b",") else (start, end, "")


def other(value: object) -> str:
    """Another number, or the other truth value."""
    if isinstance(value, bool):
        return str(not value)
    if isinstance(value, int):
        return str(value + 1)
    return repr(2.0 * value + 1.0) if isinstance(value, float) else repr(value)
