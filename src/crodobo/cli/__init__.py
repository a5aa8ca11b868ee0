"""The command line: one command a file.

A process that was restarted for strict burning closes itself to others here, before the commands are loaded.
"""

from contextlib import suppress

from crodobo.burn.relaunch import launched, relaunch
from crodobo.errors import NotHardened

if launched():
    with suppress(NotHardened):  # the command tries again, and reports it
        relaunch()
