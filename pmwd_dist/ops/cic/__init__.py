"""Cloud-in-cell paint and read on one block."""

from pmwd_dist.ops.cic.geometry import VALUE as VALUE
from pmwd_dist.ops.cic.geometry import Geometry as Geometry
from pmwd_dist.ops.cic.geometry import Mask as Mask
from pmwd_dist.ops.cic.primitives import jvp_weights as jvp_weights
from pmwd_dist.ops.cic.primitives import paint as paint
from pmwd_dist.ops.cic.primitives import read as read
from pmwd_dist.ops.kernels import cuda_unavailable_reason as cuda_unavailable_reason
