"""Checks that an inbox holds nothing but images that may be deleted."""

import os

from crodobo.data.listing import Listing
from crodobo.data.pictures import Files
from crodobo.errors import BadSettings
from crodobo.inbox.settings import AdaptSettings


def check_places(settings: AdaptSettings) -> None:
    """Refuse settings that put other files into the inbox, where they would be taken for images and deleted."""
    inbox = settings.inbox.resolve()
    for path, name, content in (
        (settings.predictions, "predictions", "The predictions"),
        (settings.state, "state", "The learners' state"),
        (settings.data.source, "source", "The source"),
        (settings.data.folder, "folder", "The preset's folder"),
        (settings.options.weights, "weights", "The weights"),
        (settings.log, "log", "The log"),
    ):
        if path and path.resolve().is_relative_to(inbox):
            problem = f"{content} cannot be in the inbox: {path} is in {settings.inbox}."
            raise BadSettings(problem, "Choose another path.", settings=(name,))


def check_source(settings: AdaptSettings, listing: Listing) -> None:
    """Refuse an inbox that holds images of the source, because they would be deleted."""
    if not isinstance(listing.pictures, Files):
        return
    inbox, root = os.path.join(settings.inbox.resolve(), ""), listing.pictures.root.resolve()
    real_folders: dict[str, str] = {}  # each folder is resolved once

    def real_path(path: str) -> str:
        folder, name = os.path.split(path)
        if folder not in real_folders:
            real_folders[folder] = os.path.realpath(folder)
        place = os.path.join(real_folders[folder], name)
        return os.path.realpath(place) if os.path.islink(place) else place

    for name in listing.pictures.names:
        if real_path(os.path.join(root, name)).startswith(inbox):
            problem = f"The inbox {settings.inbox} holds images of the source, such as {name}, which would be deleted."
            raise BadSettings(problem, "Choose another folder.", settings=("inbox",))
