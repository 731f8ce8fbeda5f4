"""From what people type to their App: `app.py`, `path/to/app.py:name`, `module` or `module:name`.

The name is `app` unless stated, or the only App there is. The working directory, and the folder of a file, can be
imported from. Errors in the user's own code are told with their place, without a trace of settled's.
"""

from __future__ import annotations

import importlib
import importlib.util
import os
import sys
import traceback
from pathlib import Path
from types import ModuleType

from settled.app import App
from settled.errors import ContractError, SettledError

_NOT_THEIRS = (
    str(Path(__file__).parents[1]) + os.sep,
    "<frozen importlib",
    os.path.dirname(importlib.__file__) + os.sep,
)


def load_app(spec: str) -> App:
    """The App that `spec` names. Raises ContractError."""
    place, _, name = spec.partition(":")
    if not place:
        raise ContractError(f"{spec!r} names no app", field="APP", hint="write app.py, app.py:name or module:name")
    _importable(Path.cwd())
    is_file = place.endswith(".py") or os.sep in place
    module = _of_file(Path(place)) if is_file else _of_module(place)
    return _the_app(module, place, name)


def _of_file(path: Path) -> ModuleType:
    if not path.is_file():
        raise ContractError(f"there is no file {str(path)!r}", field="APP", hint="give the path of the app's file")
    _importable(path.resolve().parent)
    name = path.stem if path.stem.isidentifier() else "settled_user_app"
    spec = importlib.util.spec_from_file_location(name, path.resolve())
    if spec is None or spec.loader is None:
        raise ContractError(f"{str(path)!r} is not a Python file", field="APP", hint="its name ends in .py")
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    try:
        spec.loader.exec_module(module)
    except Exception as error:
        raise of_the_user(error, str(path)) from error
    return module


def _of_module(name: str) -> ModuleType:
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError as error:
        if error.name is not None and (name == error.name or name.startswith(error.name + ".")):
            raise ContractError(
                f"there is no module {name!r}",
                field="APP",
                hint="give a file (app.py), or a module that can be imported from the working directory",
            ) from error
        raise of_the_user(error, name) from error
    except (TypeError, ValueError) as error:
        raise ContractError(f"{name!r} is not a module's name", field="APP", hint="write module:name") from error
    except Exception as error:
        raise of_the_user(error, name) from error


def _the_app(module: ModuleType, place: str, name: str) -> App:
    apps = {key: value for key, value in vars(module).items() if isinstance(value, App)}
    if name:
        if not hasattr(module, name):
            raise ContractError(f"{place} has no {name!r}", field="APP", hint=_choices(place, list(apps)))
        found = getattr(module, name)
        if not isinstance(found, App):
            raise ContractError(f"{place}:{name} is no App", field="APP", value=name, hint=_choices(place, list(apps)))
        return found
    if "app" in apps:
        return apps["app"]
    if len({id(app) for app in apps.values()}) == 1:
        return next(iter(apps.values()))
    if not apps:
        raise ContractError(
            f"{place} holds no App", field="APP", hint="make one at the top level: app = App(topic=..., group=...)"
        )
    raise ContractError(f"{place} holds several apps", field="APP", hint=_choices(place, list(apps)))


def _choices(place: str, names: list[str]) -> str:
    return "apps there: " + ", ".join(f"{place}:{name}" for name in names) if names else "it holds no App"


def of_the_user(error: Exception, place: str) -> SettledError:
    """The user's own error, told as theirs: where in their code, and what."""
    if isinstance(error, SettledError):
        return error
    if isinstance(error, SyntaxError):
        where = f"{error.filename}:{error.lineno}"
        return ContractError(f"{where}: syntax error: {error.msg}", field="APP", hint="mend the file")
    frames = traceback.extract_tb(error.__traceback__)
    theirs = [f for f in frames if os.path.isfile(f.filename) and not f.filename.startswith(_NOT_THEIRS)]
    where = f"{theirs[-1].filename}:{theirs[-1].lineno}" if theirs else place
    return ContractError(f"{where}: {type(error).__name__}: {error}", field="APP", hint=f"mend {place}")


def _importable(folder: Path) -> None:
    if str(folder) not in sys.path:
        sys.path.insert(0, str(folder))
