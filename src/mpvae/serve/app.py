"""HTTP around the answers: FastAPI, its OpenAPI pages, and the label explorer."""

from importlib.resources import files
from pathlib import Path
from typing import Annotated, Any, Literal

import pandas as pd
from fastapi import FastAPI, Query, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import HTMLResponse, JSONResponse, Response
from fastapi_offline import FastAPIOffline
from plotly.offline import get_plotlyjs
from pydantic import BaseModel, ConfigDict, Field

from mpvae.config import Metric
from mpvae.errors import MPVAEError
from mpvae.estimator import MPVAEClassifier
from mpvae.serve.answering import MAX_ROWS, Answers
from mpvae.version import __version__

MAX_BYTES = 10 * 2**20
"""Of one request."""
_ASSETS = files("mpvae.serve") / "assets"
Number = int | float | str | bool | None
Rows = Annotated[
    list[dict[str, Number]],
    Field(
        min_length=1,
        max_length=MAX_ROWS,
        description="Rows: feature name to value, null where it is missing.",
    ),
]
Labels = Annotated[
    list[dict[str, Literal[0, 1]]],
    Field(description="For each row, label name to 1 (present) or 0 (absent)."),
]


class _Question(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True)
    rows: Rows


class PredictQuestion(_Question):
    """Rows to predict."""

    metric: Metric | None = Field(None, description="Also decide, for this metric.")


class ConditionalQuestion(_Question):
    """Rows, and labels that are already known of them."""

    known: Labels


class JointQuestion(_Question):
    """Rows, and label vectors to weigh; labels left out are integrated out."""

    labels: Labels


class Probabilities(BaseModel):
    """Probability of every label for every row."""

    labels: list[str]
    probabilities: list[list[float]]
    decisions: list[list[int]] | None = None


class Conditional(BaseModel):
    """Probabilities given the known labels, and without them."""

    labels: list[str]
    probabilities: list[list[float]]
    marginals: list[list[float]]
    effective_draws: list[float | None]


class Joint(BaseModel):
    """Log-probabilities, in nats, with their Monte Carlo errors."""

    log_prob: list[float]
    standard_error: list[float]


class Problem(BaseModel):
    """What is wrong with a question."""

    error: str


_WRONG: dict[int | str, dict[str, Any]] = {422: {"model": Problem}, 413: {"model": Problem}}


def make_app(
    model: MPVAEClassifier, *, name: str = "model", examples: pd.DataFrame | None = None
) -> FastAPI:
    """A service for one model.

    Parameters
    ----------
    model : MPVAEClassifier
        Fitted.
    name : str
        Shown on the page.
    examples : DataFrame, optional
        Rows to choose from in the explorer.
    """
    answers = Answers(model, examples)
    about = {"name": name, "version": __version__, **answers.about()}
    app = FastAPIOffline(  # its pages load nothing from elsewhere
        title=f"mpvae: {name}",
        version=__version__,
        description="Probabilities of labels, alone and together.",
        redoc_url=None,
        responses=_WRONG,
    )
    _pages(app)
    _guards(app)

    @app.get("/health")
    def health() -> dict[str, Any]:
        """Whether the service is there, and what it serves."""
        return {
            "status": "ok",
            "model": name,
            "version": __version__,
            "features": len(answers.features),
            "labels": len(answers.labels),
        }

    @app.get("/about")
    def describe() -> dict[str, Any]:
        """Features with their kinds, labels with their place on the map, example rows."""
        return about

    @app.post("/predict", response_model_exclude_none=True)
    def predict(question: PredictQuestion) -> Probabilities:
        """Probability of every label, from the features alone."""
        return Probabilities(**answers.predict(question.rows, question.metric))

    @app.post("/conditional")
    def conditional(question: ConditionalQuestion) -> Conditional:
        """Probability of every label given those that are known."""
        return Conditional(**answers.conditional(question.rows, question.known))

    @app.post("/joint")
    def joint(question: JointQuestion) -> Joint:
        """Log-probability of several labels together."""
        return Joint(**answers.joint(question.rows, question.labels))

    @app.get("/associations")
    def associations(
        top: Annotated[int, Query(ge=1, le=1000)] = 100,
        label: Annotated[str | None, Query(max_length=500)] = None,
    ) -> list[dict[str, Any]]:
        """The strongest residual correlations, of all labels or of one."""
        return answers.associations(top, label)

    @app.post(
        "/rows",
        openapi_extra={
            "requestBody": {"content": {"text/csv": {"schema": {"type": "string"}}}}
        },
    )
    async def rows(request: Request) -> list[dict[str, Any]]:
        """Rows of a CSV file, checked, as the other questions take them."""
        return answers.rows_of_csv(await request.body())

    return app


def _pages(app: FastAPI) -> None:
    kinds = {".html": "text/html", ".css": "text/css", ".js": "text/javascript"}

    @app.get("/", include_in_schema=False)
    def explorer() -> HTMLResponse:
        return HTMLResponse((_ASSETS / "explorer.html").read_text(encoding="utf-8"))

    @app.get("/assets/{file}", include_in_schema=False)
    def asset(file: Literal["explorer.css", "explorer.js", "plotly.js"]) -> Response:
        text = (
            get_plotlyjs()
            if file == "plotly.js"
            else (_ASSETS / file).read_text(encoding="utf-8")
        )
        kept = {"Cache-Control": "max-age=86400"} if file == "plotly.js" else {}
        return Response(text, media_type=kinds[Path(file).suffix], headers=kept)


def _guards(app: FastAPI) -> None:
    """Errors as one line of JSON, requests of limited size."""

    @app.exception_handler(MPVAEError)
    async def wrong(_: Request, error: MPVAEError) -> JSONResponse:
        return JSONResponse({"error": " ".join(str(error).split())}, 422)

    @app.exception_handler(RequestValidationError)
    async def malformed(_: Request, error: RequestValidationError) -> JSONResponse:
        first = error.errors()[0]
        place = ".".join(str(part) for part in first["loc"] if part != "body")
        return JSONResponse(
            {"error": f"{place}: {first['msg']}" if place else first["msg"]}, 422
        )

    @app.middleware("http")
    async def limited(request: Request, call_next: Any) -> Response:
        length = request.headers.get("content-length")
        if request.method == "POST":
            if length is None or not length.isdigit():
                return JSONResponse({"error": "say how long the request is"}, 411)
            if int(length) > MAX_BYTES:
                text = f"the request has {int(length):,} bytes; send at most {MAX_BYTES:,}"
                return JSONResponse({"error": text}, 413)
        answer: Response = await call_next(request)
        return answer
