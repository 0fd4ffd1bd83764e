"""Whether a module's training step uses its batch_idx, decided from the bytecode of its methods.

Many steps only hand batch_idx on: `return self._step(batch, batch_idx, "train")`, `super().training_step(batch,
batch_idx)`. Such calls are followed. Whatever the bytecode leaves open counts as a use.
"""

from __future__ import annotations

import dis
import inspect
import sys
from collections.abc import Sequence
from types import FunctionType
from typing import Any, NamedTuple

NOTHING = {"RESUME", "NOP", "CACHE", "PRECALL", "COPY_FREE_VARS", "MAKE_CELL", "DELETE_FAST", "LIST_TO_TUPLE"}
LOCALS = {
    *("LOAD_FAST", "LOAD_FAST_CHECK", "LOAD_FAST_LOAD_FAST"),  # the last one is of Python 3.13
    *("LOAD_FAST_BORROW", "LOAD_FAST_BORROW_LOAD_FAST_BORROW"),  # of Python 3.14
}
ONE_RESULT = {
    *("BINARY_OP", "BINARY_SUBSCR", "COMPARE_OP", "IS_OP", "CONTAINS_OP", "UNARY_NEGATIVE", "UNARY_NOT"),
    *("BUILD_TUPLE", "BUILD_STRING", "BUILD_SLICE", "BUILD_MAP", "DICT_MERGE", "FORMAT_VALUE", "FORMAT_SIMPLE"),
    *("LOAD_CONST", "PUSH_NULL"),
}


class _Index(NamedTuple):
    """batch_idx itself (`item` None), or a tuple that has it as this item, and this value as its first one."""

    item: int | None = None
    first: Any = None


class _List(NamedTuple):
    """A list of values, none of which is batch_idx."""

    values: list[Any]


class _Global(NamedTuple):
    name: str


class _Super(NamedTuple):
    """`super()` in a method of this class."""

    cls: Any


class _Callee(NamedTuple):
    """A Python function, and the number of its arguments that are bound already (self)."""

    function: Any  # a FunctionType
    bound: int


class _Used(Exception):
    """batch_idx is used, or may be."""


def uses_index(module: Any) -> bool:
    """Whether `training_step` uses its batch_idx; True if its bytecode does not tell."""
    step = getattr(type(module), "training_step", None)
    if not isinstance(step, FunctionType):
        return True
    if step.__code__.co_argcount == 2 and not step.__code__.co_flags & inspect.CO_VARARGS:
        return False  # it takes only a batch
    try:
        _Reader(module, set()).read(step, 2)
    except _Used:
        return True
    return False


class _Reader:
    """Follows batch_idx through the functions that it is handed to; raises _Used at the first other use.

    The operand stack is followed through code without jumps; values behind a jump are unknown (None).
    """

    def __init__(self, module: Any, seen: set[Any]):
        self.module, self.seen = module, seen
        self.stack: list[Any] = []
        self.keywords: Sequence[str] = ()  # of the next call, in Python 3.11 and 3.12

    def read(self, function: FunctionType, at: int | str) -> None:
        """Raises _Used if a function uses the argument at this position, or of this name, except to hand it on."""
        code = function.__code__
        if (code, at) in self.seen:
            return
        self.seen.add((code, at))
        self.function = function
        self.local, self.index = self._parameter(at)
        if self.local in code.co_cellvars:  # an inner function may use it
            raise _Used
        for instruction in dis.get_instructions(code):
            if instruction.is_jump_target:
                self._forget()
            self._follow(instruction)
        self._forget()

    def _parameter(self, at: int | str) -> tuple[str, _Index]:
        """(name, value) of the local variable in which the function gets an argument; raises _Used if it is unclear."""
        code = self.function.__code__
        named = code.co_varnames[: code.co_argcount + code.co_kwonlyargcount]
        if isinstance(at, str):
            if at in named[code.co_posonlyargcount :]:
                return at, _Index()
        elif at < code.co_argcount:
            return named[at], _Index()
        elif code.co_flags & inspect.CO_VARARGS:
            first = None if code.co_argcount else self.module
            return code.co_varnames[len(named)], _Index(at - code.co_argcount, first)
        raise _Used

    def _follow(self, now: dis.Instruction) -> None:
        name, value, count = now.opname, now.argval, now.arg or 0
        if name in NOTHING:
            return
        if name in LOCALS:
            self.stack += map(self._local, value if isinstance(value, tuple) else (value,))
        elif name in ("STORE_FAST", "POP_TOP", "STORE_FAST_STORE_FAST"):
            self._pop(2 if name == "STORE_FAST_STORE_FAST" else 1)
        elif name == "STORE_FAST_LOAD_FAST":
            self._pop(1)
            self.stack.append(self._local(value[1]))
        elif name == "UNPACK_SEQUENCE":
            self._pop(1)
            self.stack += [None] * count
        elif name == "LOAD_GLOBAL":
            found, both = _Global(value), count & 1
            self.stack += ([found, None] if sys.version_info >= (3, 13) else [None, found]) if both else [found]
        elif name == "LOAD_DEREF":
            held = self._free(value)
            self.stack.append(_Callee(held, 0) if isinstance(held, FunctionType) else None)
        elif name in ("LOAD_ATTR", "LOAD_METHOD", "LOAD_SUPER_ATTR"):
            *kind, owner = self._pop(3 if name == "LOAD_SUPER_ATTR" else 1)
            if kind:  # `super`, a class and self in one instruction of Python 3.12
                owner = self._super([kind[1], owner] if count & 2 else [])
            both = name == "LOAD_METHOD" or (sys.version_info >= (3, 12) and count & 1)
            self.stack += [self._attribute(owner, value), None] if both else [self._attribute(owner, value)]
        elif name == "BUILD_LIST":
            self.stack.append(_List(self._pop(count)))
        elif name == "LIST_EXTEND" and count == 1:
            self._extend()
        elif name == "CALL_INTRINSIC_1" and self.stack and isinstance(self.stack[-1], (_Index, _List)):
            return  # from a list to a tuple, for a call with `*args`
        elif name == "KW_NAMES":
            self.keywords = self.function.__code__.co_consts[count]
        elif name in ("CALL", "CALL_KW"):
            if name == "CALL_KW":
                (self.keywords,) = self._pop(1)
            self._call(count)
        elif name == "CALL_FUNCTION_EX":
            self._call_spread(count & 1)
        elif name in ONE_RESULT:
            self._pop(1 - dis.stack_effect(now.opcode, now.arg))
            self.stack.append(tuple(value) if name == "LOAD_CONST" and isinstance(value, tuple) else None)
        elif not name.startswith("STORE") and self.local in (value if isinstance(value, tuple) else (value,)):
            raise _Used
        else:
            self._forget()

    def _local(self, name: str) -> Any:
        if name == self.local:
            return self.index
        return self.module if name == "self" and self.function.__code__.co_varnames[:1] == ("self",) else None

    def _take(self, count: int) -> list[Any]:
        """Pops values; those behind a jump are None."""
        found = self.stack[len(self.stack) - count :] if count <= len(self.stack) else self.stack
        found = [None] * (count - len(found)) + list(found)
        del self.stack[max(len(self.stack) - count, 0) :]
        return found

    def _pop(self, count: int) -> list[Any]:
        """Pops the operands of an instruction, which may not be batch_idx."""
        found = self._take(count)
        if any(isinstance(value, _Index) for value in found):
            raise _Used
        return found

    def _forget(self) -> None:
        self._pop(len(self.stack))

    def _extend(self) -> None:
        before, more = self._take(2)
        if isinstance(before, _List) and isinstance(more, _Index) and more.item is not None:
            first = before.values[0] if before.values else more.first
            self.stack.append(_Index(len(before.values) + more.item, first))
        elif isinstance(before, _Index) or isinstance(more, _Index):
            raise _Used
        else:
            self.stack.append(None)

    def _call(self, count: int) -> None:
        given, keywords, self.keywords = self._take(count), self.keywords, ()
        callee = self._callee(self._pop(2))
        names = [None] * (count - len(keywords)) + list(keywords)
        for k, (value, name) in enumerate(zip(given, names, strict=True)):
            if not isinstance(value, _Index):
                continue
            if value.item is not None:
                raise _Used
            self._hand(callee, given[0], name, k)
        self.stack.append(self._super(given) if callee == _Global("super") else None)

    def _call_spread(self, with_keywords: int) -> None:
        """A call `f(*args)` or `f(*args, **kwargs)`; keywords do not hold batch_idx, which is given by position."""
        self._pop(with_keywords)
        (given,) = self._take(1)
        callee = self._callee(self._pop(2))
        if isinstance(given, _Index):
            if given.item is None:
                raise _Used
            self._hand(callee, given.first, None, given.item)
        self.stack.append(None)

    def _hand(self, callee: Any, first: Any, name: str | None, position: int) -> None:
        """Follows batch_idx into a function that gets it by name or position; `first` is its first argument."""
        if not isinstance(callee, _Callee) or not (callee.bound or first is self.module):
            raise _Used
        _Reader(self.module, self.seen).read(callee.function, name or callee.bound + position)

    def _callee(self, pair: list[Any]) -> Any:
        return next((value for value in pair if isinstance(value, (_Callee, _Global))), None)

    def _free(self, name: str) -> Any:
        """The content of a variable of an enclosing function; None if it is not known."""
        cells = dict(zip(self.function.__code__.co_freevars, self.function.__closure__ or (), strict=True))
        try:
            return cells[name].cell_contents
        except (KeyError, ValueError):
            return None

    def _super(self, given: Sequence[Any]) -> _Super | None:
        """The result of `super()` or `super(Class, self)`."""
        if "super" in self.function.__globals__ or len(given) not in (0, 2):
            return None
        cls = self._free("__class__") if not given else self._class(given[0])
        return _Super(cls) if isinstance(cls, type) else None

    def _class(self, value: Any) -> Any:
        return self.function.__globals__.get(value.name) if isinstance(value, _Global) else None

    def _attribute(self, owner: Any, name: str) -> _Callee | None:
        """A method of the module, of `super()` or of a class, if it is a plain function."""
        module, order = self.module, type(self.module).__mro__
        if owner is module:
            classes, bound = () if name in vars(module) or name in module._modules else order, 1
        elif isinstance(owner, _Super) and owner.cls in order:
            classes, bound = order[order.index(owner.cls) + 1 :], 1
        else:
            cls = self._class(owner)
            classes, bound = cls.__mro__ if isinstance(cls, type) else (), 0
        found = next((vars(base)[name] for base in classes if name in vars(base)), None)
        return _Callee(found, bound) if isinstance(found, FunctionType) else None
