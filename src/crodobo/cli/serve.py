"""`crodobo serve`: answer a private stream over HTTP."""

from crodobo.cli.given import Given
from crodobo.cli.options import SERVE, Fresh, Quiet, takes
from crodobo.errors import BadSettings


@takes(SERVE)
def serve(given: Given, fresh: Fresh = False, quiet: Quiet = False) -> None:
    """Answer images over HTTP with a model that adapts to them, and erase each query after its answer.

    Speaks the Open Inference Protocol v2, and takes plain images at /v1/predict; / is a page to look at. The same
    command goes on where it was stopped.
    """
    given.prepare_process()
    try:
        from crodobo.serve.server import Address
        from crodobo.serve.server import serve as serve_at
    except ImportError:
        raise BadSettings(
            "The service needs more packages.", 'Install them with pip install "crodobo[serve]".'
        ) from None

    from crodobo.burn.proof import check_proving
    from crodobo.cli.progress import make_reporter
    from crodobo.ledger.signing import load_signing_key
    from crodobo.methods import get_method
    from crodobo.methods.base import check_runs_online
    from crodobo.serve.service import Service
    from crodobo.serve.settings import AddressSettings, ServeSettings
    from crodobo.session.events import Log
    from crodobo.storage.lock import locked_folder

    chosen = given.choose()
    settings = given.session(chosen, ServeSettings)
    place = given.of(AddressSettings)
    check_proving(settings.prove_every, settings.options.burn)
    check_runs_online(get_method(settings.method), settings.options)
    address = Address(place.host, place.port, place.keys, place.tls_cert, place.tls_key, place.tls_client_ca)
    address.check()
    key = load_signing_key(settings.sign_key) if settings.sign_key else None
    with (
        locked_folder(settings.state, private=True, settings=("state",)),
        Log(settings.log) as events,
        make_reporter(quiet) as reporter,
    ):
        for note in chosen.notes:
            reporter.note(note)
        if not address.keys:
            reporter.note("WARNING: no --keys, so everybody on this machine may use the service")
        service = Service(settings, key, events, reporter, fresh)
        try:
            serve_at(service, address)
        finally:
            service.ledger.close("failed")
    answered = service.numbers.totals.queries
    print(f"stopped in order after {answered} {'query' if answered == 1 else 'queries'}; the same command goes on")
