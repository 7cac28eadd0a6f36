"""Trace analysis: from traces of profilers to tables of kernels, intervals and collectives, and a timeline."""

import numpy as np
import numpy.typing as npt

import triplepoint

triplepoint.make_callable(__name__)  # so that the library offers triplepoint.trace(files)

Int64 = npt.NDArray[np.int64]
Bool = npt.NDArray[np.bool_]
