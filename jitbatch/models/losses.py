"""Losses as subgraphs of their own: recorded as one call each, not as the operations they are made of."""

import optax

from jitbatch import jitbatch

cross_entropy = jitbatch(optax.softmax_cross_entropy_with_integer_labels)
"""Of the scores of some classes and the number of the right one."""
