"""HTTP around the answers: FastAPI, its OpenAPI page, and the label explorer."""

import asyncio
from collections.abc import Callable, Collection
from typing import Annotated, Any, TextIO, TypeAlias

import pandas as pd
from fastapi import Depends, FastAPI, Query, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import Response
from fastapi.security import HTTPBearer
from prometheus_client import CONTENT_TYPE_LATEST
from starlette.exceptions import HTTPException

from mpvae.errors import MPVAEError
from mpvae.estimator import MPVAEClassifier
from mpvae.serve.answering import Answers
from mpvae.serve.guards import Guard
from mpvae.serve.pages import add_pages
from mpvae.serve.queue import MAX_WAIT, PLACES, Worker
from mpvae.serve.watching import Visit, Watch
from mpvae.serve.wire import (
    About,
    Conditional,
    Health,
    Joint,
    Pair,
    Probabilities,
    Problem,
    Ready,
    label_schema,
    problem,
    question_schema,
    read_question,
    write_json,
)
from mpvae.version import __version__

OPEN = ("/", "/assets", "/docs", "/openapi.json", "/health", "/ready")
"""What needs no token: it holds no data."""
Work: TypeAlias = Callable[[bytes], tuple[Any, int]]  # body -> answer, rows
Responses: TypeAlias = dict[int | str, dict[str, Any]]


def make_app(
    model: MPVAEClassifier,
    *,
    name: str = "model",
    examples: pd.DataFrame | None = None,
    token: str | None = None,
    hosts: Collection[str] | None = None,
    log: TextIO | None = None,
    places: int = PLACES,
    max_wait: float = MAX_WAIT,
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
    token : str, optional
        Needed by all who ask, as ``Authorization: Bearer TOKEN``; without it, by nobody.
    hosts : collection of str, optional
        Values of the header ``Host`` that are answered; any, if not given.
    log : text stream, optional
        Gets a line of JSON for every request.
    places, max_wait
        Questions that may wait, and for how many seconds; others are refused with 503.
    """
    answers = Answers(model, examples)
    worker = Worker(answers.warm_up, places=places, max_wait=max_wait)
    watch = Watch(worker, log)

    app = FastAPI(
        title=f"mpvae: {name}",
        version=__version__,
        description="Probabilities of labels, alone and together.",
        docs_url=None,  # a page of our own loads nothing from elsewhere
        redoc_url=None,
        redirect_slashes=False,
        responses=_errors(*([] if hosts is None else [421]), 431, 500),
    )
    app.state.worker = worker
    add_pages(app)
    _add_state(app, name, answers, worker)
    _add_questions(app, name, answers, worker, watch, with_token=token is not None)
    _add_errors(app)
    app.add_middleware(
        Guard,
        worker=worker,
        watch=watch,
        places={"/assets"} | {getattr(route, "path", "") for route in app.routes},
        open_places=OPEN,
        token=None if token is None else token.encode(),
        hosts=hosts,
    )
    return app


def _add_state(app: FastAPI, name: str, answers: Answers, worker: Worker) -> None:
    """What tells whether the service is there; no token, no queue."""

    @app.get("/health")
    async def health() -> Health:
        """Whether the service is there, and what it serves."""
        return Health(
            status="ok",
            model=name,
            version=__version__,
            features=len(answers.features),
            labels=len(answers.labels),
        )

    @app.get("/ready", responses=_errors(503) | {200: {"model": Ready}})
    async def ready() -> Response:
        """Whether questions are answered: not before a first prediction, nor at the end."""
        if worker.ready:
            return _json({"status": "ready"})
        if worker.stopping:
            why = "the service ends"
        elif worker.failure is None:
            why = "the first prediction is being made"
        else:
            why = f"the first prediction failed: {type(worker.failure).__name__}"
        return Response(problem(why), 503, {"Retry-After": "1"}, "application/json")


def _add_questions(
    app: FastAPI, name: str, answers: Answers, worker: Worker, watch: Watch, *, with_token: bool
) -> None:
    """What needs the model, and the numbers of the service."""
    bearer = HTTPBearer(auto_error=False, description="The token that the service was given.")
    needs = [Depends(bearer)] if with_token else []  # declares it; the guard checks
    codes = (401,) if with_token else ()
    named = None if with_token else answers  # this page is open: it tells no names then

    def answered(model: Any, *more: int) -> dict[str, Any]:
        return {
            "dependencies": needs,
            "responses": {200: {"model": model}} | _errors(*codes, *more, 503),
        }

    def asked(labels: str | None = None) -> dict[str, Any]:
        return _body("application/json", question_schema(named, labels))

    async def ask(request: Request, media: str | None, work: Work) -> Response:
        """An answer from the worker; only waiting is done here."""
        visit: Visit = request.scope["mpvae.visit"]
        given = request.headers.get("content-type", "").partition(";")[0].strip().lower()
        if media is not None and given != media:
            raise HTTPException(415, f"the content type is {given[:80]!r}; send {media}")
        body = await request.body()
        kind = (visit.place, len(body).bit_length())  # of like length: as much work
        done = await asyncio.wrap_future(worker.ask(kind, lambda: work(body)))
        found, visit.rows = done.value
        visit.waited, visit.worked = done.waited, done.worked
        return Response(found, media_type="application/json")

    @app.get("/about", **answered(About))
    async def about(request: Request) -> Response:
        """Features with their kinds, labels with their place on the map, example rows."""
        said = {"name": name, "version": __version__}
        return await ask(request, None, lambda _: (write_json(said | answers.about), 0))

    posted = (408, 413, 415, 422)

    @app.post("/predict", **answered(Probabilities, *posted), openapi_extra=asked())
    async def predict(request: Request) -> Response:
        """Probability of every label, from the features alone."""

        def work(body: bytes) -> tuple[bytes, int]:
            question = read_question(body)
            found = answers.predict(question.rows, question.metric)
            return write_json(found), len(question.rows)

        return await ask(request, "application/json", work)

    @app.post("/conditional", **answered(Conditional, *posted), openapi_extra=asked("known"))
    async def conditional(request: Request) -> Response:
        """Probability of every label given those that are known."""

        def work(body: bytes) -> tuple[bytes, int]:
            question = read_question(body, "known")
            found = answers.conditional(question.rows, question.labels)
            return write_json(found), len(question.rows)

        return await ask(request, "application/json", work)

    @app.post("/joint", **answered(Joint, *posted), openapi_extra=asked("labels"))
    async def joint(request: Request) -> Response:
        """Log-probability of several labels together; those left out are integrated out."""

        def work(body: bytes) -> tuple[bytes, int]:
            question = read_question(body, "labels")
            found = answers.joint(question.rows, question.labels)
            return write_json(found), len(question.rows)

        return await ask(request, "application/json", work)

    @app.post(
        "/rows",
        **answered(list[dict[str, Any]], *posted),
        openapi_extra=_body("text/csv", {"type": "string"}),
    )
    async def rows(request: Request) -> Response:
        """Rows of a CSV file, checked, as the other questions take them."""

        def work(body: bytes) -> tuple[bytes, int]:
            found = answers.rows_of_csv(body)
            return write_json(found), len(found)

        return await ask(request, "text/csv", work)

    one_of: Any = label_schema(named)

    @app.get("/associations", **answered(list[Pair], 422))
    async def associations(
        request: Request,
        top: Annotated[int, Query(ge=1, le=1000)] = 100,
        label: Annotated[str | None, Query(max_length=500, json_schema_extra=one_of)] = None,
    ) -> Response:
        """The strongest residual correlations, of all labels or of one."""

        def work(_: bytes) -> tuple[bytes, int]:
            return write_json(answers.associations(top, label)), 0

        return await ask(request, None, work)

    @app.get(
        "/metrics",
        dependencies=needs,
        responses=_errors(*codes)
        | {200: {"content": {"text/plain": {"schema": {"type": "string"}}}}},
        response_class=Response,
    )
    async def metrics() -> Response:
        """Numbers about the service, for Prometheus."""
        return Response(watch.page(), headers={"Content-Type": CONTENT_TYPE_LATEST})


def _add_errors(app: FastAPI) -> None:
    """Errors as one line of JSON; `Busy` and what is unexpected are the guard's."""

    @app.exception_handler(MPVAEError)
    async def wrong(_: Request, error: MPVAEError) -> Response:
        return _json({"error": " ".join(str(error).split())}, 422)

    @app.exception_handler(RequestValidationError)
    async def malformed(_: Request, error: RequestValidationError) -> Response:
        first = error.errors()[0]
        return _json({"error": f"{first['loc'][-1]}: {first['msg']}"}, 422)

    @app.exception_handler(HTTPException)
    async def refused(request: Request, error: HTTPException) -> Response:
        texts = {
            404: "there is no such page; see /docs",
            405: f"{request.method[:20]} is not possible here; see /docs",
        }
        text = texts.get(error.status_code, error.detail)
        return Response(problem(text), error.status_code, error.headers, "application/json")


def _json(value: Any, status: int = 200) -> Response:
    return Response(write_json(value), status, media_type="application/json")


def _errors(*codes: int) -> Responses:
    what = {
        401: "The token is missing or wrong.",
        408: "The question took too long to arrive.",
        413: "The question is too long.",
        415: "The content type is another one.",
        421: "The header Host names another machine.",
        422: "Something is wrong with the question.",
        431: "Address and headers are too long.",
        500: "Something went wrong in the service; its log has more.",
        503: "Too many ask, or the service begins or ends; ask again later.",
    }
    return {code: {"model": Problem, "description": what[code]} for code in codes}


def _body(media: str, schema: dict[str, Any]) -> dict[str, Any]:
    return {"requestBody": {"required": True, "content": {media: {"schema": schema}}}}
