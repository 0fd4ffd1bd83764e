"""Workers and server as Ray actors. Ray is imported only here and in `raylfl.tune`."""

from raylfl.startup import process

process.without_raylet_messages()  # before Ray is imported, in any module of this package
