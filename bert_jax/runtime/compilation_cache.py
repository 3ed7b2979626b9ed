"""JAX's cache of compiled programs on disk, which is on by default: its folder, and removal of damaged entries."""

import hashlib
import json
import os
import platform
import zlib
from importlib.metadata import version
from pathlib import Path

from bert_jax.files import write_json

CHECKSUMS = "checksums.json"
_THRESHOLDS = {  # name -> (JAX's default, the value that keeps every program)
    "jax_persistent_cache_min_compile_time_secs": (1.0, 0.0),
    "jax_persistent_cache_min_entry_size_bytes": (0, -1),
}


def keep_compiled_programs() -> None:
    """Sets JAX's cache to a folder for this jaxlib and this CPU, so that a second start compiles nothing again.

    JAX options that the user has set, in the environment or with `jax.config.update`, stay as they are:
    `jax_compilation_cache_dir` (then this function does nothing), `jax_enable_compilation_cache`, and the minimum size
    and compile time of the programs to keep, if they differ from JAX's defaults. If the folder cannot be written, JAX
    compiles every program at each start.
    """
    import jax

    set_by_user = (
        "JAX_COMPILATION_CACHE_DIR" in os.environ or jax.config.values["jax_compilation_cache_dir"] is not None
    )
    if set_by_user or not jax.config.values["jax_enable_compilation_cache"]:
        return
    try:
        folder = default_folder()
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        remove_damaged(folder)
    except (OSError, RuntimeError):  # RuntimeError: no home directory
        return
    jax.config.update("jax_compilation_cache_dir", str(folder))
    for option, (usual, everything) in _THRESHOLDS.items():
        if option.upper() not in os.environ and jax.config.values[option] == usual:
            jax.config.update(option, everything)


def cache_folder() -> str | None:
    """The folder in which JAX keeps compiled programs, chosen by the user or by us; None if it keeps none."""
    import jax

    return jax.config.values["jax_compilation_cache_dir"] if jax.config.values["jax_enable_compilation_cache"] else None


def default_folder() -> Path:
    """`~/.cache/bert_jax/compiled/KEY`, or below `XDG_CACHE_HOME`.

    JAX's own key for a program does not include the CPU, and code compiled for another CPU's instructions may crash,
    for example if several machines share a home directory. So each kind of CPU has its own folder.
    """
    cache = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    cpu = hashlib.sha256(_cpu().encode()).hexdigest()[:12]
    return Path(cache) / "bert_jax" / "compiled" / f"jaxlib-{version('jaxlib')}-{platform.machine()}-{cpu}"


def _cpu() -> str:
    """The target of compilation: the CPU's model and the names of its features."""
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return f"{platform.machine()} {platform.processor()}"
    found = {name.strip(): value.strip() for name, _, value in (line.partition(":") for line in lines)}
    names = ("vendor_id", "cpu family", "model", "model name", "flags", "CPU implementer", "CPU part", "Features")
    return "\n".join(f"{name}: {found.get(name)}" for name in names)


def remove_damaged(folder: Path) -> None:
    """Deletes entries that are truncated, or have changed since this function first saw them: JAX then rewrites them.

    JAX compiles the program of an unreadable entry again at every start and does not replace the entry. It does not
    verify readable entries if it compresses with zstandard.
    """
    known = _checksums(folder)
    sums: dict[str, int] = {}
    for path in sorted(folder.glob("*-cache")):
        try:
            content = path.read_bytes()
        except FileNotFoundError:  # another program that starts now has deleted it
            continue
        checksum = zlib.crc32(content)
        if known[path.name] == checksum if path.name in known else _is_whole(content):
            sums[path.name] = checksum
        else:
            path.unlink(missing_ok=True)
    if sums != known:
        write_json(folder / CHECKSUMS, sums)


def _checksums(folder: Path) -> dict[str, int]:
    try:
        known = json.loads((folder / CHECKSUMS).read_bytes())
    except (FileNotFoundError, ValueError):
        return {}
    return known if isinstance(known, dict) else {}


def _is_whole(entry: bytes) -> bool:
    """Whether an entry can be decompressed to its end."""
    if entry.startswith(b"\x28\xb5\x2f\xfd"):
        try:
            import zstandard
        except ImportError:  # Python versions with zstd in the standard library
            return True
        decompressor, error = zstandard.ZstdDecompressor().decompressobj(), zstandard.ZstdError
    else:
        decompressor, error = zlib.decompressobj(), zlib.error
    try:
        decompressor.decompress(entry)
    except error:
        return False
    return decompressor.eof
