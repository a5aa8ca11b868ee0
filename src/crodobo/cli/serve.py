"""`crodobo serve`: answer a private stream over HTTP."""

from crodobo.cli.given import Given
from crodobo.cli.options import SERVE, Fresh, Quiet, takes
from crodobo.errors import BadSettings

NO_KEYS = "WARNING: no keys are set, so everybody on this machine may use the service (see --keys)."
NO_TLS = "WARNING: without TLS, keys and images cross the network unencrypted (see --tls-cert)."


@takes(SERVE)
def serve(given: Given, fresh: Fresh = False, quiet: Quiet = False) -> None:
    """Answer images over HTTP with a model that adapts to them, and erase them.

    Each query is erased after its answer. The service speaks the Open Inference Protocol v2, and takes plain images at
    /v1/predict; / is a page to look at. The same command goes on where it was stopped.
    """
    given.prepare_process()
    try:
        from crodobo.serve.server import Address
        from crodobo.serve.server import serve as serve_at
    except ImportError:
        remedy = 'Install them with pip install "crodobo[serve]".'
        raise BadSettings("The service needs more packages.", remedy) from None

    from crodobo.cli.console import text_beside_events
    from crodobo.cli.progress import make_observer
    from crodobo.serve.service import Service
    from crodobo.serve.settings import AddressSettings, ServeSettings

    chosen = given.choose()
    settings = given.session(chosen, ServeSettings)
    place = given.of(AddressSettings)
    address = Address(place.host, place.port, place.keys, place.tls_cert, place.tls_key, place.tls_client_ca)
    address.check()
    with text_beside_events(settings.log):
        with make_observer(quiet, chosen.notes) as observer:
            if not address.keys:
                observer.note(NO_KEYS)
            if address.is_exposed:
                observer.note(NO_TLS)
            with Service(settings, observer, fresh=fresh) as service:
                serve_at(service, address)
        answered = service.totals["queries"]
        print(f"Stopped in order after {answered} {'query' if answered == 1 else 'queries'}. The same command goes on.")
