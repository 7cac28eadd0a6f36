"""Trace analysis: Kineto traces to tables of kernels and intervals, and a drawn timeline."""

import numpy as np
import numpy.typing as npt

import triplepoint

triplepoint.make_callable(__name__)  # triplepoint.trace(files) of the library

Int64 = npt.NDArray[np.int64]
Bool = npt.NDArray[np.bool_]
