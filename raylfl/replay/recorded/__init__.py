"""A module's training step, recorded once and replayed as a flat list of torch's operator calls, with autograd's bits.

`tape.py` records a step, `plan.py` finds the necessary calls, and source.py and program.py turn them into Python
without branches (a program). guards.py detects values that leave torch. steps.py has one program for each kind of
batch, and compares it with the reference step (`core/reference.py`) before its first use, and then again at powers of
two.
"""
