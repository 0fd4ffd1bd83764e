"""Training steps translated to a memory order with the samples of a batch innermost, for one client or a cohort.

The recording of a step (`raylfl.replay.recorded`) is a list of operator calls. The tensors in these calls are the
values of the recording. The list is translated call by call (translation.py, rules.py). A value with one row per
sample, [B, ...], becomes [..., B]. For C clients at once it becomes [C, ..., B], and a weight becomes [C, *shape]. In
this order, matrix products need no transposed copies, the softmax is computed on whole vectors, and small convolutions
are matrix products over patches (patches.py). steps.py finds the translation of a module's step for each kind of batch.

Translated calls compute every sample separately up to the mean cross-entropy. A batch may therefore be cut into parts,
or filled up with samples that have the label `IGNORED`. Sums are added in another order than in autograd: gradients
differ by rounding.
"""
