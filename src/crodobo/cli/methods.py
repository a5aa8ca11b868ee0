"""`crodobo methods`: what there is to choose from."""


def methods() -> None:
    """List the methods: what each does, the protocols it runs under, whether it keeps target data."""
    import inspect

    from rich.console import Console
    from rich.table import Table

    from crodobo.methods import REGISTRY

    table = Table(box=None, padding=(0, 2, 0, 0))
    for heading in ("method", "protocols", "keeps target", "what it does"):
        table.add_column(heading, overflow="fold", no_wrap=heading == "method")
    for name, method in REGISTRY.items():
        does = " ".join((inspect.getdoc(method) or "").split("\n\n")[0].split())
        table.add_row(name, ", ".join(method.protocols), "yes" if method.keeps_target else "", does)
    Console().print(table, highlight=False)
