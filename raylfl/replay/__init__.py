"""Fast forms of a training step: recorded, replayed and translated. Nothing here knows clients or rounds."""
