from dataclasses import dataclass
from typing import Any

from crodobo.data import Public
from crodobo.data.assemble import augment_of, classes_of, make_source, read_source, size_of, stamp_of
from crodobo.data.classes import common_names
from crodobo.data.presets import get_preset, is_preset


@dataclass
class Listed:
    listing: Any
    names: Any
    data: Any
    size: Any
    preset: Any
    name: str

    def load(self, cache, observer):
        return Public(
            make_source(self.listing, self.names, self.data, self.size, cache, observer),
            augment_of(self.data, self.preset, self.size),
            stamp_of(self.listing, self.names),
            self.name,
        )


def list_public(name, image_size, data):
    preset = get_preset(name) if is_preset(name) else None
    size = size_of(image_size, preset)
    listing = read_source(data, preset)
    names = common_names(listing.counts, {}, classes_of(data, preset).names)
    return Listed(listing, names, data, size, preset, name)
