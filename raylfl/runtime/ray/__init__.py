"""Workers and server as Ray actors. Ray is imported only here and in `raylfl.tune`."""

from raylfl.startup import collector

if collector.in_an_actor():  # Ray imports the class of an actor, and torch with it, before the actor can do anything
    collector.rarely()
