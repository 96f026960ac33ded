"""The workloads that the tests share: per-sample functions with differently shaped samples.

Each workload is an ordinary function of `(params, sample)`. Its plain loop over the samples is the reference
answer, so nothing in this package says what a batched result should be.

Importing a module registers its workloads. The suites choose by position in `WORKLOADS`, so these imports keep their
order, and a new workload goes to the end of the last module or changes what the default run covers.
"""

# isort: off
from zoo.workloads import *  # noqa: F403
from zoo.compare import *  # noqa: F403
from zoo.draw import *  # noqa: F403
from zoo.trees import *  # noqa: F403
from zoo.children import *  # noqa: F403
from zoo.reductions import *  # noqa: F403
from zoo.recurrent import *  # noqa: F403
from zoo.control_flow import *  # noqa: F403
from zoo.dtypes import *  # noqa: F403
from zoo.arrays import *  # noqa: F403
from zoo.parameters import *  # noqa: F403
from zoo.samples import *  # noqa: F403
