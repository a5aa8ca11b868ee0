"""`crodobo adapt`: adapt to a folder of private images, predict them, delete them."""

from crodobo.cli.given import Given
from crodobo.cli.options import ADAPT, Fresh, KeepLearners, Quiet, takes
from crodobo.errors import BadSettings


@takes(ADAPT)
def adapt(given: Given, fresh: Fresh = False, keep_learners: KeepLearners = False, quiet: Quiet = False) -> None:
    """Adapt to a folder of private images: predict each, then DELETE the image.

    The images need no labels. Predictions are added to a CSV file. It can be killed at any moment. The same command
    goes on: no prediction is lost, no image is predicted twice, and no image stays that has its prediction.
    """
    if fresh and keep_learners:
        problem = "Starting over and keeping the learners exclude each other."
        raise BadSettings(problem, "Choose one.", settings=("fresh", "keep_learners"))
    given.prepare_process()

    from crodobo.cli.console import text_beside_events
    from crodobo.cli.progress import make_observer
    from crodobo.cli.summary import print_adapted
    from crodobo.data.presets import get_preset
    from crodobo.inbox.adapt import adapt as adapt_to
    from crodobo.inbox.adapt import check_inbox
    from crodobo.inbox.settings import AdaptSettings

    if "source" not in given.values:
        if "benchmark" not in given.values:
            remedy = "Name labelled public images, or a preset."
            raise BadSettings("There is no source.", remedy, settings=("source", "benchmark"))
        get_preset(given.values["benchmark"])  # refuses a name that is not a preset's
    chosen = given.choose()
    settings = given.session(chosen, AdaptSettings)
    classes = given.values.get("classes")
    if classes and classes.resolve().is_relative_to(settings.inbox.resolve()):
        problem = f"The file of classes cannot be in the inbox: {classes}."
        raise BadSettings(problem, "Move it elsewhere.", settings=("classes",))
    check_inbox(settings)
    with text_beside_events(settings.log):
        if not quiet:
            kept = f"Images in {settings.inbox} are kept. Predictions go to {settings.predictions}."
            deleted = f"EACH IMAGE IN {settings.inbox} IS DELETED once its prediction is in {settings.predictions}."
            print(kept if settings.keep_files else deleted, flush=True)
        with make_observer(quiet, chosen.notes) as observer:
            summary = adapt_to(settings, fresh=fresh, keep_learners=keep_learners, observer=observer)
        if quiet:
            print(settings.predictions)
        else:
            print_adapted(summary)
