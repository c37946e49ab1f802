"""What encoder and decoder share: precision, convolution, dropout, and batch normalisation that knows about padding."""

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm


def float32(x: Tensor) -> Tensor:
    """x in at least float32: softmax, norms and losses stay exact under bf16 autocast."""
    return x.to(torch.promote_types(x.dtype, torch.float32))


class Conv2d(nn.Conv2d):
    """torch's Conv2d, with a right gradient in bf16 on the CPU.

    Where the batch is no multiple of the threads, oneDNN's AMX kernel for the weight gradient splits an image among
    threads and adds memory that nobody wrote (torch 2.11 to 2.13): mostly zeros, at times garbage or NaN. Empty images
    fill the batch up for it; they add nothing to the gradient.
    """

    def forward(self, input: Tensor) -> Tensor:
        missing = -len(input) % torch.get_num_threads()
        training = torch.is_grad_enabled() and input.device.type == "cpu" and torch.is_autocast_enabled("cpu")
        if not (training and missing):
            return super().forward(input)
        return super().forward(F.pad(input, (0, 0, 0, 0, 0, 0, 0, missing)))[: len(input)]


class Dropout(nn.Module):
    """Element dropout. Every mask of the network is drawn here.

    On the CPU torch draws one double an element, a third of a training step. Sixteen random bits an element decide
    as well (p is rounded to 1/65536) and come four to a draw.
    """

    def __init__(self, p: float) -> None:
        super().__init__()
        self.p = p

    def forward(self, x: Tensor) -> Tensor:
        if not self.training or self.p == 0:
            return x
        if x.device.type != "cpu" or not x.numel():
            return F.dropout(x, self.p)
        draws = torch.empty(-(-x.numel() // 4), dtype=torch.int64).random_(-(2**63), None)
        bits = draws.view(torch.int16)[: x.numel()]
        kept = torch.ge(bits, round(self.p * 65536) - 32768, out=torch.empty(x.numel(), dtype=x.dtype))
        kept.mul_(1 / (1 - self.p))
        if x.is_contiguous(memory_format=torch.channels_last) and x.ndim == 4:
            return x * kept.as_strided(x.shape, x.stride())
        return x * kept.view(x.shape)


def masked_batch_norm(norm: _BatchNorm, x_NChw: Tensor, valid_N1hw: Tensor) -> Tensor:
    """Batch normalisation over the valid positions alone; the others become 0.

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
        return super().forward(input) if valid_N1hw is None else masked_batch_norm(self, input, valid_N1hw)
