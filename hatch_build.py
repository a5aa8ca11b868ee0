"""Builds the allocator shim along with the package, where there is a C compiler. Without one the package works as well,
and strict burning falls back to other allocators."""

import shutil
import subprocess
import sys
import sysconfig
from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface

FOLDER = Path("src", "crodobo", "burn")


class ZeroOnFree(BuildHookInterface):
    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        if self.target_name != "wheel" or not sys.platform.startswith("linux"):
            return
        source, library = (Path(self.root, FOLDER, f"zero_on_free.{suffix}") for suffix in ("c", "so"))
        compiler = shutil.which("cc") or shutil.which("gcc") or shutil.which("clang")
        if not compiler:
            self.app.display_warning("no C compiler: strict burning will use another allocator than crodobo's own")
            return
        unfinished = library.with_suffix(".so.unfinished")
        build = [compiler, "-O2", "-fPIC", "-shared", "-Wall", "-Wextra", "-o", str(unfinished), str(source), "-ldl"]
        built = subprocess.run(build, capture_output=True, text=True)
        if built.returncode:
            self.app.display_warning(f"the allocator shim could not be built: {built.stderr}")
            return
        unfinished.replace(library)  # in one step: processes may have the one that is there
        build_data["artifacts"].append(str(library.relative_to(self.root)))
        if version == "standard":
            build_data["pure_python"] = False
            build_data["tag"] = f"py3-none-{sysconfig.get_platform().replace('-', '_').replace('.', '_')}"
