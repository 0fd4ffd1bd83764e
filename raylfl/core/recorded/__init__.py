"""A module's training step, recorded once and replayed as a flat list of torch's own calls, with autograd's bits.

tape.py records, plan.py finds the necessary calls, source.py and program.py turn them into straight Python, guards.py
detects steps that cannot be recorded, and steps.py keeps one program for each kind of batch and checks it against
autograd before its first use.
"""
