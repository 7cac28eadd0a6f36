"""Trace analysis: Kineto traces to tables of kernels and intervals, and a drawn timeline."""

import numpy as np
import numpy.typing as npt

Int64 = npt.NDArray[np.int64]
Bool = npt.NDArray[np.bool_]
