"""torch's operations on lists of tensors, as its optimizers use them: a few kernels in all, not one for each tensor."""

from typing import Any

import torch

_torch: Any = torch  # which does not export them

add_, sub, sub_, mul_ = _torch._foreach_add_, _torch._foreach_sub, _torch._foreach_sub_, _torch._foreach_mul_
lerp, lerp_, copy_ = _torch._foreach_lerp, _torch._foreach_lerp_, _torch._foreach_copy_
