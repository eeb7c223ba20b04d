import numpy as np
import numpy.typing as npt

def common_prefix(a: npt.NDArray[np.int32], b: npt.NDArray[np.int32]) -> int: ...
