"""Workers and server as Ray actors. Ray is imported only here and in `raylfl.tune`."""

from raylfl.startup import collector, process

process.without_raylet_messages()  # before Ray is imported, in any module of this package
if collector.in_an_actor():  # Ray imports the actor's class, and torch with it, before the actor's code runs
    collector.make_rare()
