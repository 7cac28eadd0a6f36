"""What a step's time went into: Kineto traces to tables of kernels, intervals and a drawn timeline."""

import numpy as np
import numpy.typing as npt

Int64 = npt.NDArray[np.int64]
Bool = npt.NDArray[np.bool_]
