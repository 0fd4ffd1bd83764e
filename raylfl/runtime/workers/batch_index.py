"""Whether a training step uses its batch_idx, or only hands it on, as in `return self._step(batch, batch_idx)`."""

from __future__ import annotations

import dis
import inspect
from typing import Any

ALLOWED = {  # attributes of every object, which Python reads by itself
    *("__new__", "__init__", "__init_subclass__", "__subclasshook__", "__getattribute__", "__setattr__", "__delattr__"),
    *("__class__", "__doc__", "__dir__", "__sizeof__", "__reduce__", "__reduce_ex__", "__getstate__", "__getnewargs__"),
}


class IndexUsed(BaseException):
    """A step uses its batch_idx; not an Exception, so that no `except Exception` of the step hides it."""


def _used(self: Any, *args: Any, **kwargs: Any) -> Any:
    raise IndexUsed


class Unused:
    """Stands for batch_idx in a step that does not use it: it can be handed on; any other use raises IndexUsed."""

    __getattr__ = _used
    __class__ = property(_used)  # for isinstance


for _name in [*dir(int), "__iter__", "__len__", "__getitem__", "__contains__"]:
    if _name.startswith("__") and _name not in ALLOWED:
        setattr(Unused, _name, _used)


def mentions_index(module: Any) -> bool:
    """Whether the code of `training_step` reads its batch_idx; True if its Python code is not available."""
    code = getattr(getattr(type(module), "training_step", None), "__code__", None)
    if code is None:
        return True
    if code.co_argcount < 3:
        return bool(code.co_flags & inspect.CO_VARARGS)  # `*args`, as in decorators
    name = code.co_varnames[2]
    read = (i.argval for i in dis.get_instructions(code) if i.opname.startswith("LOAD"))
    return any(name == value or (isinstance(value, tuple) and name in value) for value in read)
