"""Old home of the tools around augmented forwards."""

from thunder.core.transforms.augmented_forward import get_saved_for_backward_tensors as get_saved_for_backward_tensors
from thunder.core.transforms.augmented_forward import make_aug_forward_and_backward as make_aug_forward_and_backward
from thunder.core.transforms.augmented_forward import set_saved_for_backward_tensors as set_saved_for_backward_tensors
