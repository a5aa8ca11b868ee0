"""Losses as pure functions of tensors, one per file."""

from crodobo.losses.adversarial import domain_confusion as domain_confusion
from crodobo.losses.adversarial import ramp as ramp
from crodobo.losses.adversarial import reverse_gradient as reverse_gradient
from crodobo.losses.co_supervision import co_supervision as co_supervision
from crodobo.losses.coral import coral as coral
from crodobo.losses.diversity import diversity as diversity
from crodobo.losses.entropy import entropies as entropies
from crodobo.losses.entropy import entropy as entropy
from crodobo.losses.focal import focal as focal
from crodobo.losses.margin_disparity import margin_disparity as margin_disparity
from crodobo.losses.mixmatch import mixmatch as mixmatch
from crodobo.losses.mixmatch import mixup as mixup
from crodobo.losses.mixmatch import sharpen as sharpen
from crodobo.losses.mmd import mmd as mmd
