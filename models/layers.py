"""What encoder and decoder share: precision, convolution, dropout, and batch normalization that knows about padding."""

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm


def float32(x: Tensor) -> Tensor:
    """x in at least float32: softmax, norms and losses stay exact under bf16 autocast."""
    return x.to(torch.promote_types(x.dtype, torch.float32))


def filled_up(x_bchw: Tensor) -> Tensor:
    """x with empty images that make its batch a multiple of the threads, on the CPU; they add nothing to a gradient.

    Otherwise oneDNN's AMX kernel for the weight gradient in bf16 splits an image among threads and adds memory that
    nobody wrote (torch 2.11 to 2.13): mostly zeros, at times garbage or NaN.
    """
    missing = -len(x_bchw) % torch.get_num_threads() if x_bchw.device.type == "cpu" else 0
    return F.pad(x_bchw, (0, 0, 0, 0, 0, 0, 0, missing)) if missing else x_bchw


class Conv2d(nn.Conv2d):
    """torch's Conv2d, with a right gradient in bf16 on the CPU."""

    def forward(self, input: Tensor) -> Tensor:
        """torch's, of a batch that is filled up where the gradient needs it."""
        training = torch.is_grad_enabled() and torch.is_autocast_enabled("cpu")
        filled = filled_up(input) if training else input
        y = super().forward(filled)
        return y if filled is input else y[: len(input)]  # an operation in place on a view costs copies


def pointwise(conv: nn.Conv2d, x_bchw: Tensor) -> Tensor:
    """A 1x1 convolution; of maps whose channels lie together one matrix product, with a quicker weight gradient.

    On a GPU cuDNN would look for its best kernel anew for every shape, three times; a product needs no such plan.
    """
    if x_bchw.device.type == "cpu" and not x_bchw.is_contiguous(memory_format=torch.channels_last):
        return conv(x_bchw)
    return F.linear(x_bchw.permute(0, 2, 3, 1), conv.weight.flatten(1), conv.bias).permute(0, 3, 1, 2)


class Dropout(nn.Module):
    """Element dropout. Every mask of the network is drawn here.

    On the CPU torch draws one double an element, a third of a training step. Sixteen random bits an element decide
    as well (p is rounded to 1/65536) and come four to a draw.
    """

    def __init__(self, p: float) -> None:
        super().__init__()
        self.p = p

    def forward(self, x: Tensor) -> Tensor:
        """x with a share p of its elements dropped and the others scaled by 1 / (1 - p), in training."""
        if not self.training or self.p == 0:
            return x
        if x.device.type != "cpu" or not x.numel():
            return F.dropout(x, self.p)
        return x * self.kept(x).mul_(1 / (1 - self.p))

    def drop_(self, x: Tensor) -> Tensor:
        """Drops elements of x in place and leaves the others as they are, not scaled."""
        return x.mul_(self.kept(x)) if self.p else x

    def kept(self, x: Tensor) -> Tensor:
        """1 where an element of x stays, 0 where it is dropped; of the type and layout of x."""
        seed = torch.empty(1, dtype=torch.int64).random_().numpy()
        draws = np.random.SFC64(seed).random_raw(-(-x.numel() // 4))  # twice as quick as torch's generator
        bits = torch.from_numpy(draws).view(torch.int16)[: x.numel()]
        kept = torch.ge(bits, round(self.p * 65536) - 32768, out=torch.empty(x.numel(), dtype=x.dtype))
        last = x.ndim == 4 and x.is_contiguous(memory_format=torch.channels_last)
        return kept.as_strided(x.shape, x.stride()) if last else kept.view(x.shape)


def masked_batch_norm(norm: _BatchNorm, x_NChw: Tensor, valid_N1hw: Tensor) -> Tensor:
    """Batch normalization over the valid positions alone; the others become 0.

    valid_N1hw holds 1 at valid positions and 0 at padding. What the valid positions get, and the running
    statistics (momentum, unbiased variance), equal torch's BatchNorm on a tensor of only these positions,
    but without the boolean indexing that would make a GPU wait for the host.
    """
    x, valid = float32(x_NChw), valid_N1hw.to(x_NChw.dtype)
    mean_C, var_C = norm.running_mean, norm.running_var
    if norm.training:
        count = valid.sum(dtype=x.dtype).clamp(min=1)
        mean_C = (x * valid).sum((0, 2, 3)) / count
        var_C = ((x - mean_C[:, None, None]) * valid).square().sum((0, 2, 3)) / count
        update_running_statistics(norm, mean_C.detach(), var_C.detach() * count / (count - 1).clamp(min=1))
    assert mean_C is not None and var_C is not None
    scale_C = norm.weight * torch.rsqrt(var_C + norm.eps)
    shift_C = norm.bias - mean_C * scale_C
    return ((x * scale_C[:, None, None] + shift_C[:, None, None]) * valid).to(x_NChw.dtype)


@torch.no_grad()
def update_running_statistics(norm: _BatchNorm, mean_C: Tensor, unbiased_var_C: Tensor) -> None:
    """Moves the running statistics of `norm` towards those of a batch, as torch's BatchNorm does."""
    mean, var, batches = norm.running_mean, norm.running_var, norm.num_batches_tracked
    assert mean is not None and var is not None and batches is not None
    batches.add_(1)
    # momentum None means the plain average of all batches, as when statistics are recalibrated
    weight = batches.reciprocal() if norm.momentum is None else norm.momentum
    mean.add_((mean_C - mean) * weight)
    var.add_((unbiased_var_C - var) * weight)


class BatchNorm2d(nn.BatchNorm2d):
    """torch's BatchNorm2d; given `valid_N1hw` it leaves padding out of the statistics and sets it to 0."""

    def forward(self, input: Tensor, valid_N1hw: Tensor | None = None) -> Tensor:
        """Normalized maps of the same shape."""
        return super().forward(input) if valid_N1hw is None else masked_batch_norm(self, input, valid_N1hw)

    def count_batch(self) -> float:
        """Notes one more batch; how far the running statistics move towards its own, as torch's forward decides."""
        assert self.num_batches_tracked is not None
        self.num_batches_tracked.add_(1)
        return 1 / float(self.num_batches_tracked) if self.momentum is None else self.momentum
