"""Recorded steps in another memory order: the samples of a batch innermost, for one client or a whole cohort.

A recording is translated call by call (translation.py, rules.py). A value with one row per sample, [B, ...], becomes
[..., B]; for C clients at once it becomes [C, ..., B], and a weight [C, *shape]. Matrix products then become batched
products without transposed copies, the softmax works on whole vectors, and small convolutions are products over patches
(patches.py). steps.py finds the translation of a module's step for each kind of batch.

Translated calls treat every sample by itself until the mean cross-entropy. Hence a batch may be cut into pieces or be
filled up with samples of the label `IGNORED`. Sums have another order than autograd's, so that last bits differ.
"""
