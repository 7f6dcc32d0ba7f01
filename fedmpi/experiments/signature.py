"""Whether the user wrote a result file: only then may `resume` import the functions that its config names.

A run whose config names functions is signed with the user's key. A file received from somebody else has no
such signature, and nothing that it names is executed unless the user passes `--trust`.
"""

from __future__ import annotations

import hashlib
import hmac
import os
import secrets
from pathlib import Path

from fedmpi.config import Config
from fedmpi.config.effects import chosen
from fedmpi.config.user_code import PASSED
from fedmpi.errors import UserError
from fedmpi.errors.wording import option


def named_functions(config: Config) -> list[str]:
    """The user's functions that a config names, and that would be imported."""
    names = [name for _, name, part in chosen(config) if part is None and ":" in name]
    return [name for name in names if not name.startswith(f"{PASSED}:")]


def sign(config_text: str, run_id: str) -> str:
    """A signature of a run by this user; empty where no key can be kept."""
    key = _key()
    return hmac.new(key, f"{run_id}\n{config_text}".encode(), hashlib.sha256).hexdigest() if key else ""


def signature(config: Config, run_id: str) -> str:
    """What goes into the result file of a run; empty if its config names no functions."""
    return sign(config.to_toml(), run_id) if named_functions(config) else ""


def require_own(config: Config, stored: dict, path: Path) -> None:
    """Refuse to import functions that somebody else's file names."""
    functions = named_functions(config)
    own = sign(stored["config"], stored["run_id"])
    if functions and not (own and hmac.compare_digest(own, str(stored.get("signature", "")))):
        raise UserError(
            f"{path} is not signed with your key, and its config names code to run "
            f"({', '.join(functions)}); look at it with `fedmpi info`, then resume with {option('trust')}"
        )


def _key() -> bytes:
    """The user's key, made when first needed."""
    folder = Path(os.environ.get("XDG_CONFIG_HOME") or Path.home() / ".config") / "fedmpi"
    path = folder / "key"
    try:
        if not path.exists():
            folder.mkdir(parents=True, exist_ok=True)
            new = folder / f"key.{os.getpid()}"
            with open(os.open(new, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as file:
                file.write(secrets.token_bytes(32))
            os.link(new, path)  # fails if another process was first; then its key is used
            new.unlink()
    except FileExistsError:
        new.unlink(missing_ok=True)
    except (OSError, RuntimeError):
        return b""
    try:
        return path.read_bytes()
    except OSError:
        return b""
