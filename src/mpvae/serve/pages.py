"""The label explorer and the page of questions: files, read once and sent as they are."""

from functools import cache
from importlib.resources import files
from pathlib import Path

from fastapi import FastAPI
from fastapi.responses import Response
from plotly.offline import get_plotlyjs
from starlette.exceptions import HTTPException

_KINDS = {
    ".html": "text/html; charset=utf-8",
    ".css": "text/css; charset=utf-8",
    ".js": "text/javascript; charset=utf-8",
    ".png": "image/png",
}
_OWN = ("explorer.html", "explorer.css", "explorer.js", "questions.html", "questions.js")
_SWAGGER = ("swagger-ui-bundle.js", "swagger-ui.css", "favicon.png")


def add_pages(app: FastAPI) -> None:
    """Add ``/``, ``/docs`` and the files that they load; all of them come from here."""
    found = _files()

    @app.get("/", include_in_schema=False)
    async def explorer() -> Response:
        return Response(found["explorer.html"], headers=_headers("explorer.html"))

    @app.get("/docs", include_in_schema=False)
    async def questions() -> Response:
        return Response(found["questions.html"], headers=_headers("questions.html"))

    @app.get("/assets/{file}", include_in_schema=False)
    async def asset(file: str) -> Response:
        if file not in found or file.endswith(".html"):
            raise HTTPException(404)
        return Response(found[file], headers=_headers(file))


@cache
def _files() -> dict[str, bytes]:
    own = files("mpvae.serve") / "assets"
    swagger = files("fastapi_offline") / "static"
    found = {name: (own / name).read_bytes() for name in _OWN}
    found |= {name: (swagger / name).read_bytes() for name in _SWAGGER}
    return found | {"plotly.js": get_plotlyjs().encode()}


def _headers(file: str) -> dict[str, str]:
    """Content type, and how long a browser may keep the file: ours change with a release."""
    kept = "no-cache" if file in _OWN else "max-age=86400"
    return {"Content-Type": _KINDS[Path(file).suffix], "Cache-Control": kept}
