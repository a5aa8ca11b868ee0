"""Which places an inbox must keep clear of: what lies in it is deleted."""

import os

from crodobo.data.listing import Listing
from crodobo.data.pictures import Files
from crodobo.errors import BadSettings
from crodobo.inbox.settings import AdaptSettings


def check_places(settings: AdaptSettings) -> None:
    """Refuse folders that would make files of others be taken for images that arrive, and deleted."""
    inbox = settings.inbox.resolve()
    for path, what in (
        (settings.predictions, "the predictions"),
        (settings.state, "the learners' state"),
        (settings.data.source, "the source"),
        (settings.data.folder, "the preset's folder"),
        (settings.options.weights, "the weights"),
        (settings.log, "the log"),
    ):
        if path and path.resolve().is_relative_to(inbox):
            raise BadSettings(f"{what} cannot be in the inbox: {path} is in {settings.inbox}; name another place")


def check_source(settings: AdaptSettings, listing: Listing) -> None:
    """Refuse an inbox that holds images of the source: they would be deleted."""
    if isinstance(listing.pictures, Files):
        inbox, root = os.path.join(settings.inbox.resolve(), ""), listing.pictures.root.resolve()
        folders: dict[str, str] = {}

        def real(path: str) -> str:
            """Where a file really lies; its folder is looked up once."""
            folder, name = os.path.split(path)
            if folder not in folders:
                folders[folder] = os.path.realpath(folder)
            place = os.path.join(folders[folder], name)
            return os.path.realpath(place) if os.path.islink(place) else place

        for name in listing.pictures.names:
            if real(os.path.join(root, name)).startswith(inbox):
                raise BadSettings(
                    f"the inbox {settings.inbox} holds images of the source, {name} for one, which would be deleted; "
                    "name another --inbox"
                )
