"""A picture that is saved without being drawn, which takes seconds per page."""

import io
from pathlib import Path
from typing import Any


def savefig(self: Any, place: Any, **options: Any) -> None:
    """A replacement for `savefig` of raylfl.report.style.Drawing."""
    if isinstance(place, io.StringIO):
        place.write('<svg width="1" height="1"></svg>')
    elif isinstance(place, io.BytesIO):
        place.write(b"\x89PNG")
    else:
        Path(place).write_bytes(b"a picture")
