"""URLs as places of runs (`s3://bucket/runs`, with a protocol known to fsspec), and their local staging folders."""

import os
from pathlib import Path
from urllib.parse import urlsplit

from raylfl.errors import BadValue


def is_url(path: object) -> bool:
    return "://" in str(path)


def join(url: str, *names: str) -> str:
    return "/".join([url.rstrip("/"), *names])


def cache_folder() -> Path:
    """The folder `RAYLFL_STAGING` (default ~/.cache/raylfl)."""
    cache = Path(os.environ.get("XDG_CACHE_HOME") or "~/.cache") / "raylfl"
    return Path(os.environ.get("RAYLFL_STAGING", cache)).expanduser().resolve()


def staging(url: str) -> Path:
    """The local folder to which runs at this URL are written, inside `RAYLFL_STAGING` (default ~/.cache/raylfl)."""
    protocol, _, rest = url.partition("://")
    parts = [part for part in rest.split("/") if part]
    return cache_folder().joinpath(protocol, *parts)


def check_url(url: str) -> None:
    """Checks a URL given as `logging.dir`; raises BadValue if the URL is unusable.

    Unusable are a protocol unknown to fsspec, fsspec's `dir::`, an empty path, a path with `.` or `..`, a
    password, and a query, in which it may be.
    """
    from fsspec.registry import available_protocols  # imported late: most configs name a folder

    protocol, _, rest = url.partition("://")
    chain = protocol.split("::")
    supported = (
        chain[-1] in available_protocols() and "dir" not in chain
    )  # fsspec's paths in dir:: are relative to the URL
    if not supported or not rest.strip("/") or {".", ".."} & set(rest.split("/")):
        hint = "fsspec supports s3, gs, abfs, sftp, file and others; dir:: is refused"
        raise BadValue("dir", got=url, need="a folder, or a URL such as s3://bucket/runs", hint=hint)
    parts = urlsplit(url.rpartition("::")[2])
    if parts.password or parts.query:
        hint = "config.yaml would keep it; see docs/running.md"
        raise BadValue("dir", got=f"{protocol}://...", need="a URL without a password and without ?...", hint=hint)
